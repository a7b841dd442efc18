"""All workers of a runtime: start, watch, ask, stop. Knows nothing of Theano.

Workers are fresh processes, not forks of one that may hold threads or a CUDA context. How each of
them is started and held is told in `processes`.
"""

from __future__ import annotations

import contextlib
import logging
import os
import pickle
import select
import sys
import time
import weakref
from multiprocessing.process import current_process
from typing import Callable, Dict, Iterable, List, Optional, Sequence, Tuple, Union

import synk_comm
import synk_shm
from synk_theano._graph import environment
from synk_theano._rank.workplace import Workplace
from synk_theano._wire.channel import ChannelClosed
from synk_theano._wire.messages import ArrayRef, Failure, Hello, Ready, Settings
from synk_theano.exceptions import StartError, WorkerDied

from .processes import Keeper, Worker, reap_later
from .stacks import Stacks

_logger = logging.getLogger(__name__)

START_TIMEOUT_S = 180.0
"""For importing Theano, on a machine that is busy compiling for other ranks."""

STOP_TIMEOUT_S = 0.8
"""From the end of the channel until SIGKILL."""

KILL_TIMEOUT_S = 0.3
"""From SIGKILL until a process is left to a thread: it may be stuck in the kernel."""

_TICK_S = 0.05


class WorkerPool:
    """All workers of a runtime.

    Args:
        starts: what each is told first, and its environment.
        fds: descriptors that all of them inherit.
        folder: that is to be removed, whoever is killed; None for none.
        keeper: that looks after them; None for a new one.
    """

    def __init__(
        self,
        starts: Sequence[Tuple[Hello, Dict[str, str]]],
        fds: Sequence[int] = (),
        folder: Optional[str] = None,
        keeper: Optional[Keeper] = None,
    ) -> None:
        self._workers: List[Worker] = []
        self._stacks = Stacks()
        # First, so that at no moment there is a worker that nobody looks after.
        self._keeper = keeper or (Keeper(starts[0][0].sys_path) if starts else None)
        if self._keeper is not None and folder is not None:
            self._keeper.guard_folder(folder)
        # A child that the user forks would hold the workers' lifelines.
        os.register_at_fork(after_in_child=_calling(weakref.WeakMethod(self._release_in_child)))
        try:
            for hello, environment in starts:
                worker = Worker(hello, environment, fds)
                self._workers.append(worker)
                if self._keeper is not None:
                    self._keeper.guard(worker.process.pid)
        except BaseException:
            self.kill()
            self.dismiss_keeper()
            raise

    def _release_in_child(self) -> None:
        for worker in self._workers:
            worker.release()
        if self._keeper is not None:
            self._keeper.release()
        synk_shm.leave()

    @property
    def pids(self) -> Tuple[int, ...]:
        """Process ids, in rank order without the master."""
        return tuple(worker.process.pid for worker in self._workers)

    @property
    def keeper_pid(self) -> Optional[int]:
        """Process id of the keeper; None if there is none."""
        return None if self._keeper is None else self._keeper.pid

    def wait_ready(
        self,
        timeout_s: float = START_TIMEOUT_S,
        tick: Optional[Callable[[List[int]], None]] = None,
    ) -> None:
        """Wait until every worker has said that it is ready. All are watched at once.

        Args:
            tick: called with the ranks that are not ready, at least every 0.1 s; what it raises
                ends the wait.

        Raises:
            WorkerDied: one was killed by a signal.
            StartError: one could not start; the message names rank, cause and cure.
        """
        deadline = time.monotonic() + timeout_s
        waiting = select.poll()
        starting = {w.channel.fileno(): w for w in self._workers if not w.is_ready}
        for fd in starting:
            waiting.register(fd, select.POLLIN)
        while starting:
            events = waiting.poll(1000 * max(min(_TICK_S, deadline - time.monotonic()), 0.0))
            failed = []
            for fd, _ in events:
                answer = _answer(starting[fd])
                if isinstance(answer, Ready):
                    starting[fd].is_ready = True
                    del starting[fd]
                    waiting.unregister(fd)
                elif answer is not None:
                    failed.append(answer)
            self.require_started(failed)
            ranks = [worker.rank for worker in starting.values()]
            if ranks and tick is not None:
                tick(ranks)
            if ranks and time.monotonic() > deadline:
                raise StartError(
                    f"the worker of rank {ranks[0]} was not ready in {timeout_s:g} s; the machine "
                    f"may be busy, or Theano's compile directory be locked (see `theano-cache "
                    f"unlock`)"
                )

    def check_joining(self) -> None:
        """Return at once if no worker has told of a failure, while they meet.

        Raises:
            StartError: one has, and will not come.
        """
        answers = [_answer(worker) for worker in self._workers if worker.channel.pending()]
        failed = [answer for answer in answers if isinstance(answer, Failure)]
        if failed:
            self.require_started(failed)

    def require_started(self, failed: Sequence[Failure]) -> None:
        """Raise the cause, if of any worker is known that it cannot start.

        Raises:
            WorkerDied: one was killed by a signal.
            StartError: one has failed, as it says itself, or has ended.
        """
        gone = self._first_gone()
        status = None if gone is None else gone.exitcode()
        if gone is not None and status is not None and status < 0:
            raise WorkerDied(gone.rank, status, "in its start")
        for failure in failed:
            raise StartError(
                f"the worker of rank {failure.rank} failed in its start:\n{failure.traceback}"
            )
        if gone is not None:
            raise StartError(
                f"the worker of rank {gone.rank} ended during its start with exit status "
                f"{'unknown' if status is None else status}; what it printed is above. Can "
                f"`{sys.executable} -c 'import synk_theano'` run?"
            )

    def send(self, payload: bytes, doing: str) -> None:
        """Send one message to every worker.

        Raises:
            WorkerDied: one is gone.
        """
        for worker in self._workers:
            try:
                worker.channel.send(payload)
            except (ChannelClosed, TimeoutError):
                raise WorkerDied(worker.rank, worker.exitcode(), doing) from None

    def check(self, doing: Union[str, Callable[[int], str]]) -> None:
        """Return at once if all workers live.

        Args:
            doing: what the runtime does, in words; or what says this of a rank.

        Raises:
            WorkerDied: one is gone; of several, one that was killed by a signal.
        """
        if self._keeper is not None:
            self._keeper.reap()
        gone = self._first_gone()
        if gone is not None:
            said = doing(gone.rank) if callable(doing) else doing
            raise WorkerDied(gone.rank, gone.exitcode(), said)

    def _first_gone(self) -> Optional[Worker]:
        """The worker whose end is the cause of the others', if any has ended."""
        gone = [worker for worker in list(self._workers) if worker.is_gone()]
        if not gone:
            return None
        deadline = time.monotonic() + 1.0
        for worker in gone:
            # A channel ends a moment before its process does.
            worker.exitcode(max(deadline - time.monotonic(), 0.0))
        gone += [worker for worker in list(self._workers) if worker.is_gone()]
        return min(gone, key=_guilt)

    def stacks(
        self, ranks: Optional[Iterable[int]] = None, timeout_s: float = 0.5
    ) -> Dict[int, str]:
        """The Python stacks of all threads of these workers, or of all, by rank.

        Written by the workers themselves, whatever they compute. Of one that cannot, because it is
        stopped, stuck in the kernel or gone, it is said that it is. Blocks for `timeout_s` seconds
        at most; any thread may ask.
        """
        wanted = None if ranks is None else set(ranks)
        asked = {
            worker.rank: (worker.process, worker.stack_file)
            for worker in list(self._workers)
            if wanted is None or worker.rank in wanted
        }
        return self._stacks.gather(asked, timeout_s)

    def failures(self, ranks: Iterable[int], serial: int, timeout_s: float = 10.0) -> List[Failure]:
        """What these ranks have to say of their failure in command `serial`.

        All of it is read, wanted or not: a worker that nobody listens to would block.
        """
        deadline = time.monotonic() + timeout_s
        wanted = set(ranks)
        found = [
            self._failure(worker, serial, deadline)
            for worker in self._workers
            if worker.rank in wanted
        ]
        return [failure for failure in found if failure is not None]

    def _failure(self, worker: Worker, serial: int, deadline: float) -> Optional[Failure]:
        try:
            while True:
                left = max(deadline - time.monotonic(), 0.001)
                answer = pickle.loads(worker.channel.recv(left))
                if isinstance(answer, Failure) and answer.serial == serial:
                    return answer
        except (ChannelClosed, TimeoutError):
            return None

    def stop(self) -> None:
        """Let all workers go: kill those that do not end within STOP_TIMEOUT_S.

        Takes 1.2 s at most, whatever they do, and so does a `kill()` after it, both together.
        """
        for worker in self._workers:
            worker.channel.close()
        deadline = time.monotonic() + STOP_TIMEOUT_S
        for worker in self._workers:
            worker.exitcode(max(deadline - time.monotonic(), 0.0))
        self.kill()

    def kill(self) -> None:
        """End all workers now, and wait for the kernel to take them, for KILL_TIMEOUT_S."""
        for worker in self._workers:
            if worker.is_alive():
                worker.process.kill()
        deadline = time.monotonic() + KILL_TIMEOUT_S
        # One by one, so that an interrupted kill can be repeated. Another thread may do the same.
        for worker in list(self._workers):
            worker.exitcode(max(deadline - time.monotonic(), 0.0))
            if worker.is_alive():
                _logger.warning("process %d is killed, but not gone yet", worker.process.pid)
                reap_later(worker.process)
            worker.release()
            with contextlib.suppress(ValueError):
                self._workers.remove(worker)

    def dismiss_keeper(self) -> None:
        """Let go of the keeper, when there is no memory left that it might have to remove."""
        if self._keeper is not None:
            self._keeper.dismiss()


def _answer(worker: Worker) -> Union[Ready, Failure, None]:
    """What a worker has to say of its start; None if that is not there yet, or never will be."""
    try:
        answer = pickle.loads(worker.channel.recv(_TICK_S))
    except (ChannelClosed, TimeoutError):
        return None
    if not isinstance(answer, (Ready, Failure)):
        raise StartError(f"the worker of rank {worker.rank} answered {answer!r}")
    return answer


def _guilt(worker: Worker) -> int:
    """Sorts workers that are gone: killed by a signal first, then ended, then just silent."""
    status = worker.exitcode(0.0)
    return 2 if status is None else int(status >= 0)


def _calling(method: weakref.WeakMethod[Callable[[], None]]) -> Callable[[], None]:
    """A function that calls `method` if its object is still there."""

    def call() -> None:
        bound = method()
        if bound is not None:
            bound()

    return call


def start_workers(
    master: Workplace,
    settings: Settings,
    devices: Optional[Sequence[str]],
    group: Optional[synk_comm.Group],
    times: ArrayRef,
    flight: ArrayRef,
    keeper: Optional[Keeper],
) -> WorkerPool:
    """Start a worker for each rank but the master's; returns while they start.

    Args:
        master: this process's rank.
        settings: of the runtime.
        devices: each rank's device, or None for CPU processes.
        group: for them to join; None if there are no workers.
        times, flight: see `Hello`.
        keeper: watches them.

    Raises:
        StartError: a process could not be started; the others are ended.
    """
    if group is None:
        return WorkerPool(())
    variables = environment.worker_environment(master.size, bool(devices))
    options, import_path = environment.theano_options(), environment.import_path()
    folder, authkey = environment.current_folder(), bytes(current_process().authkey)
    starts = [
        (
            Hello(
                rank=rank,
                size=master.size,
                master=master.rank,
                settings=settings,
                ticket=group.ticket(rank),
                sys_path=import_path,
                directory=folder,
                theano_config=options,
                times=times,
                flight=flight,
                device=devices[rank] if devices else None,
                authkey=authkey,
            ),
            variables,
        )
        for rank in range(master.size)
        if rank != master.rank
    ]
    return WorkerPool(starts, group.fds, group.folder, keeper)
