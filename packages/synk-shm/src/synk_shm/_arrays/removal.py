"""Close shared arrays in this process, and remove their names for all processes."""

from __future__ import annotations

import contextlib
import errno
import os
import sys

from synk_shm._arrays.segment import Array, Segment, require_segment, segment
from synk_shm._processes import families
from synk_shm._processes.process import process
from synk_shm._segments import naming, posix
from synk_shm.exceptions import ShmNotFoundError, ShmPermissionError


def close(a: Array) -> None:
    """Close the segment under `a` in this process.

    Its owner removes the name at once, as `unlink` does. The memory goes with the last reference
    to `a`: no array ever points to unmapped memory. Does nothing if it is closed already.

    Raises:
        BufferError: other arrays still use this memory; the text has their number.
        ValueError: `a` is not in shared memory.
    """
    found = require_segment(a)
    if found.closed:
        return
    memory, probe = found.memory(), object()
    others = sys.getrefcount(memory) - sys.getrefcount(probe) - 1  # without `a` itself
    if others > 0:
        raise BufferError(
            f"{others} other array{'s lie' if others > 1 else ' lies'} on the memory of "
            f"{found.name}; delete them first, or only unlink() it"
        )
    if found.owner:
        _unlink_segment(found)
    found.release()


def unlink(a_or_name: Array | str, missing_ok: bool = False) -> None:
    """Remove a segment's names, so that no process can attach it any more.

    Processes that have it keep it until their last array dies. Messages of multiprocessing
    that are under way lose it. Any process of the same user may do this.

    Args:
        a_or_name: a shared array, or a name as `attach` takes it.
        missing_ok: whether the segment may be gone already.

    Raises:
        ShmNotFoundError: there is no such segment, unless `missing_ok`.
        ShmPermissionError: it belongs to another user.
        ValueError: this array is not in shared memory.
    """
    if isinstance(a_or_name, str):
        name = naming.system_name(a_or_name)
        was_there = _unlink_name(name)
    else:
        found = require_segment(a_or_name)
        name = found.name
        was_there = _unlink_segment(found)
    if not (was_there or missing_ok):
        raise ShmNotFoundError(errno.ENOENT, "no such segment (or it is unlinked already)", name)


def is_shared(x: object) -> bool:
    """Return whether `x` is an array in shared memory of this package, or a view of one."""
    return segment(x) is not None


def _unlink_segment(found: Segment) -> bool:
    """Remove every entry of a segment, those of messages included; False if there was none."""
    gone, names = found.unlinked, found.names
    found.unlink()
    return not gone if found.backend == "memfd" else _remove_entries(found.inode, names)


def _unlink_name(name: str) -> bool:
    if posix.DIRECTORY is None:
        return posix.remove(name)
    status = posix.status_of(name)
    if status is None:
        return False
    if status.st_uid != os.geteuid():
        reason = f"this segment belongs to user {status.st_uid}, who alone may unlink it"
        raise ShmPermissionError(errno.EACCES, reason, name)
    for mapped in list(process.mapped.values()):
        if mapped.inode == status.st_ino and mapped.owner and mapped.backend == "shm":
            mapped.unlink()
    return _remove_entries(status.st_ino, [name])


def _remove_entries(inode: int, known: list[str]) -> bool:
    """Remove all entries of a segment, also unknown ones; False if there was none."""
    if posix.DIRECTORY is None:
        return posix.remove(known[0])
    names = known
    if any(posix.links(name, inode) != len(known) for name in known):
        with contextlib.suppress(OSError):  # no descriptor, or no memory, for a list
            entries = families.names_of_user()
            names = [name for name, status in entries if status.st_ino == inode]
    # A random one last: it leads a sweep to the others, should this process be killed.
    names = sorted(names, key=naming.is_user_name, reverse=True)
    return any([posix.remove(name, inode) for name in names])  # noqa: C419 (all of them)
