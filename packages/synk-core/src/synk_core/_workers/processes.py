"""The processes that the master starts: `Worker` and `Watchdog`.

A worker inherits one end of a socket pair for commands, and the reading end of a pipe whose
writing end only the master has. However the master ends, the pipe ends then, and the worker ends
itself. If it cannot, the watchdog kills it.
"""

from __future__ import annotations

import contextlib
import logging
import os
import pickle
import signal
import socket
import subprocess
import threading
import time
from typing import Dict, Iterator, Optional, Sequence

from synk_comm import MisuseError, starting
from synk_core._text import with_cure
from synk_core._wire.channel import NO_SIGPIPE, Channel, ChannelClosed
from synk_core._wire.messages import LEFT_TO_MASTER, Hello
from synk_core.exceptions import StartError

from . import boot, stacks, watchdog

_logger = logging.getLogger(__name__)

_WATCHDOG_TIMEOUT_S = 0.1
_LONGEST_DELAY_S = 0.05

_PF_EXITING = 0x4  # include/linux/sched.h: getting shut down

_ONE_THREAD = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}


class Worker:
    """One worker process and the master's channel to it.

    Attributes:
        is_ready: whether the worker has sent `Ready`.
    """

    def __init__(self, hello: Hello, environment: Dict[str, str], fds: Sequence[int]) -> None:
        self.rank = hello.rank
        self.is_ready = False
        self._looking = threading.RLock()
        self._status_is_known = True
        self.stack_file = stacks.StackFile()
        self.channel, theirs = Channel.pair()
        reading, lifeline = os.pipe()
        self._lifeline = [lifeline]
        inherited = (theirs.fileno(), reading, self.stack_file.fd)
        try:
            self.process = _start(
                [
                    starting.interpreter(),
                    boot.__file__,
                    "synk_core._workers.worker",
                    *map(str, inherited),
                    str(int(stacks.BETWEEN_BYTECODES)),
                    str(int(stacks.AT_ONCE)),
                    *hello.sys_path,
                ],
                environment,
                (*inherited, *fds),
            )
        except (OSError, MisuseError) as error:
            self.close()
            why = with_cure(error)
            raise StartError(f"cannot start the worker of rank {hello.rank}: {why}") from error
        finally:
            theirs.close()
            os.close(reading)
        # If the process is gone already, `wait_ready` raises.
        with contextlib.suppress(ChannelClosed):
            self.channel.send(pickle.dumps(hello))

    def is_alive(self) -> bool:
        with self._looking:
            if self.process.returncode is None:
                state = os.WEXITED | os.WNOHANG | os.WNOWAIT
                try:
                    if os.waitid(os.P_PID, self.process.pid, state) is None:
                        return True
                except ChildProcessError:  # `poll` would report a status of 0
                    self._status_is_known = self.process.returncode is not None
                self.process.poll()
        return False

    def is_gone(self) -> bool:
        """Return whether the process has ended, or has closed its channel and all was read."""
        return not self.is_alive() or self.channel.at_end()

    def exitcode(self, wait_s: float = 1.0) -> Optional[int]:
        """Return the exit status; None if the process still runs after `wait_s` seconds, or if
        other code of this process took the status (it ignores SIGCHLD, or waits for any child).

        One that is not 0 is also that of a process that the kernel still takes apart, which can
        take seconds on a busy GPU.
        """
        for _ in _looks(wait_s):
            with self._looking:  # another thread would reap it, and its pid be free
                if not self.is_alive():
                    return self.process.returncode if self._status_is_known else None
                status = _status_while_ending(self.process.pid)
            if status is not None:
                return status
        return None

    def has_ended(self, wait_s: float) -> bool:
        """Return whether the process has released all it held; wait for it `wait_s` seconds."""
        return any(not self.is_alive() for _ in _looks(wait_s))

    def close(self) -> None:
        """Close the channel and the lifeline, whose end is the end of a worker still running."""
        self.channel.close()
        self.stack_file.close()
        # Several threads may do so, and a closed descriptor's number is soon another file's.
        with contextlib.suppress(IndexError):
            os.close(self._lifeline.pop())


def _looks(wait_s: float) -> Iterator[None]:
    """Yield for each time to look, for `wait_s` seconds, and in any case once."""
    deadline = time.monotonic() + wait_s
    delay = 0.0005
    yield
    while (left := deadline - time.monotonic()) > 0:
        time.sleep(min(delay, left))
        delay = min(2 * delay, _LONGEST_DELAY_S)
        yield


def _status_while_ending(pid: int) -> Optional[int]:
    """Return the status that a process will end with, as in `subprocess`; None while it runs.

    See proc_pid_stat(5): the flags are field 9, and the status is field 52.
    """
    try:
        fields = watchdog.stat(pid)
        flags, status = int(fields[6]), int(fields[49])
    except (OSError, IndexError, ValueError):
        return None
    # The kernel says 0, too, to a process that may not read the status.
    return os.waitstatus_to_exitcode(status) if flags & _PF_EXITING and status else None


class Watchdog:
    """The master's side of the process that kills its workers when it cannot: see `watchdog`.

    Without /proc no such process is started, because a pid could mean any process. If the watchdog
    is killed, the runtime goes on without it.

    With `launcher_fd` the path is the name of a launcher's rank: see `watchdog.watch_rank`.
    """

    def __init__(self, path: Sequence[str], launcher_fd: int = -1) -> None:
        self._process: Optional[subprocess.Popen[bytes]] = None
        start = watchdog.start_of(os.getpid())
        self._line, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            if start is not None:
                command = [starting.interpreter(), "-I", "-S", watchdog.__file__]
                about = (theirs.fileno(), os.getpid(), start, launcher_fd)
                self._process = _start(
                    [*command, *map(str, about), *path],
                    {**os.environ, **_ONE_THREAD},
                    tuple(fd for fd in (theirs.fileno(), launcher_fd) if fd >= 0),
                    quiet=launcher_fd < 0,
                )
        except MisuseError as error:
            raise StartError(f"workers cannot be started: {error}") from None
        except OSError as error:
            _logger.warning("no process looks after the workers: %s", error)
        finally:
            theirs.close()

    @property
    def pid(self) -> Optional[int]:
        """Process id of the watchdog, while it runs."""
        self.reap()
        return None if self._process is None else self._process.pid

    def guard(self, pid: int) -> None:
        """Have it kill this child of the calling process, if the calling process cannot."""
        start = watchdog.start_of(pid)
        if start is not None:
            self._send(b"%d %d" % (pid, start))

    def guard_folder(self, folder: str) -> None:
        """Have it remove a folder, if the calling process cannot."""
        self._send(watchdog.FOLDER + os.fsencode(folder).hex().encode())

    def reap(self) -> None:
        """Leave no zombie, if the watchdog has ended."""
        if self._process is not None and self._process.poll() is not None:
            self._process = None

    def close(self) -> None:
        """End the watchdog, once nothing is left to clean up. Idempotent."""
        self._send(watchdog.CLOSE)
        process, self._process = self._process, None
        if process is not None:
            try:
                process.wait(_WATCHDOG_TIMEOUT_S)
            except subprocess.TimeoutExpired:
                process.kill()
            finally:
                # Also if interrupted: the message has been sent.
                if process.returncode is None:
                    reap_later(process)
        self.close_line()

    def tell_leaving(self, rank: int) -> None:
        """Tell that this rank will finalize MPI and end, the master with the program's status."""
        self._send(b"%d" % rank)

    def close_line(self) -> None:
        """Close the line only, so that the watchdog goes on: for forked children."""
        self._line.close()

    def _send(self, line: bytes) -> None:
        with contextlib.suppress(OSError):  # it is gone
            self._line.sendall(line + b"\n", NO_SIGPIPE)


def _start(
    command: Sequence[str], environment: Dict[str, str], fds: Sequence[int], quiet: bool = False
) -> subprocess.Popen[bytes]:
    """Start a process that inherits only `fds`, and the output streams unless `quiet`."""
    output = subprocess.DEVNULL if quiet else None
    # Blocked until the process ignores or handles them itself.
    for_stacks = (stacks.BETWEEN_BYTECODES, stacks.AT_ONCE)
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, (*LEFT_TO_MASTER, *for_stacks))
    try:
        return subprocess.Popen(
            command,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            # No user's modules are found here.
            cwd="/",
            # A notebook that restarts its kernel ends the processes of its group one after
            # the other; a worker has to be the last one, because it sweeps.
            start_new_session=True,
            pass_fds=fds,
        )
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)


def reap_later(process: subprocess.Popen[bytes]) -> None:
    """Reap a process in a thread, however long the kernel takes to end it."""
    with contextlib.suppress(RuntimeError):  # no more threads: `subprocess` does it some time
        threading.Thread(target=process.wait, name="synkhronos reaper", daemon=True).start()
