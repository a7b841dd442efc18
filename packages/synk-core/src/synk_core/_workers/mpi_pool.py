"""The workers of a runtime that an MPI launcher has started: the master can neither start nor end
them. `mpi_worker` is their side."""

from __future__ import annotations

import contextlib
import pickle
import time
from typing import Any, Callable, Dict, Iterable, List, Optional, Sequence, Tuple, Union

import synk_shm
from synk_comm.processes import WatchedProcess
from synk_core._wire.channel import ChannelClosed
from synk_core._wire.messages import Failure, GiveUp, Hello, Ready
from synk_core._wire.world import World
from synk_core.exceptions import StartError, WorkerDied

from .interrupts import SIGNAL
from .pool import WorkerPool
from .stacks import StackFile

_NAP_S = 1e-3


class NearProcess(WatchedProcess):
    """A process of this machine that is no child of this one, with the methods of `Popen`."""

    returncode: Optional[int] = None

    def poll(self) -> Optional[int]:
        """Return 0 if it has ended, because its status is its parent's; None while it runs."""
        if self.returncode is None and self.is_gone():
            self.returncode = 0
        return self.returncode


class MpiWorker:
    """One rank of the world, as the master's pool sees it: the methods of `Worker`.

    Attributes:
        is_ready: whether it has sent `Ready`.
        process: None on another host.
        stack_file: where it writes its stacks; None on another host, and until it is ready.
    """

    def __init__(self, world: World, hello: Hello) -> None:
        self.rank = hello.rank
        self.is_ready = False
        self._world = world
        self.stack_file: Optional[StackFile] = None
        self.process: Optional[NearProcess] = None
        if world.is_near(self.rank):
            try:
                self.process = NearProcess(world.members[self.rank].pid)
            except ProcessLookupError:
                world.gone.add(self.rank)
            except OSError:  # this system has no such descriptors
                pass
        self.channel = world.channel(self.rank, hello.tag)
        world.channel(self.rank).send(pickle.dumps(hello))

    def is_gone(self) -> bool:
        """Return whether the process has ended, as far as it shows here."""
        if self.process is not None and self.process.poll() is not None:
            self._world.gone.add(self.rank)
        return self.channel.at_end()

    def exitcode(self, wait_s: float = 1.0) -> Optional[int]:
        """Return None: its status is the launcher's."""
        del wait_s
        return None

    def close(self) -> None:
        self.channel.close()
        if self.stack_file is not None:
            self.stack_file.close()
        if self.process is not None:
            self.process.close()


class MpiPool(WorkerPool):
    """The other ranks of the world, as workers of one runtime."""

    def __init__(self, world: World, hellos: Sequence[Hello]) -> None:
        super().__init__(())
        self._world = world
        self._first: Optional[int] = None
        try:
            for hello in hellos:
                self._workers.append(MpiWorker(world, hello))  # type: ignore[arg-type] # see there
        except ChannelClosed as error:
            self.kill()
            raise StartError(f"{error}; start the program again") from error

    def _close_in_child(self) -> None:
        synk_shm.leave()  # MPI is the parent's alone

    @property
    def pids(self) -> Tuple[int, ...]:
        """Process ids on their hosts, in rank order without the master."""
        return tuple(self._world.members[worker.rank].pid for worker in self._workers)

    def interrupt(self, serial: int) -> None:
        """Interrupt the workers that compute, because this order is given up.

        To those on other hosts the launcher brings Ctrl-C; this is the word that they wait for.
        """
        word = pickle.dumps(GiveUp(serial))
        workers: List[Any] = list(self._workers)
        for worker in workers:
            if worker.process is not None:
                worker.process.send_signal(SIGNAL)
            else:
                with contextlib.suppress(ChannelClosed):
                    worker.channel.send(word)

    def _name(self, rank: int) -> str:
        return f"rank {rank} on host {self._world.members[rank].host}"

    def _await(self, workers: Sequence[Any], timeout_s: float) -> List[Any]:
        until = time.monotonic() + timeout_s
        while True:
            found = [worker for worker in workers if worker.channel.pending()]
            if found or time.monotonic() >= until:
                return found
            if any(worker.is_gone() for worker in workers):
                return []
            time.sleep(_NAP_S)

    def _answer(self, worker: Any) -> Union[Ready, Failure, None]:
        answer = super()._answer(worker)
        if isinstance(answer, Ready) and worker.process is not None:
            with contextlib.suppress(OSError):
                worker.stack_file = StackFile.of(worker.process.pid, answer.stacks_fd)
        return answer

    def require_started(self, failed: Sequence[Failure]) -> None:
        """Return if every worker has started or still may.

        Raises:
            StartError: one has reported a failure, or has ended.
        """
        for failure in failed:
            raise StartError(f"{self._name(failure.rank)} failed to start:\n{failure.traceback}")
        gone = self._first_gone()
        if gone is not None:
            self.lose(gone.rank)
            raise StartError(f"{self._name(gone.rank)} ended during its start; its output is above")

    def check(self, doing: Union[str, Callable[[int], str]]) -> None:
        """Return at once if all workers are alive, as far as it shows here.

        Raises:
            WorkerDied: one has ended.
        """
        gone = self._first_gone()
        if gone is not None:
            raise self.lose(gone.rank, doing(gone.rank) if callable(doing) else doing)

    def blame(self, rank: int) -> None:
        """Take this rank for the first that has ended: others may have ended because of that.

        Args:
            rank: -1 if MPI has failed without naming one.
        """
        if rank >= 0:
            self._first = rank
        else:
            self._world.lost = self._world.lost or "MPI has failed"

    def _first_gone(self) -> Any:
        workers = list(self._workers)
        gone = (worker for worker in workers if worker.rank == self._first or worker.is_gone())
        return max(gone, key=lambda worker: worker.rank == self._first, default=None)

    def lose(self, rank: int, doing: str = "in its start") -> WorkerDied:
        """Note that a rank is lost, so that no further runtime can start; return the error."""
        host = self._world.members[rank].host
        self._world.gone.add(rank)
        self._world.lost = self._world.lost or f"rank {rank} on host {host} has ended"
        return WorkerDied(rank, None, doing.removesuffix(f" on host {host}"), host=host)

    def stacks(
        self, ranks: Optional[Iterable[int]] = None, timeout_s: float = 0.5
    ) -> Dict[int, str]:
        """Return the stacks of the workers on this host; of others where to find them."""
        wanted = {worker.rank: worker for worker in list(self._workers)}
        if ranks is not None:
            wanted = {rank: wanted[rank] for rank in ranks if rank in wanted}
        near = {
            rank: (worker.process, worker.stack_file)
            for rank, worker in wanted.items()
            if worker.process is not None and worker.stack_file is not None
        }
        found = self._stacks.gather(near, timeout_s)
        for rank in wanted:
            member = self._world.members[rank]
            found.setdefault(
                rank,
                f"process {member.pid} on host {member.host}: there, `py-spy dump --pid "
                f"{member.pid}` shows its stack",
            )
        return found

    def stop(self) -> None:
        """Have all workers wait for another runtime."""
        self.kill()

    def kill(self) -> None:
        """End this runtime in all workers. One that computes notices when that is over."""
        for worker in list(self._workers):
            worker.close()
            with contextlib.suppress(ValueError):
                self._workers.remove(worker)
