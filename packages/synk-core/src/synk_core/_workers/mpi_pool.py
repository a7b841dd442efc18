"""The workers of a runtime that an MPI launcher has started: the master can neither start nor end
them. `mpi_worker` is their side."""

from __future__ import annotations

import contextlib
import pickle
from functools import partial
from typing import Optional, Sequence

from synk_core._wire.channel import ChannelClosed
from synk_core._wire.messages import Hello
from synk_core._wire.world import World
from synk_core.exceptions import StartError, WorkerDied

from .interrupts import SIGNAL
from .pool import AnyWorker, WorkerPool
from .stacks import StackFile


class MpiWorker:
    """One rank of the world, as the master's pool sees it: the methods of `Worker`.

    Attributes:
        host: its host's name.
        is_ready: whether it has sent `Ready`.
        process: None on another host.
        stack_file: where it writes its stacks; None on another host, and until it is ready.

    Raises:
        StartError: it has ended.
    """

    def __init__(self, world: World, hello: Hello) -> None:
        self.rank = hello.rank
        self.host, self.pid = world.members[self.rank].host, world.members[self.rank].pid
        self.is_ready = False
        self._world = world
        self.stack_file: Optional[StackFile] = None
        self.process = world.process(self.rank)
        self.channel = world.channel(self.rank, hello.tag)
        try:
            world.channel(self.rank).send(pickle.dumps(hello))
        except ChannelClosed as error:
            raise StartError(f"{error}; start the program again") from error

    def has_answered(self) -> bool:
        """Return whether it has sent something, or has ended."""
        return self.channel.pending() or self.is_gone()

    def interrupt(self, serial: int) -> None:
        """Interrupt it if it computes, because this order is given up.

        To another host the launcher brings Ctrl-C; this is the word that is waited for there.
        """
        if self.process is not None:
            self.process.send_signal(SIGNAL)
        else:
            with contextlib.suppress(ChannelClosed):
                self.channel.send(serial.to_bytes(8, "little"))

    def is_gone(self) -> bool:
        """Return whether the process has ended, as far as it shows here."""
        self._world.look_at(self.rank)
        return self.channel.at_end()

    def exitcode(self, wait_s: float = 1.0) -> Optional[int]:
        """Return None: its status is the launcher's."""
        del wait_s
        return None

    def has_ended(self, wait_s: float) -> bool:
        """Return True: it is not waited for. One that computes notices the end after that."""
        del wait_s
        return True

    def kill(self) -> None:
        """Do nothing: the end of the channel ends this runtime in it."""

    reap_later = close_in_child = kill  # MPI is the parent's alone

    def close(self) -> None:
        """End this runtime in it. Idempotent."""
        self.channel.close()
        if self.stack_file is not None:
            self.stack_file.close()


class MpiPool(WorkerPool):
    """The other ranks of the world, as workers of one runtime."""

    def __init__(self, world: World, hellos: Sequence[Hello]) -> None:
        self._world = world
        super().__init__([partial(MpiWorker, world, hello) for hello in hellos])

    def blame(self, rank: int) -> None:
        """Take this rank for the first that has ended: others may have ended because of that.

        Args:
            rank: -1 if MPI has failed without naming one.
        """
        if rank >= 0:
            self._first = rank
        else:
            self._world.lost = self._world.lost or "MPI has failed"

    def _died(self, worker: AnyWorker, doing: str) -> WorkerDied:
        # No further runtime can start.
        self._world.gone.add(worker.rank)
        lost = f"rank {worker.rank} on host {worker.host} has ended"
        self._world.lost = self._world.lost or lost
        return super()._died(worker, doing)
