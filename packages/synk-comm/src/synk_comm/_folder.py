"""A folder for sockets that nobody but this user may enter."""

from __future__ import annotations

import atexit
import os
import shutil
import stat
import tempfile

from .exceptions import JoinError


class SocketFolder:
    """A 0700 folder, removed when it has done its duty: by rank 0 after joining, at the latest
    when the process that made it exits."""

    def __init__(self, path: str) -> None:
        self.path = path
        self._pid = os.getpid()

    @classmethod
    def create(cls) -> SocketFolder:
        """Make a folder under the system's folder for temporary files."""
        folder = cls(tempfile.mkdtemp(prefix="synk-comm-"))
        atexit.register(folder._remove_in_maker)
        return folder

    def forget(self) -> None:
        """Release what waits for the exit of this process, if the folder is gone already."""
        if not os.path.isdir(self.path):
            atexit.unregister(self._remove_in_maker)

    def remove(self) -> None:
        """Remove the folder and the sockets in it."""
        shutil.rmtree(self.path, ignore_errors=True)

    def _remove_in_maker(self) -> None:
        if os.getpid() == self._pid:
            self.remove()


def check_private(path: str) -> None:
    """Raise JoinError unless the folder is this user's and closed to all others."""
    status = os.lstat(path)
    mode = stat.S_IMODE(status.st_mode)
    if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.geteuid() or mode & 0o077:
        raise JoinError(
            f"{path} must be a folder of this user with mode 0700, so that nobody else can come "
            f"between the ranks; got owner {status.st_uid}, mode {mode:04o}"
        )
