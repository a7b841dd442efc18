"""A small process beside each rank of an MPI launcher, which reports that rank's end to it.

MPICH's launcher and Slurm's ignore an exit without MPI_Finalize, and the other ranks would wait.
`start` runs this file as a program: it imports no package, so that it needs little memory.
"""

from __future__ import annotations

import os
import select
import signal
import sys
import time

TYPE_CHECKING = False  # importing typing takes longer than all else
if TYPE_CHECKING:
    from typing import Callable

GRACE_S = 1.0
"""Seconds for the launcher to notice by itself."""

_LOOK_EVERY_MS = 500
_IGNORED = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def start(launcher: int, rank: int) -> Callable[[], None]:
    """Start it beside this process, a rank, if possible; return a function to call when the rank
    leaves MPI. `launcher` is the descriptor that connects this process to its launcher."""
    import socket
    import subprocess

    from synk_comm import MisuseError
    from synk_comm.processes import interpreter

    line, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        ended = os.pidfd_open(os.getpid())
    except (AttributeError, OSError):
        ended = -1
    fds = theirs.fileno(), ended, launcher
    name = f"rank {rank} on host {os.uname().nodename}"
    words = (fds[0], os.getpid(), ended, launcher, name)
    process = None
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, _IGNORED)  # until it ignores them
    try:
        process = subprocess.Popen(
            [interpreter(), "-I", "-S", __file__, *map(str, words)],
            stdin=subprocess.DEVNULL,
            cwd="/",
            start_new_session=True,
            pass_fds=[fd for fd in fds if fd >= 0],
        )
    except (OSError, MisuseError) as error:
        import logging

        logging.getLogger(__name__).warning("no process looks after this rank: %s", error)
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        theirs.close()
        if ended >= 0:
            os.close(ended)

    def leaving() -> None:
        """Report that this rank will finalize MPI and end."""
        if process is None:
            return
        try:
            line.sendall(b"%d" % rank, getattr(socket, "MSG_NOSIGNAL", 0))
        except OSError:  # it is gone
            pass

    return leaving


def watch(line: int, rank: int, ended: int, launcher: int, name: str) -> None:
    """Wait until the launcher closes its connection, at MPI_Finalize, or the rank, this process's
    parent, ends; if that is first, order the launcher to end the job. The rank writes to `line`
    when it is about to end; `ended` is its pidfd, or -1."""
    waiting = select.poll()
    waiting.register(launcher, select.POLLRDHUP)
    if ended >= 0:
        waiting.register(ended, select.POLLIN)
    while os.getppid() == rank:
        if any(at == launcher for at, _ in waiting.poll(None if ended >= 0 else _LOOK_EVERY_MS)):
            return
    said = select.poll()
    said.register(line, select.POLLIN)
    leaving = said.poll(0) and os.read(line, 1)  # the first digit of a rank that was about to end
    if leaving and leaving != b"0":
        return  # this launcher may not close the connection; the job's end is the master's
    patience_s, code = GRACE_S, 1
    try:
        with open(f"/proc/{rank}/stat", "rb") as file:  # as synk_comm.processes.stat
            code = os.waitstatus_to_exitcode(int(file.read().rpartition(b")")[2].split()[49]))
        status = str(code)
    except (OSError, IndexError, ValueError):  # its parent was quicker: a shell, or the launcher
        patience_s, status = 2 * GRACE_S, "unknown"
    if code < 0:
        os.closerange(1, 3)  # the end of its output lets the launcher look for the signal
        patience_s = 5 * GRACE_S  # for the program to save, if the launcher lets others live
    if ended >= 0:
        waiting.unregister(ended)
    if waiting.poll(1000 * patience_s):
        return
    text = (
        f"synkhronos: {name} (process {rank}, exit status {status}) has ended without "
        f"MPI_Finalize: the job is aborted. To end a rank, use sys.exit() instead of os._exit()\n"
    )
    try:
        os.write(2, b"" if leaving else text.encode())
        time.sleep(GRACE_S / 10)  # the launcher passes it on, which it does not after the next line
    finally:  # as MPI_Abort does; not with 0, unless the program was over
        os.write(launcher, b"cmd=abort exitcode=%d\n" % (abs(code) or int(not leaving)))


if __name__ == "__main__":
    # Signals that are sent to all processes of a program must not end this one.
    for number in _IGNORED:
        signal.signal(number, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, _IGNORED)
    line, rank, ended, launcher = map(int, sys.argv[1:5])
    try:
        watch(line, rank, ended, launcher, sys.argv[5])
    finally:
        os._exit(0)
