"""All workers of a runtime: start, watch and stop them.

Workers are new processes, not forks of one that may have threads or a CUDA context.
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
from typing import Callable, Dict, Iterable, List, Optional, Sequence, Tuple, Union

import synk_comm
import synk_shm
from synk_comm.processes import import_path, interpreter
from synk_core import engine
from synk_core._graph import environment
from synk_core._graph.devices.assignment import Assignment
from synk_core._rank.workplace import Workplace
from synk_core._text import with_cure
from synk_core._wire.channel import ChannelClosed
from synk_core._wire.messages import ArrayRef, Failure, Hello
from synk_core._wire.settings import Settings
from synk_core._wire.world import World
from synk_core.exceptions import StartError, WorkerDied

from .processes import MpiWorker, Worker
from .stacks import StackFile, Stacks

_logger = logging.getLogger(__name__)

START_TIMEOUT_S = 180.0
"""Seconds for importing Theano, on a machine that is busy compiling for other ranks."""

STOP_TIMEOUT_S = 0.8
"""Seconds from the end of the channel until SIGKILL."""

KILL_TIMEOUT_S = 2.0
"""Seconds to wait after SIGKILL: a process has its GPU's memory until the kernel is done with it,
which takes 0.3 s, or more than one on a busy GPU. Then a thread reaps it."""

AnyWorker = Union[Worker, MpiWorker]

_ANSWER_S = 0.05
_NAP_S = 2e-3


class WorkerPool:
    """All workers of a runtime, which `starts` make in rank order without the master; `folder` is
    removed if this process is killed while they start."""

    def __init__(
        self,
        starts: Sequence[Callable[[], AnyWorker]] = (),
        folder: Optional[str] = None,
        world: Optional[World] = None,
    ) -> None:
        self._workers: List[AnyWorker] = []
        self._world = world
        self._first: Optional[int] = None  # the rank that MPI has reported
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
        """Interrupt the workers that compute: the master gives this order up."""
        for worker in list(self._workers):
            worker.interrupt(serial)

    def wait_ready(
        self, timeout_s: float = START_TIMEOUT_S, tick: Callable[[], None] = lambda: None
    ) -> None:
        """Wait until every worker is ready, or raise the error of one that could not start; `tick`
        is called every few milliseconds, and may raise."""
        deadline = time.monotonic() + timeout_s
        while late := [worker.rank for worker in self._workers if not worker.is_ready]:
            if time.monotonic() > deadline:
                raise StartError(
                    f"{self._name(late[0])} was not ready in {timeout_s:g} s; the machine "
                    f"may be busy, or {engine.TITLE}'s compile directory be locked (see "
                    f"`{engine.NAME}-cache unlock`)"
                )
            tick()
            time.sleep(_NAP_S)
            self.check_start()

    def _name(self, rank: int) -> str:
        host = {worker.rank: worker.host for worker in self._workers}.get(rank)
        return f"the worker of rank {rank}" if host is None else f"rank {rank} on host {host}"

    def check_start(self) -> None:
        """Read the workers' answers to their start; raise the error of one that failed."""
        failed = []
        for worker in self._workers:
            if not worker.channel.pending():
                continue
            with contextlib.suppress(ChannelClosed, TimeoutError):
                answer = pickle.loads(worker.channel.recv(_ANSWER_S))
                if isinstance(answer, Failure):
                    failed.append(answer)
                    continue
                worker.is_ready = True
                if worker.process is not None and answer.stacks_fd >= 0:
                    with contextlib.suppress(OSError):
                        worker.stack_file = StackFile.of(worker.pid, answer.stacks_fd)
        self.require_started(failed)

    def require_started(self, failed: Sequence[Failure]) -> None:
        """Return if every worker has started or still may; raise WorkerDied if one was killed by a
        signal, else StartError."""
        gone = self._first_gone()
        died = None if gone is None else self._error_of(gone, "in its start")
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
        """Send one message to every worker; raise WorkerDied if one has ended."""
        for worker in self._workers:
            try:
                worker.channel.send(payload)
            except (ChannelClosed, TimeoutError):
                raise self._error_of(worker, doing) from None

    def check(self, doing: Union[str, Callable[[int], str]]) -> None:
        """Return at once if all workers are alive, as far as it shows here; else raise WorkerDied,
        with the activity of the runtime, or of the rank, in words."""
        gone = self._first_gone()
        if gone is not None:
            raise self._error_of(gone, doing(gone.rank) if callable(doing) else doing)

    def blame(self, rank: int) -> None:
        """Take a rank of a launcher for the first that has ended: MPI has reported it, or has
        failed without naming one (-1). Others may have ended because of that."""
        if self._world is not None and rank >= 0:
            self._first = rank
        elif self._world is not None:
            self._world.lost = self._world.lost or "MPI has failed"

    def _error_of(self, worker: AnyWorker, doing: str) -> WorkerDied:
        doing = doing.removesuffix(f" on host {worker.host}")
        if self._world is not None:  # no further runtime can start
            self._world.gone.add(worker.rank)
            lost = f"rank {worker.rank} on host {worker.host} has ended"
            self._world.lost = self._world.lost or lost
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
        """Return a key that sorts workers: reported by MPI, killed by a signal, ended, silent."""
        status = worker.exitcode(0.0)
        return -1 if worker.rank == self._first else 2 if status is None else int(status >= 0)

    def stacks(
        self, ranks: Optional[Iterable[int]] = None, timeout_s: float = 0.5
    ) -> Dict[int, str]:
        """Return the Python stacks of all threads of these workers (None: of all), by rank; or why
        there are none. Blocks for `timeout_s` seconds at most; any thread may call it."""
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
        """Return the failures of these ranks in order `serial`; read all messages up to these,
        because a worker blocks if its messages are not read."""
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

        Takes 2.9 s at most, including a `kill()` after it; more than 0.9 only if the kernel is slow
        to end one. Those of a launcher wait for another runtime.
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
    """Return the first message to each worker, without a ticket."""
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
    """Start a process of this machine for each worker; return while they start. All are ended if
    one could not be started. Without workers there is no group."""
    if group is None:
        return WorkerPool()
    variables = environment.worker_environment(len(hellos) + 1, on_device)
    tickets = [replace(one, ticket=group.ticket(one.rank)) for one in hellos]
    starts = [partial(Worker, hello, variables, group.fds) for hello in tickets]
    return WorkerPool(starts, group.folder)


def _guard(folder: str) -> subprocess.Popen[bytes]:
    """Start a shell that removes a folder with sockets when this process is gone, before ranks do:
    the kernel kills them with it."""
    script = 'trap "" INT TERM HUP; read -r line; sleep 0.1; rm -rf -- "$FOLDER"'
    return subprocess.Popen(
        ["/bin/sh", "-c", script],
        env={**os.environ, "FOLDER": folder},  # all users can read command lines
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        cwd="/",
        start_new_session=True,
    )
