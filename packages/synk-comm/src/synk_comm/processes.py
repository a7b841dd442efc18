"""Start fresh Python interpreters that end with this process, however it ends.

The process of `Process` inherits the reading end of a pipe whose writing end this process alone
has. When this process ends, the kernel sends SIGKILL to the process group, as both have asked:
also if it is stopped, or never releases the interpreter's lock.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import importlib
import os
import pickle
import select
import signal
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from importlib.machinery import ModuleSpec
from io import FileIO
from multiprocessing import spawn
from pathlib import Path
from typing import Any, BinaryIO

from ._system.cores import available_cores, core_quota, threads_per_rank
from ._system.liveness import WatchedProcess, stat
from ._system.memory import memory_file
from .exceptions import MisuseError

__all__ = [
    "NO_RANKS",
    "Process",
    "WatchedProcess",
    "available_cores",
    "core_quota",
    "current_folder",
    "import_path",
    "interpreter",
    "require_leave",
    "stat",
    "threads_per_rank",
]

NO_RANKS = "SYNK_COMM_NO_RANKS"
"""Environment variable of a process that must not start ranks, nor may any below it: what it is."""

_BOOT = (
    "import sys; sys.path = [entry for entry in sys.path if entry]; import pickle; "
    "work = open(int(sys.argv[1]), 'rb'); sys.path[:] = pickle.load(work); "
    "from synk_comm.processes import begin; begin(work)"
)
"""Program of a fresh interpreter. Not ``-m``: it finds this package by its parent's ``sys.path``,
and nothing of the current folder before."""

_PR_SET_PDEATHSIG = 1
_STDERR = 2
_LOOK_EVERY_S = 0.5


class Process(subprocess.Popen[bytes]):
    """A fresh interpreter that calls ``module.function(*args)``, and ends with this process.

    It leads a session of its own: its process group can be signalled as a whole, and a terminal's
    Ctrl-C does not reach it.

    Args:
        module, function: its command line shows the module.
        args: picklable, in terms of importable modules.
        path: its ``sys.path``.
        env: its whole environment.
        fds: descriptors that it inherits, besides the standard streams.
        flags: options of the interpreter.
        blocked: signals that are blocked until it unblocks them.
        how: as of `subprocess.Popen`: the current folder and the streams; it has no input if
            ``stdin`` is not among them.

    Raises:
        OSError: it cannot be started.
        MisuseError: there is no Python to start it with.
    """

    def __init__(
        self,
        module: str,
        function: str,
        args: tuple[Any, ...],
        *,
        path: Sequence[str],
        env: Mapping[str, str],
        fds: Sequence[int] = (),
        flags: Sequence[str] = (),
        blocked: Sequence[int] = (),
        **how: Any,
    ) -> None:
        self._is_alone = False
        self._lifeline = _, _, reading = _lifeline()
        # The signal of PR_SET_PDEATHSIG comes when the thread ends that has started the process.
        by_main_thread = threading.get_native_id() == os.getpid()
        start = module, function, args, reading.fileno(), os.getpid(), by_main_thread
        mask = signal.pthread_sigmask(signal.SIG_BLOCK, ())
        try:
            with memory_file(pickle.dumps(list(path)) + pickle.dumps(start)) as work:
                try:
                    signal.pthread_sigmask(signal.SIG_BLOCK, blocked)
                    super().__init__(
                        [interpreter(), *flags, "-c", _BOOT, str(work.fileno()), module],
                        pass_fds=(work.fileno(), reading.fileno(), *fds),
                        start_new_session=True,
                        env=env,
                        bufsize=0,
                        **{"stdin": subprocess.DEVNULL, **how},
                    )
                finally:
                    signal.pthread_sigmask(signal.SIG_SETMASK, mask)
            # The process asks for the same, but that is lost if it dies before the pipe ends.
            _kernel_kills(self._lifeline[0].fileno(), -self.pid)
        except BaseException:
            self._release()
            if getattr(self, "pid", None) is not None:  # interrupted when it had been started
                self.kill()
                self.wait()
            raise

    def signal_group(self, number: int) -> bool:
        """Send a signal to its process group; return whether that has members, even if zombies.

        The system may give the number of an empty group to others: it gets no more signals.
        """
        if not self._is_alone:
            try:
                os.killpg(self.pid, number)
            except PermissionError:  # only zombies, on some systems
                pass
            except ProcessLookupError:
                self._is_alone = True
        return not self._is_alone

    def close(self) -> None:
        """Close the pipes. If it has not ended, the kernel kills it. Idempotent, in any thread."""
        self._release()
        for stream in (self.stdout, self.stderr):
            if stream is not None:
                stream.close()

    def _release(self) -> None:
        """Close the lifeline, the witness first: the group may outlive its leader."""
        for end in self._lifeline:
            end.close()


def begin(work: BinaryIO) -> None:
    """Call the function of a `Process`, in the fresh interpreter."""
    start = pickle.load(work)  # noqa: S301 - from the parent, in a file that only this one inherits
    module, function, args, fd, parent, by_main_thread = start
    work.close()
    os.set_inheritable(fd, False)
    _end_with_parent(fd, parent, by_main_thread)
    getattr(importlib.import_module(module), function)(*args)


def _lifeline() -> tuple[FileIO, FileIO, FileIO]:
    """Return witness, writing end, and reading end of a pipe; another process inherits the last.

    A killed process's files close from the highest number to the lowest: the witness, a reading end
    that this process alone has, is still open when the writing end closes, and notices it.
    """
    low, high = os.pipe()
    # Objects, not numbers: if this is interrupted they close.
    witness = open(low, "rb", buffering=0)  # noqa: SIM115 - until _release()
    writing = open(high, "wb", buffering=0)  # noqa: SIM115
    return witness, writing, open(f"/proc/self/fd/{low}", "rb", buffering=0)


def _end_with_parent(fd: int, parent: int, by_main_thread: bool) -> None:
    """Make the kernel kill this process, and the group that it leads, when the parent ends.

    The parent, whose main thread has started this process or not, alone has the pipe's writing end.
    """

    def look(wait_s: float) -> None:
        if select.select([fd], [], [], wait_s)[0] or os.getppid() != parent:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(os.getpid(), signal.SIGKILL)
            os.kill(os.getpid(), signal.SIGKILL)  # it has moved to another group

    def watch() -> None:
        while True:
            look(_LOOK_EVERY_S)

    can_kill = _kernel_kills(fd, -os.getpid())
    # A child that the parent forked in C may have a copy of the pipe: then it lives on.
    if by_main_thread:
        with contextlib.suppress(OSError, AttributeError):
            ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0)
    if not (can_kill and by_main_thread):
        threading.Thread(target=watch, name="synk-comm-parent", daemon=True).start()
    look(0.0)  # an end before now leaves no signal


def _kernel_kills(fd: int, owner: int) -> bool:
    """Ask the kernel for SIGKILL to a pid, or a group's negative, at the end of a pipe."""
    try:
        fcntl.fcntl(fd, fcntl.F_SETOWN, owner)
        fcntl.fcntl(fd, fcntl.F_SETSIG, int(signal.SIGKILL))
        fcntl.fcntl(fd, fcntl.F_SETFL, fcntl.fcntl(fd, fcntl.F_GETFL) | os.O_ASYNC)
    except OSError:
        return False
    return True


def require_leave(what: str) -> None:
    """Raise MisuseError if `what` was called in a process, or below one, that starts no ranks."""
    name, pid = os.environ.get(NO_RANKS, ""), os.getpid()
    while not name and pid > 1:  # the kernel keeps variables that the program has removed
        try:
            began = b"\0" + Path(f"/proc/{pid}/environ").read_bytes()
            pid = int(stat(pid)[1])
        except (OSError, ValueError, IndexError):  # another user's, or there is no /proc
            break
        name = os.fsdecode(began.partition(f"\0{NO_RANKS}=".encode())[2].partition(b"\0")[0])
    if name:
        raise MisuseError(
            f"{what} was called in {name}, or below it, which must not start ranks: put the call "
            f'under `if __name__ == "__main__":`, so that an import does not repeat it'
        )
    # Pipes to ranks must not get the numbers of closed streams.
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
