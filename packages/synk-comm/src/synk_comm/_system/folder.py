"""A folder for sockets that only this user may enter."""

from __future__ import annotations

import atexit
import os
import shutil
import stat
import tempfile

from synk_comm.exceptions import JoinError

_PREFIX = "synk-comm-"
_MAX_PATH = 100  # sun_path holds 108 bytes
_OWN_BYTES = len("/synk-comm-0123456789ab/1000-1000")
_SHORT = ("/tmp", "/var/tmp", "/dev/shm")  # noqa: S108 - the folder is 0700


class SocketFolder:
    """A 0700 folder; the ranks remove it once all have joined, or its maker when it exits."""

    def __init__(self, path: str) -> None:
        self.path = path
        self._pid = os.getpid()

    @classmethod
    def named(cls, secret: bytes) -> SocketFolder:
        """Return a folder, not made yet, with a name from a secret.

        All ranks that know the secret can remove it if its maker is killed.
        """
        return cls(os.path.join(_place(), _PREFIX + secret.hex()[:12]))

    def make(self) -> SocketFolder:
        os.mkdir(self.path, 0o700)
        atexit.register(self._remove_in_maker)
        return self

    def remove(self) -> None:
        """Remove the folder and the sockets in it, if it is there."""
        shutil.rmtree(self.path, ignore_errors=True)
        atexit.unregister(self._remove_in_maker)

    def _remove_in_maker(self) -> None:
        if os.getpid() == self._pid:
            self.remove()

    def path_of(self, low: int, high: int) -> str:
        """Return the path of the socket between two ranks."""
        return os.path.join(self.path, f"{low}-{high}")

    def check(self) -> None:
        """Raise JoinError unless the folder is this user's and closed to all others."""
        try:
            status = os.lstat(self.path)
        except FileNotFoundError:
            raise JoinError(
                f"{self.path} does not exist (any more): the group has been used or given up"
            ) from None
        mode = stat.S_IMODE(status.st_mode)
        if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.geteuid() or mode & 0o077:
            raise JoinError(
                f"{self.path} must be a folder of this user with mode 0700, so that nobody else "
                f"can come between the ranks; got owner {status.st_uid}, mode {mode:04o}"
            )

    def claim(self, rank: int) -> None:
        """Enter as this rank; JoinError if the folder is not private, or the rank has entered."""
        self.check()
        try:
            os.close(os.open(os.path.join(self.path, f"{rank}"), os.O_CREAT | os.O_EXCL, 0o600))
        except FileExistsError:
            raise JoinError(
                f"rank {rank} has already joined this group; give each process its own ticket"
            ) from None
        except OSError as exc:
            raise JoinError(f"rank {rank} cannot use {self.path}: {exc}") from exc


def _place() -> str:
    """Return the folder for temporary files, if sockets in it can have names; else another."""
    usual = tempfile.gettempdir()
    if len(os.fsencode(usual)) + _OWN_BYTES <= _MAX_PATH:
        return usual
    usable = (place for place in _SHORT if os.access(place, os.W_OK | os.X_OK))
    return next(usable, usual)
