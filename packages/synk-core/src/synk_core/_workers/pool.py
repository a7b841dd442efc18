"""All workers of a runtime: start, watch, query and stop them. Independent of Theano.

Workers are new processes, not forks of one that may have threads or a CUDA context. `processes`
starts each of them.
"""

from __future__ import annotations

import contextlib
import logging
import os
import pickle
import subprocess
import time
import weakref
from dataclasses import replace
from functools import partial
from multiprocessing.process import current_process
from typing import Any, Callable, Dict, Iterable, List, Optional, Sequence, Tuple, Union

import synk_comm
import synk_shm
from synk_comm.processes import import_path, interpreter
from synk_core import engine
from synk_core._graph import environment
from synk_core._graph.devices.assignment import Assignment
from synk_core._rank.workplace import Workplace
from synk_core._text import with_cure
from synk_core._wire.channel import ChannelClosed
from synk_core._wire.messages import ArrayRef, Failure, Hello, Ready
from synk_core._wire.settings import Settings
from synk_core.exceptions import StartError, WorkerDied

from .processes import Worker
from .stacks import StackFile, Stacks

_logger = logging.getLogger(__name__)

START_TIMEOUT_S = 180.0
"""Seconds for importing Theano, on a machine that is busy compiling for other ranks."""

STOP_TIMEOUT_S = 0.8
"""Seconds from the end of the channel until SIGKILL."""

KILL_TIMEOUT_S = 2.0
"""Seconds to wait after SIGKILL: a process has its GPU's memory until the kernel is done with it,
which takes 0.3 s, or more than one on a busy GPU. Then a thread reaps it."""

AnyWorker = Any
"""A `Worker`, or what has its methods."""

_TICK_S = 0.05
_NAP_S = 1e-3


class WorkerPool:
    """All workers of a runtime.

    Args:
        starts: each makes a worker, in rank order without the master.
        folder: the folder to remove if this process is killed while they start; None for none.
    """

    def __init__(
        self, starts: Sequence[Callable[[], AnyWorker]] = (), folder: Optional[str] = None
    ) -> None:
        self._workers: List[AnyWorker] = []
        self._first: Optional[int] = None
        self._stacks = Stacks()
        self._guard: Optional[subprocess.Popen[bytes]] = None
        if folder is not None:
            with contextlib.suppress(OSError):  # there is no shell
                self._guard = _guard(folder)
        # A child that the user forks would hold the workers' lifelines open.
        os.register_at_fork(after_in_child=partial(_close_in_child, weakref.ref(self)))
        try:
            for start in starts:
                self._workers.append(start())
        except BaseException:
            self.kill()
            raise

    @property
    def pids(self) -> Tuple[int, ...]:
        """Process ids on their hosts, in rank order without the master."""
        return tuple(worker.pid for worker in self._workers)

    def interrupt(self, serial: int) -> None:
        """Interrupt the workers that compute, because this order is given up."""
        for worker in list(self._workers):
            worker.interrupt(serial)

    def wait_ready(
        self,
        timeout_s: float = START_TIMEOUT_S,
        tick: Optional[Callable[[List[int]], None]] = None,
    ) -> None:
        """Wait until every worker is ready, watching all of them at once.

        Args:
            tick: called with the ranks that are not ready, at least every 0.1 s; an exception from
                it ends the wait.

        Raises:
            WorkerDied: one was killed by a signal.
            StartError: one could not start; the message names rank, cause and cure.
        """
        deadline = time.monotonic() + timeout_s
        late = [worker for worker in self._workers if not worker.is_ready]
        while late:
            until = min(time.monotonic() + _TICK_S, deadline)
            while not (found := [worker for worker in late if worker.has_answered()]):
                if time.monotonic() >= until:
                    break
                time.sleep(_NAP_S)
            self.require_started(self._start_failures(found))
            late = [worker for worker in late if not worker.is_ready]
            ranks = [worker.rank for worker in late]
            if ranks and tick is not None:
                tick(ranks)
            if ranks and time.monotonic() > deadline:
                raise StartError(
                    f"{self._name(ranks[0])} was not ready in {timeout_s:g} s; the machine "
                    f"may be busy, or {engine.TITLE}'s compile directory be locked (see "
                    f"`{engine.NAME}-cache unlock`)"
                )

    def _start_failures(self, workers: Sequence[AnyWorker]) -> List[Failure]:
        """Return the failures that these workers have sent; note which are ready."""
        found = []
        for worker in workers:
            with contextlib.suppress(ChannelClosed, TimeoutError):
                answer = pickle.loads(worker.channel.recv(_TICK_S))
                if isinstance(answer, Failure):
                    found.append(answer)
                elif isinstance(answer, Ready):
                    worker.is_ready = True
                    if worker.process is not None and answer.stacks_fd >= 0:
                        with contextlib.suppress(OSError):
                            worker.stack_file = StackFile.of(worker.pid, answer.stacks_fd)
                else:
                    raise StartError(f"{self._name(worker.rank)} answered {answer!r}")
        return found

    def _name(self, rank: int) -> str:
        host = {worker.rank: worker.host for worker in self._workers}.get(rank)
        return f"the worker of rank {rank}" if host is None else f"rank {rank} on host {host}"

    def check_joining(self) -> None:
        """Return at once if no worker has reported that it failed to join.

        Raises:
            StartError: one has.
        """
        answered = [worker for worker in self._workers if worker.channel.pending()]
        failed = self._start_failures(answered)
        if failed:
            self.require_started(failed)

    def require_started(self, failed: Sequence[Failure]) -> None:
        """Return if every worker has started or still may.

        Raises:
            WorkerDied: one was killed by a signal.
            StartError: one has reported a failure, or has ended.
        """
        gone = self._first_gone()
        died = None if gone is None else self._died(gone, "in its start")
        if died is not None and died.signal is not None:
            raise died
        for failure in failed:
            why = with_cure(StartError(failure.traceback.rstrip()))
            raise StartError(f"{self._name(failure.rank)} failed to start:\n{why}")
        if died is not None:
            raise StartError(
                f"{self._name(died.rank)} ended during its start with exit status "
                f"{'unknown' if died.exitcode is None else died.exitcode}; its output is above. "
                f"Check that `{interpreter()} -c 'import synk_core'` runs"
            )

    def send(self, payload: bytes, doing: str) -> None:
        """Send one message to every worker.

        Raises:
            WorkerDied: one has ended.
        """
        for worker in self._workers:
            try:
                worker.channel.send(payload)
            except (ChannelClosed, TimeoutError):
                raise self._died(worker, doing) from None

    def check(self, doing: Union[str, Callable[[int], str]]) -> None:
        """Return at once if all workers are alive, as far as it shows here.

        Args:
            doing: the runtime's activity in words, or a function that returns that of a rank.

        Raises:
            WorkerDied: one has ended; among several, the error names one killed by a signal.
        """
        gone = self._first_gone()
        if gone is not None:
            raise self._died(gone, doing(gone.rank) if callable(doing) else doing)

    def _died(self, worker: AnyWorker, doing: str) -> WorkerDied:
        doing = doing.removesuffix(f" on host {worker.host}")
        return WorkerDied(worker.rank, worker.exitcode(), doing, host=worker.host)

    def _first_gone(self) -> Optional[AnyWorker]:
        """Return the worker whose end caused the others to end; None if all are alive."""
        gone = [one for one in list(self._workers) if one.is_gone() or one.rank == self._first]
        if not gone:
            return None
        deadline = time.monotonic() + 1.0
        for worker in gone:
            # A channel may end a moment before its process does.
            worker.exitcode(deadline - time.monotonic())
        # The one that caused it may have a lot to release, and not have closed its channel yet.
        gone += [worker for worker in list(self._workers) if worker.is_gone() or worker.exitcode(0)]
        return min(gone, key=self._cause_order)

    def _cause_order(self, worker: AnyWorker) -> int:
        """Return a key that sorts workers: that which MPI has reported first; then killed by a
        signal, ended, silent."""
        status = worker.exitcode(0.0)
        return -1 if worker.rank == self._first else 2 if status is None else int(status >= 0)

    def stacks(
        self, ranks: Optional[Iterable[int]] = None, timeout_s: float = 0.5
    ) -> Dict[int, str]:
        """Return the Python stacks of all threads of these workers (None: of all), by rank.

        The workers write them, whatever they compute. For a worker that cannot, because it is
        stopped, stuck in the kernel, gone, or on another host, the text says so. Blocks for
        `timeout_s` seconds at most; any thread may call it.
        """
        wanted = None if ranks is None else set(ranks)
        workers = [one for one in list(self._workers) if wanted is None or one.rank in wanted]
        asked = {
            worker.rank: (worker.process, worker.stack_file)
            for worker in workers
            if worker.process is not None and worker.stack_file is not None
        }
        found = self._stacks.gather(asked, timeout_s)
        for worker in workers:
            found.setdefault(
                worker.rank,
                f"process {worker.pid} on host {worker.host}: there, `py-spy dump --pid "
                f"{worker.pid}` shows its stack",
            )
        return found

    def failures(self, ranks: Iterable[int], serial: int, timeout_s: float = 10.0) -> List[Failure]:
        """Return the failures that these ranks have reported in command `serial`.

        All messages are read, because a worker whose messages are not read would block.
        """
        deadline = time.monotonic() + timeout_s
        wanted = set(ranks)
        found = []
        for worker in [worker for worker in self._workers if worker.rank in wanted]:
            answer = None
            with contextlib.suppress(ChannelClosed, TimeoutError):
                while not isinstance(answer, Failure) or answer.serial != serial:
                    left = max(deadline - time.monotonic(), 0.001)
                    answer = pickle.loads(worker.channel.recv(left))
                found.append(answer)
        return found

    def stop(self) -> None:
        """Stop all workers; kill those that do not end within STOP_TIMEOUT_S.

        Takes 2.9 s at most, including a `kill()` after it, whatever the workers do; more than 0.9
        only where the kernel is slow to end one. Those of a launcher wait for another runtime.
        """
        for worker in self._workers:
            worker.channel.close()
        deadline = time.monotonic() + STOP_TIMEOUT_S
        for worker in self._workers:
            worker.has_ended(deadline - time.monotonic())
        self.kill()

    def kill(self) -> None:
        """Kill all workers, and wait at most KILL_TIMEOUT_S for the kernel to end them."""
        for worker in self._workers:
            worker.kill()
        deadline = time.monotonic() + KILL_TIMEOUT_S
        # Remove them one by one, so that an interrupted kill can be repeated, also by a thread.
        for worker in list(self._workers):
            if not worker.has_ended(deadline - time.monotonic()):
                _logger.warning("process %d is killed, but not gone yet", worker.pid)
                worker.reap_later()
            worker.close()
            with contextlib.suppress(ValueError):
                self._workers.remove(worker)
        if self._guard is not None:
            self._guard.kill()
            self._guard.communicate()


def _close_in_child(reference: weakref.ref[WorkerPool]) -> None:
    pool = reference()
    if pool is not None:
        for worker in pool._workers:
            worker.close_in_child()
        if pool._guard is not None and pool._guard.stdin is not None:
            pool._guard.stdin.close()
        synk_shm.leave()


def hellos_of(
    master: Workplace,
    settings: Settings,
    ranks: Assignment,
    times: ArrayRef,
    flight: ArrayRef,
) -> List[Hello]:
    """Return the first message to each rank but the master's; it has no ticket yet."""
    options, path = engine.options(), import_path()
    folder, authkey = environment.current_folder(), bytes(current_process().authkey)
    return [
        Hello(
            rank=rank,
            size=master.size,
            master=master.rank,
            settings=settings,
            ticket="",
            sys_path=path,
            directory=folder,
            adapter=engine.ADAPTER,
            options=options,
            times=times,
            flight=flight,
            contexts=ranks.contexts(rank),
            authkey=authkey,
        )
        for rank in range(master.size)
        if rank != master.rank
    ]


def start_workers(
    hellos: Sequence[Hello],
    on_device: bool,
    group: Optional[synk_comm.Group],
) -> WorkerPool:
    """Start a process of this machine for each worker; returns while they start.

    Args:
        group: for them to join; None if there are no workers.

    Raises:
        StartError: a process could not be started; the others are ended.
    """
    if group is None:
        return WorkerPool()
    variables = environment.worker_environment(len(hellos) + 1, on_device)
    tickets = [replace(one, ticket=group.ticket(one.rank)) for one in hellos]
    starts = [partial(Worker, hello, variables, group.fds) for hello in tickets]
    return WorkerPool(starts, group.folder)


def _guard(folder: str) -> subprocess.Popen[bytes]:
    """Start a shell that removes a folder with sockets when this process is gone.

    Ranks remove it once all have joined, but the kernel kills them with this process.
    """
    script = 'trap "" INT TERM HUP; read -r line; sleep 0.1; rm -rf -- "$FOLDER"'
    return subprocess.Popen(
        ["/bin/sh", "-c", script],
        env={**os.environ, "FOLDER": folder},  # command lines are everybody's to read
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        cwd="/",
        start_new_session=True,
    )
