"""What starts ranks asks here first: for leave to do so, a Python, and its path of imports."""

from __future__ import annotations

import os
import sys
from importlib.machinery import ModuleSpec
from multiprocessing import spawn
from pathlib import Path

from .exceptions import MisuseError

NO_RANKS = "SYNK_COMM_NO_RANKS"
"""Environment variable of a process that must not start ranks, nor may any below it: what it is."""

_STDERR = 2


def require_leave(what: str) -> None:
    """Raise MisuseError if this process, or one above it, must not start ranks, as `what` does."""
    name, pid = os.environ.get(NO_RANKS, ""), os.getpid()
    while not name and pid > 1:  # the kernel keeps variables that the program has removed
        try:
            began = b"\0" + Path(f"/proc/{pid}/environ").read_bytes()
            pid = int(Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()[1])
        except (OSError, ValueError, IndexError):  # another user's, or there is no /proc
            break
        name = os.fsdecode(began.partition(f"\0{NO_RANKS}=".encode())[2].partition(b"\0")[0])
    if name:
        raise MisuseError(
            f"{what} was called in {name}, or below it, which must not start ranks: put the call "
            f'under `if __name__ == "__main__":`, so that an import does not repeat it'
        )
    # In place of streams that were closed: pipes to ranks would get their numbers.
    while (fd := os.open(os.devnull, os.O_RDWR)) <= _STDERR:
        os.set_inheritable(fd, True)
    os.close(fd)


def interpreter() -> str:
    """Return the Python to start ranks with, that of ``multiprocessing.set_executable()``; raise
    MisuseError if there is none but a program of another kind, which would run again."""
    named = os.fsdecode(spawn.get_executable() or sys.executable or "")
    is_python = "py" in os.path.basename(os.path.realpath(named or "/")).lower()
    if named == (sys.executable or "") and (getattr(sys, "frozen", False) or not is_python):
        raise MisuseError(
            f"sys.executable is {sys.executable!r}, no Python to start ranks with; name one that "
            f"has the same packages: multiprocessing.set_executable('/usr/bin/python3')"
        )
    return named


def current_folder() -> str:
    """Return the current folder; "" if it has been removed."""
    try:
        return os.getcwd()
    except OSError:
        return ""


def import_path() -> tuple[str, ...]:
    """Return ``sys.path`` for another process: what Python reads of it, by full names.

    If an entry is relative, the folders of all imported modules come last: the current folder may
    have been another one then.
    """
    here, entries = current_folder(), [entry for entry in sys.path if isinstance(entry, str)]
    path = [os.path.join(here, entry) if entry else here for entry in entries]
    if not all(map(os.path.isabs, entries)):
        for module in tuple(sys.modules.values()):
            spec = getattr(module, "__spec__", None)
            if isinstance(spec, ModuleSpec) and spec.has_location and "." not in spec.name:
                folder = os.path.dirname(spec.origin or "")
                is_file = spec.submodule_search_locations is None
                path.append(folder if is_file else os.path.dirname(folder))
    return tuple(entry for entry in dict.fromkeys(path) if os.path.isabs(entry))
