"""The watchdog process, which kills the workers of a master that ended without closing them.

A thread in each worker notices the master's end, but it cannot run while the worker computes in C
with the interpreter's lock held, or is stopped. The watchdog is a small process that waits for the
same event. It gives the workers a moment to end by themselves, kills the rest, and removes the
shared memory that no process holds any more.

`processes.Watchdog` runs it as ``python -I -S watchdog.py <line fd> <master's pid> <its start>
<launcher's fd, or -1> <path... or the rank's name>``. While it waits it has imported only the
modules below; `typing` is not among them, because it takes longest.
"""

from __future__ import annotations

import os
import select
import signal
import sys
import time
from types import ModuleType

GRACE_S = 1.0
"""Seconds that workers have to end by themselves."""

CLOSE = b"close"
FOLDER = b"folder "
"""Prefix of a folder's path, which follows in hexadecimal digits."""

_KILL_S = 0.5
"""Seconds to wait after SIGKILL; a process stuck in the kernel may take longer."""

_SWEEP_S = 30.0
_NAP_S = 0.005
_LOOK_EVERY_MS = 500

_IGNORED = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def stat(pid: int) -> list[bytes]:
    """Return the fields of /proc/PID/stat from the third, the state, on; OSError if it is gone or
    invisible."""
    with open(f"/proc/{pid}/stat", "rb") as file:
        # The name, in parentheses, may hold anything.
        return file.read().rpartition(b")")[2].split()


def start_of(pid: int) -> int | None:
    """Return when a process started, in clock ticks since boot; None if it is gone or invisible.

    A pid and its start identify one process.
    """
    try:
        fields = stat(pid)
        return None if fields[0] in (b"Z", b"X") else int(fields[19])
    except (OSError, IndexError, ValueError):
        return None


class WatchedProcess:
    """A process that need not be this one's child, never another that was given its pid."""

    def __init__(self, pid: int, start: int) -> None:
        self.pid = pid
        self._start = start
        self.fd = _pidfd(pid, start)
        self._ended = select.poll()
        if self.fd >= 0:
            self._ended.register(self.fd, select.POLLIN)

    def is_gone(self) -> bool:
        """Return whether the process has released all it held."""
        if self.fd >= 0:
            return bool(self._ended.poll(0))
        return start_of(self.pid) != self._start

    def kill(self) -> None:
        try:
            if os.getpgid(self.pid) == self.pid and not self.is_gone():
                os.killpg(self.pid, signal.SIGKILL)  # with compilers that it has started
            if self.fd >= 0:
                signal.pidfd_send_signal(self.fd, signal.SIGKILL)
            elif start_of(self.pid) == self._start:
                os.kill(self.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass


def _pidfd(pid: int, start: int) -> int:
    """Return a descriptor of the process; -1 if it is gone or the system has no pidfds."""
    if not hasattr(os, "pidfd_open") or not hasattr(signal, "pidfd_send_signal"):
        return -1
    try:
        fd = os.pidfd_open(pid)
    except OSError:
        return -1
    if start_of(pid) == start:
        return fd
    os.close(fd)
    return -1


def watch(fd: int, master: WatchedProcess, folders: list[bytes]) -> list[WatchedProcess] | None:
    """Wait for the master's end and return its workers; None if it closed the watchdog.

    Args:
        folders: receives the folders that the master would have removed.
    """
    workers: list[WatchedProcess] = []
    partial = b""
    waiting = select.poll()
    waiting.register(fd, select.POLLIN)
    if master.fd >= 0:
        # The line may have been copied into a child that the master forked: it would not end.
        waiting.register(master.fd, select.POLLIN)
    while True:
        ready = [at for at, _ in waiting.poll(None if master.fd >= 0 else _LOOK_EVERY_MS)]
        if fd in ready:
            try:
                chunk = os.read(fd, 4096)
            except ConnectionResetError:
                chunk = b""
            *lines, partial = (partial + chunk).split(b"\n")
            for line in lines:
                if line == CLOSE:
                    return None
                if line.startswith(FOLDER):
                    folders.append(bytes.fromhex(line[len(FOLDER) :].decode()))
                    continue
                pid, start = line.split()
                workers.append(WatchedProcess(int(pid), int(start)))
            if not chunk:
                return workers
        elif master.is_gone():
            return workers


def watch_rank(fd: int, rank: WatchedProcess, launcher: int, name: str) -> None:
    """Wait until MPI or the rank ends; if the rank is first, have its launcher end the job: MPICH's
    and Slurm take an exit for harmless.

    This process holds the rank's output and its connection to the launcher, who closes that at
    MPI_Finalize: so the launcher hears of the end from here.
    """
    waiting = select.poll()
    waiting.register(launcher, select.POLLRDHUP)
    if rank.fd >= 0:
        waiting.register(rank.fd, select.POLLIN)
    while not rank.is_gone():
        if any(at == launcher for at, _ in waiting.poll(None if rank.fd >= 0 else _LOOK_EVERY_MS)):
            return
    line = select.poll()
    line.register(fd, select.POLLIN)
    leaving = line.poll(0) and os.read(fd, 1)  # the first digit of a rank that was about to end
    if leaving and leaving != b"0":
        return  # this launcher may not close the connection; the job's end is the master's
    patience_s, code = GRACE_S, 1
    try:
        code = os.waitstatus_to_exitcode(int(stat(rank.pid)[49]))
        status = str(code)
    except (OSError, IndexError, ValueError):  # its parent was quicker: a shell, or the launcher
        patience_s, status = 2 * GRACE_S, "unknown"
    if code < 0:
        os.closerange(1, 3)  # the end of its output lets the launcher look for the signal
        patience_s = 5 * GRACE_S  # for the program to save, if the launcher lets others live
    if rank.fd >= 0:
        waiting.unregister(rank.fd)
    if waiting.poll(1000 * patience_s):
        return
    text = (
        f"synkhronos: {name} (process {rank.pid}, exit status {status}) has ended without "
        f"MPI_Finalize: the job is aborted. To end a rank, use sys.exit() instead of os._exit()\n"
    )
    try:
        os.write(2, b"" if leaving else text.encode())
        time.sleep(GRACE_S / 10)  # the launcher passes it on, which it does not after the next line
    finally:  # as MPI_Abort does; not with 0, unless the program was over
        os.write(launcher, b"cmd=abort exitcode=%d\n" % (abs(code) or int(not leaving)))


def end(
    master: WatchedProcess, workers: list[WatchedProcess], folders: list[bytes], path: list[str]
) -> None:
    """Clean up after a dead master: kill its workers, remove folders and shared memory."""
    import threading

    deadline = time.monotonic() + GRACE_S
    # In a thread, because this import may fail or hang, and the workers have to end in any case.
    loaded: list[ModuleType] = []
    loading = threading.Thread(target=_load, args=(path, loaded), daemon=True)
    loading.start()
    _await_gone(workers, deadline)
    for worker in workers:
        worker.kill()
    _await_gone([master, *workers], time.monotonic() + _KILL_S)
    for folder in folders:
        _remove(folder)
    loading.join(_SWEEP_S)
    for synk_shm in loaded:
        synk_shm.cleanup()


def _remove(folder: bytes) -> None:
    """Remove a folder of this user's, and the sockets in it; do nothing if it is gone."""
    try:
        if os.lstat(folder).st_uid == os.geteuid():
            for name in os.listdir(folder):
                os.unlink(os.path.join(folder, name))
            os.rmdir(folder)
    except OSError:
        pass


def _load(path: list[str], loaded: list[ModuleType]) -> None:
    sys.path.extend(path)
    import synk_shm

    loaded.append(synk_shm)


def _await_gone(processes: list[WatchedProcess], deadline: float) -> None:
    while time.monotonic() < deadline:
        if all(process.is_gone() for process in processes):
            return
        time.sleep(_NAP_S)


def main(fd: int, master_pid: int, master_start: int, launcher: int, path: list[str]) -> None:
    """Watch until the master closes the watchdog or is gone; then end this process."""
    # Signals that are sent to all processes of a program must not end this one.
    for number in _IGNORED:
        signal.signal(number, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, _IGNORED)
    master = WatchedProcess(master_pid, master_start)
    folders: list[bytes] = []
    try:
        if launcher >= 0:
            watch_rank(fd, master, launcher, *path)
        elif (orphans := watch(fd, master, folders)) is not None:
            end(master, orphans, folders, path)
    finally:
        os._exit(0)


if __name__ == "__main__":
    numbers = [int(text) for text in sys.argv[1:5]]
    main(numbers[0], numbers[1], numbers[2], numbers[3], sys.argv[5:])
