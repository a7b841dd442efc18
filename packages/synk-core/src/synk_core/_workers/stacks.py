"""The Python stacks of all threads of a worker, which writes them into a file without name.

On a first signal its main thread writes them between two bytecodes. A worker that does not answer
runs compiled code: on a second signal a handler in C writes them at once. Amid bytecodes that one
would end the process by SIGSEGV in one case of some 8,000.
"""

from __future__ import annotations

import contextlib
import faulthandler
import fcntl
import os
import re
import signal
import subprocess
import threading
import time
from typing import Any, Dict, Mapping, Optional, Tuple, Union

from synk_comm.processes import WatchedProcess, stat

BETWEEN_BYTECODES = int(signal.SIGRTMIN) + 3
"""Signal number that asks for stacks."""

AT_ONCE = int(signal.SIGRTMIN) + 1
"""Signal number that asks again, after `PATIENCE_S`."""

SIGNALS = (BETWEEN_BYTECODES, AT_ONCE)
"""Both: a worker blocks them until it answers."""

PATIENCE_S = 0.1
"""Seconds that a worker has to answer the first signal."""

LIMIT = 1_000_000
"""Bytes of stacks that are read at most."""

_LOOK_EVERY_S = 0.005
_ANSWERING = re.compile(r'^  File ".*_workers/stacks\.py", line \d+ in answer\n', re.MULTILINE)
_BEGINNING = re.compile(r'^  File "<string>", line 1 in <module>\n', re.MULTILINE)


def answer_with_stacks(fd: int) -> None:
    """In a worker, install the handlers that write stacks into a file, one for each signal."""

    def answer(_number: int, _frame: Any) -> None:
        faulthandler.dump_traceback(fd, all_threads=True)

    signal.signal(BETWEEN_BYTECODES, answer)
    # Restart system calls: compiled code may not expect that one is interrupted.
    signal.siginterrupt(BETWEEN_BYTECODES, False)
    # In C, so that it writes them whichever thread holds the interpreter's lock.
    faulthandler.register(AT_ONCE, fd, all_threads=True)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS)


class StackFile:
    """The file that one worker writes into: a new one, or that of a descriptor. One thread may
    close it while another uses it."""

    def __init__(self, fd: Optional[int] = None) -> None:
        self._lock, self.fd = threading.Lock(), -1
        self.fd = _unnamed_file() if fd is None else fd
        # Appending also works after the file was truncated.
        fcntl.fcntl(self.fd, fcntl.F_SETFL, fcntl.fcntl(self.fd, fcntl.F_GETFL) | os.O_APPEND)

    @classmethod
    def of(cls, pid: int, fd: int) -> StackFile:
        """Return the file that another process of this user has made, under descriptor `fd`."""
        return cls(os.open(f"/proc/{pid}/fd/{fd}", os.O_RDWR | os.O_CLOEXEC))

    def ask(self, process: AnyProcess, number: int) -> None:
        """Send the process one of the signals on which it writes its stacks."""
        with self._lock:
            if self.fd >= 0:
                os.ftruncate(self.fd, 0)
                process.send_signal(number)

    def read(self) -> str:
        """Return the text that the process has written so far."""
        with self._lock:
            text = os.pread(self.fd, LIMIT, 0).decode(errors="replace") if self.fd >= 0 else ""
        return _ANSWERING.sub("", text)

    def close(self) -> None:
        with self._lock:
            if self.fd >= 0:
                os.close(self.fd)
                self.fd = -1

    __del__ = close  # of a worker that could not be started


AnyProcess = Union["subprocess.Popen[bytes]", WatchedProcess]


class Stacks:
    """Gathers the stacks of workers, for one thread at a time."""

    def __init__(self) -> None:
        self._lock = threading.Lock()

    def gather(
        self, asked: Mapping[int, Tuple[AnyProcess, StackFile]], timeout_s: float
    ) -> Dict[int, str]:
        """Return the stacks of processes by rank, or why there are none; block for `timeout_s`
        seconds at most."""
        deadline = time.monotonic() + timeout_s
        if not self._lock.acquire(timeout=timeout_s):
            return dict.fromkeys(asked, "another thread is asking for its stacks")
        patience = deadline - timeout_s + min(PATIENCE_S, timeout_s / 2)
        missing, found = dict(asked), dict.fromkeys(asked, "")
        try:
            for number, until in ((BETWEEN_BYTECODES, patience), (AT_ONCE, deadline)):
                for rank, (process, file) in missing.items():
                    found[rank] = _obstacle(process)
                    if not found[rank]:
                        file.ask(process, number)
                while True:
                    late = time.monotonic() >= until
                    # One may have been stopped, or have ended, since it was asked.
                    for rank, (process, file) in missing.items():
                        text = file.read()
                        found[rank] = found[rank] or _whole(text) or _obstacle(process, text)
                    missing = {rank: missing[rank] for rank in missing if not found[rank]}
                    if late or not missing:
                        break
                    time.sleep(_LOOK_EVERY_S)
            for rank, (process, file) in missing.items():
                found[rank] = file.read() + _silence(process, timeout_s)
            return found
        finally:
            self._lock.release()


def _whole(text: str) -> str:
    """Return the stacks of all threads if the text has them to the end, else "".

    That of the main thread comes last, and begins in the program of `synk_comm.processes.Process`;
    a hundred calls deep, its beginning is left out. A process that was stopped may answer twice.
    """
    beginning = _BEGINNING.search(text)
    if beginning is not None:
        return text[: beginning.end()]
    return text if text.endswith("\n  ...\n") else ""


def _obstacle(process: AnyProcess, text: str = "") -> str:
    """Return why the process cannot answer to the end of a text; "" if it can."""
    state, pid = _state(process.pid), process.pid
    status = process.poll() if isinstance(process, subprocess.Popen) else None
    if status is not None:
        how = f"was killed by signal {-status}" if status < 0 else f"exited with status {status}"
        return f"{text}process {pid} is gone: it {how}"
    if state == "Z":
        return f"{text}process {pid} is gone"
    if state == "T":
        return (
            f"{text}process {pid} is stopped (SIGSTOP, or a job of a shell); `kill -CONT {pid}` "
            f"lets it go on"
        )
    return f"{text}process {pid} is held by a debugger" if state == "t" else ""


def _silence(process: AnyProcess, timeout_s: float) -> str:
    """Return the text for a process that has not answered to the end."""
    if _state(process.pid) == "D":
        name = ""
        with contextlib.suppress(OSError), open(f"/proc/{process.pid}/wchan") as file:
            name = file.read().strip("0\n")
        return (
            f"process {process.pid} is in uninterruptible sleep in the kernel"
            f"{name and f' ({name})'}: it waits for a disk, a network file system or a "
            f"driver, and not even SIGKILL ends it before that answers"
        )
    return (
        f"process {process.pid} has not written all its stacks in {timeout_s:g} s: it is still "
        f"starting Python, or the machine is busy"
    )


def _state(pid: int) -> str:
    """Return the kernel's letter for the state of a process, Z if it is gone; "" if unknown."""
    try:
        return stat(pid)[0].decode()
    except FileNotFoundError:
        return "Z" if os.path.isdir("/proc/self") else ""
    except (OSError, IndexError):
        return ""


def _unnamed_file() -> int:
    if hasattr(os, "memfd_create"):
        fd = os.memfd_create("synkhronos stacks", os.MFD_CLOEXEC)
        os.fchmod(fd, 0o600)
        return fd
    import tempfile

    with tempfile.TemporaryFile() as file:
        return os.dup(file.fileno())
