"""The process of one worker, as its master has it: a `synk_comm.processes.Process`, which the
kernel kills when the master ends, and a socket pair for commands."""

from __future__ import annotations

import contextlib
import os
import pickle
import threading
import time
from signal import SIGKILL
from typing import Dict, Iterator, Optional, Sequence

from synk_comm import MisuseError
from synk_comm.processes import Process, stat
from synk_core._text import with_cure
from synk_core._wire.channel import Channel, ChannelClosed
from synk_core._wire.messages import LEFT_TO_MASTER, Hello
from synk_core.exceptions import StartError

from . import stacks
from .interrupts import SIGNAL

_LONGEST_DELAY_S = 0.05

_PF_EXITING = 0x4  # include/linux/sched.h: getting shut down


class Worker:
    """One worker process and the master's channel to it.

    Attributes:
        host: None, because it is this one.
        is_ready: whether the worker has sent `Ready`.
    """

    host: Optional[str] = None

    def __init__(self, hello: Hello, environment: Dict[str, str], fds: Sequence[int]) -> None:
        self.rank = hello.rank
        self.is_ready = False
        self._looking = threading.RLock()
        self._status_is_known = True
        self.stack_file = stacks.StackFile()
        self.channel, theirs = Channel.pair()
        own = (theirs.fileno(), self.stack_file.fd)
        with theirs:
            try:
                self.process = Process(
                    "synk_core._workers.worker",
                    "main",
                    own,
                    path=hello.sys_path,
                    env=environment,
                    fds=(*own, *fds),
                    cwd="/",  # no user's modules are found here
                    # Until it ignores or handles them itself.
                    blocked=(*LEFT_TO_MASTER, *stacks.SIGNALS),
                )
            except (OSError, MisuseError) as error:
                self.channel.close()
                self.stack_file.close()
                why = with_cure(error)
                raise StartError(f"cannot start the worker of rank {hello.rank}: {why}") from error
        # If the process is gone already, `wait_ready` raises.
        with contextlib.suppress(ChannelClosed):
            self.channel.send(pickle.dumps(hello))

    @property
    def pid(self) -> int:
        """The number of its process."""
        return self.process.pid

    def has_answered(self) -> bool:
        """Return whether it has sent something, or has ended."""
        return self.channel.pending()

    def interrupt(self, serial: int) -> None:
        """Interrupt it if it computes, because this order is given up."""
        del serial  # it is in shared memory
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, SIGNAL)

    def kill(self) -> None:
        """Kill it, with what it has started, such as a compiler."""
        if self.is_alive():
            self.process.signal_group(SIGKILL)

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

    def reap_later(self) -> None:
        """Reap the process in a thread, however long the kernel takes to end it."""
        with contextlib.suppress(RuntimeError):  # no more threads: `subprocess` does it some time
            threading.Thread(
                target=self.process.wait, name="synkhronos reaper", daemon=True
            ).start()

    def close(self) -> None:
        """Close the channel and the process's pipes. Idempotent, in any thread."""
        self.channel.close()
        self.stack_file.close()
        self.process.close()

    close_in_child = close


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
        fields = stat(pid)
        flags, status = int(fields[6]), int(fields[49])
    except (OSError, IndexError, ValueError):
        return None
    # The kernel says 0, too, to a process that may not read the status.
    return os.waitstatus_to_exitcode(status) if flags & _PF_EXITING and status else None
