"""List the segments in shared memory, remove those of dead processes, count free bytes."""

from __future__ import annotations

import contextlib
import errno
from typing import NamedTuple

from synk_shm._processes import families
from synk_shm._processes.process import process
from synk_shm._segments import naming, posix
from synk_shm._segments.headers import peek
from synk_shm.exceptions import ShmError


class SegmentInfo(NamedTuple):
    """One segment, as `list` found it.

    Attributes:
        name: for `attach` and `unlink`: the user's name for it, if any.
        nbytes: bytes of memory it takes now.
        shape: of the array; None if the segment is not readable as one.
        dtype: of the array, as NumPy spells it; None likewise.
        alive: whether a process of its maker's family is left. If not, `cleanup` removes it.
        mine: whether this process belongs to that family.
        names: all its entries in the system: one of its own, the user's, and one for each message
            of multiprocessing that carries it.
    """

    name: str
    nbytes: int
    shape: tuple[int, ...] | None
    dtype: str | None
    alive: bool
    mine: bool
    names: tuple[str, ...]


def list_segments(*, mine: bool = False) -> list[SegmentInfo]:
    """Return the named segments of this user's programs, sorted by name.

    An empty list on a system that does not show segments as files (macOS).

    Args:
        mine: whether to return only those of this process's family.
    """
    entries: dict[int, list[str]] = {}
    nbytes = {}
    for name, status in families.names_of_user():
        entries.setdefault(status.st_ino, []).append(name)
        nbytes[status.st_ino] = status.st_blocks * 512
    infos = [_describe(names, nbytes[inode]) for inode, names in entries.items()]
    return sorted(info for info in infos if info is not None and (info.mine or not mine))


def cleanup() -> list[str]:
    """Remove the segments of this user's dead families; return the names that are gone.

    A family of processes is dead when the kernel has dropped all its locks. Segments of living
    families and of other users stay, as does a family with an unreadable segment, which another
    version of this package may have made. Each process does this by itself with its first shared
    array, and at its exit.
    """
    return families.sweep_all()


def leave() -> None:
    """Release the locks of all families: names of other processes' arrays go when those end.

    For a forked child that goes on: it holds the locks of its parent's families, so that the
    names would outlive a parent that is killed. Mapped arrays stay usable; new ones keep a family
    alive again.
    """
    process.leave_families()


def free_space() -> int:
    """Return the bytes that new segments can still take in the system's shared memory.

    Raises:
        ShmError: the system does not report it (macOS).
    """
    found = posix.space(posix.DIRECTORY) if posix.DIRECTORY is not None else None
    if found is None:
        raise ShmError(errno.ENOTSUP, "this system does not report how much shared memory is free")
    return found[0]


def _describe(names: list[str], nbytes: int) -> SegmentInfo | None:
    given = [name for name in names if naming.is_user_name(name)]
    name = given[0] if given else names[0]
    shape = dtype = header = None  # of one that was made by another version, or is being made
    with contextlib.suppress(ShmError):
        header = peek(name)
    if header is None and posix.status_of(name) is None:
        return None  # it was removed meanwhile
    family = next(filter(None, map(naming.family_of, names)), "")
    if header is not None:
        shape, dtype, family = header.shape, str(header.dtype), header.family
    mine = process.belongs_to(family)
    alive = mine or (bool(family) and families.is_alive(family))
    shown = name.split(".", 2)[2] if given else name
    return SegmentInfo(shown, nbytes, shape, dtype, alive, mine, tuple(names))
