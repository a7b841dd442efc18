"""Files that a run writes: whole or not at all, and their user's alone, whatever the umask.

A link that is the user's own, or root's, is followed, as shells do; another user's never is.
Devices, FIFOs and descriptors (``/dev/stdout``) are written into. For other packages.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
import tempfile
from pathlib import Path
from typing import BinaryIO, Iterator, Optional, Tuple, Union

__all__ = ["make_folder", "place_of", "stream_of", "whole_file"]

_MOST_LINKS = 40  # as Linux follows
_STREAMS = (stat.S_IFCHR, stat.S_IFIFO)


def make_folder(path: Path) -> None:
    """Make a folder, and those on the way to it, for this user alone; existing ones stay."""
    # One by one: mkdir(parents=True) would let others into those that it makes on the way.
    for step in (*reversed(path.absolute().parents), path):
        step.mkdir(mode=0o700, exist_ok=True)


def place_of(
    path: Union[str, os.PathLike[str]], follow: bool = True
) -> Tuple[str, Optional[os.stat_result]]:
    """Return the place to write to, with links followed, and the state of its file, or None.

    Args:
        follow: False to return the place of a link itself, and to refuse devices and FIFOs.

    Raises:
        OSError: there is a folder, a socket or a block device, or another user's link.
    """
    place = os.fspath(path)
    for _ in range(_MOST_LINKS):
        folder, name = os.path.split(place)
        place = os.path.join(os.path.realpath(folder), name)
        if _is_descriptor(place):
            return place, os.stat(place)
        try:
            found = os.lstat(place)
        except FileNotFoundError:
            return place, None
        kind = stat.S_IFMT(found.st_mode)
        if kind == stat.S_IFDIR:
            raise IsADirectoryError(f"{place} is a folder; expected the name of a file")
        if kind == stat.S_IFREG or (follow and kind in _STREAMS):
            return place, found
        if kind != stat.S_IFLNK:
            raise OSError(f"{place} is no file, but a socket or device; expected another name")
        if not follow:
            return place, None
        if found.st_uid not in (0, os.geteuid()):
            raise PermissionError(
                f"{place} is a link of another user (uid {found.st_uid}), which is not followed; "
                "expected a file: name the one that it leads to, or remove it"
            )
        place = os.path.join(os.path.dirname(place), os.readlink(place))
    raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), str(path))


def stream_of(path: Union[str, os.PathLike[str]]) -> Optional[BinaryIO]:
    """Open a device, a FIFO or a descriptor of this process to write; None for a file.

    Raises:
        OSError: as `place_of`; or nobody reads the FIFO.
    """
    place, found = place_of(path)
    if _is_descriptor(place):
        return open(os.dup(int(os.path.basename(place))), "wb")
    if found is None or stat.S_ISREG(found.st_mode):
        return None
    # Without waiting, because a reader may never come.
    flags = os.O_WRONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_NOFOLLOW | os.O_CLOEXEC
    try:
        file = open(os.open(place, flags), "wb")  # noqa: SIM115 - the caller's
    except OSError as error:
        if error.errno != errno.ENXIO:
            raise
        raise OSError(errno.ENXIO, "nobody reads the FIFO; start its reader first", place) from None
    if stat.S_IFMT(os.fstat(file.fileno()).st_mode) not in _STREAMS:
        file.close()
        raise OSError(f"{place} has been replaced meanwhile")
    os.set_blocking(file.fileno(), True)
    return file


@contextlib.contextmanager
def whole_file(path: Union[str, os.PathLike[str]], follow: bool = True) -> Iterator[BinaryIO]:
    """Open a file to write; at the end of the block, and only then, it is at its place on the disk.

    It has the owner and the mode of the file that it replaces, or else is this user's alone.

    Args:
        follow: False to replace a link, for names that the user has not chosen.

    Raises:
        OSError: as `stream_of`; or it cannot be written, and an old one is unchanged.
    """
    stream = stream_of(path) if follow else None
    if stream is not None:
        with stream:
            yield stream
        return
    place, found = place_of(path, follow)
    folder, name = os.path.split(place)
    # A new file of a name that nobody can guess, opened through no link.
    descriptor, draft = tempfile.mkstemp(".tmp", f".{name}.", folder)
    try:
        with open(descriptor, "wb") as file:
            if found is not None:
                with contextlib.suppress(PermissionError):  # another user's: this one's from now on
                    os.fchown(descriptor, found.st_uid, found.st_gid)
                    os.fchmod(descriptor, found.st_mode & 0o777)
            yield file
            file.flush()
            os.fsync(descriptor)
        os.replace(draft, place)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(draft)
        raise
    with contextlib.suppress(OSError):  # some folders cannot be synchronised; the file is there
        entry = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(entry)
        finally:
            os.close(entry)


def _is_descriptor(place: str) -> bool:
    return os.path.dirname(place) == f"/proc/{os.getpid()}/fd"
