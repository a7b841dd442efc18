"""List the segments in shared memory, remove those of dead processes, count free bytes."""

from __future__ import annotations

from typing import NamedTuple

from synk_shm._processes import families
from synk_shm._processes.process import process
from synk_shm._segments import naming, posix
from synk_shm._segments.free_space import space
from synk_shm._segments.headers import peek
from synk_shm.exceptions import ShmError


class SegmentInfo(NamedTuple):
    """One segment, as `list` found it.

    Attributes:
        name: what `attach` and `unlink` take: the name that was given to it, if any.
        nbytes: bytes of memory it takes now.
        shape: of the array; None if the segment is not readable as one.
        dtype: of the array, as NumPy spells it; None likewise.
        alive: whether a process of the family that made it is left. If not, `cleanup`
            removes it.
        mine: whether this process belongs to that family.
        names: all its entries in the system: one of its own, one that was given to it,
            and one for each message of multiprocessing that carries it.
    """

    name: str
    nbytes: int
    shape: tuple[int, ...] | None
    dtype: str | None
    alive: bool
    mine: bool
    names: tuple[str, ...]


def list_segments(*, mine: bool = False) -> list[SegmentInfo]:
    """Return the segments of this user that have a name, sorted by name.

    Args:
        mine: whether to return only those of this program: of the family of this process. By
            default those of all programs.

    Returns:
        An empty list on a system that does not show segments as files (macOS).
    """
    entries: dict[int, list[str]] = {}
    for name, inode in families.names_of_user():
        entries.setdefault(inode, []).append(name)
    infos = []
    for names in entries.values():
        info = _describe(names)
        if info is not None and (info.mine or not mine):
            infos.append(info)
    return sorted(infos, key=lambda info: info.name)


def cleanup() -> list[str]:
    """Remove what dead processes of this user left; return the names that are gone.

    A family of processes is dead when the kernel has dropped all its locks. Segments of
    living families and of other users are never touched. This happens by itself when a
    process makes or attaches its first shared array, and when one that does exits.
    """
    return families.sweep_all()


def leave() -> None:
    """Let the names of other processes' arrays be removed when those processes end.

    For a forked child that goes on: it holds the locks of its parent's families, so that the
    names would outlive a parent that is killed. What is mapped here can be used as before; what
    this process makes or attaches from now on keeps a family alive again.
    """
    process.leave_families()


def free_space() -> int:
    """Return the bytes that new segments can still take in the system's shared memory.

    Raises:
        ShmError: the system does not report it (macOS).
    """
    found = space(posix.DIRECTORY) if posix.DIRECTORY is not None else None
    if found is None:
        raise ShmError(95, "this system does not tell how much shared memory is free")
    return found[0]


def _describe(names: list[str]) -> SegmentInfo | None:
    given = [name for name in names if naming.is_user_name(name)]
    name = given[0] if given else names[0]
    found = peek(name)
    if found is None:
        return None  # it was removed meanwhile
    header, status = found
    if header is None:  # made by another version, or still being made
        shape = dtype = None
        family = next(filter(None, map(naming.family_of, names)), None)
    else:
        shape, dtype, family = header.shape, str(header.dtype), header.family
    mine = family is not None and process.belongs_to(family)
    alive = mine or (family is not None and families.is_alive(family))
    shown = given[0].rsplit(".", 1)[-1] if given else name
    return SegmentInfo(shown, status.st_blocks * 512, shape, dtype, alive, mine, tuple(names))
