"""One worker, as the master has it: its process, and a channel to it."""

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
from synk_core._wire.world import World
from synk_core.exceptions import StartError

from . import stacks
from .interrupts import SIGNAL

_NAP_S = 1e-3

_PF_EXITING = 0x4  # include/linux/sched.h: getting shut down


class Worker:
    """A worker that the master has started, and that the kernel kills when the master ends.

    It `is_ready` when it has sent `Ready`.
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
                    blocked=(*LEFT_TO_MASTER, *stacks.SIGNALS),  # until it handles them
                )
            except (OSError, MisuseError) as error:
                self.channel.close()
                self.stack_file.close()
                why = with_cure(error)
                raise StartError(f"cannot start the worker of rank {hello.rank}: {why}") from error
        self.pid = self.process.pid
        # If the process is gone already, `wait_ready` raises.
        with contextlib.suppress(ChannelClosed):
            self.channel.send(pickle.dumps(hello))

    def interrupt(self, _serial: int) -> None:
        """Interrupt it if it computes an order that its flight record says to give up."""
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, SIGNAL)

    def kill(self) -> None:
        """Kill it and its children, such as a compiler."""
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

        A status other than 0 is known while the kernel still takes the process apart, for seconds
        on a busy GPU.
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
        """Wait for `wait_s` seconds; return whether the process has released all that it held."""
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


class MpiWorker:
    """Another rank of a launcher, with the methods of `Worker`; the master can neither start nor
    end its process, which is None on another host, and so is its file of stacks."""

    def __init__(self, world: World, hello: Hello) -> None:
        self.rank, self._world = hello.rank, world
        self.host, self.pid = world.members[self.rank].host, world.members[self.rank].pid
        self.is_ready = False
        self.stack_file: Optional[stacks.StackFile] = None
        self.process = world.process(self.rank)
        self.channel = world.channel(self.rank, hello.tag)
        try:
            world.channel(self.rank).send(pickle.dumps(hello))
        except ChannelClosed as error:
            raise StartError(f"{error}; start the program again") from error

    def interrupt(self, serial: int) -> None:
        """Interrupt it if it computes this order; see `interrupts.obey`."""
        if self.process is not None:
            self.process.send_signal(SIGNAL)
        else:
            with contextlib.suppress(ChannelClosed):
                self.channel.send(serial.to_bytes(8, "little"))

    def is_gone(self) -> bool:
        """Return whether the process has ended, as far as it shows here."""
        self._world.look_at(self.rank)
        return self.channel.at_end()

    def exitcode(self, _wait_s: float = 1.0) -> Optional[int]:
        """Return None: its status is the launcher's."""
        return None

    def has_ended(self, _wait_s: float) -> bool:
        """Return True: if it computes, it notices the end of its channel after that."""
        return True

    def kill(self) -> None:
        """Do nothing: the end of its channel ends the runtime there."""

    reap_later = close_in_child = kill  # MPI is the parent's alone

    def close(self) -> None:
        """End the runtime there. Idempotent."""
        self.channel.close()
        if self.stack_file is not None:
            self.stack_file.close()


def _looks(wait_s: float) -> Iterator[None]:
    """Yield for each time to look, for `wait_s` seconds, and in any case once."""
    deadline = time.monotonic() + wait_s
    yield
    while time.monotonic() < deadline:
        time.sleep(_NAP_S)
        yield


def _status_while_ending(pid: int) -> Optional[int]:
    """Return the status that a process will end with, as in `subprocess`; None while it runs.

    The flags are field 9, and the status is field 52 of proc_pid_stat(5).
    """
    try:
        fields = stat(pid)
        flags, status = int(fields[6]), int(fields[49])
    except (OSError, IndexError, ValueError):
        return None
    # A process that may not see the status reads 0.
    return os.waitstatus_to_exitcode(status) if flags & _PF_EXITING and status else None
