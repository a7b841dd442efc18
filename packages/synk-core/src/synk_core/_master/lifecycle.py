"""The life of a runtime's ranks: start the workers, watch them, end them.

While it waits inside a collective the master watches the processes: a dead one ends the call, and
with it the whole group, because its replica of the variables is lost.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import threading
from dataclasses import replace
from functools import partial
from time import perf_counter
from typing import Any, Callable, List, Optional, Sequence, Tuple

import numpy as np

import synk_comm
from synk_core import engine
from synk_core._graph import environment
from synk_core._graph.devices.assignment import Assignment, take
from synk_core._rank.rank import STEPS_IN_LINE, Enter, Rank
from synk_core._wire.flight import WORDS, Flight
from synk_core._wire.messages import JOIN, ArrayRef, Hello
from synk_core._wire.settings import Settings
from synk_core._wire.world import World
from synk_core._workers.activity import Activity
from synk_core._workers.interrupts import LATER, Interrupts
from synk_core._workers.pool import WorkerPool, hellos_of, start_workers
from synk_core._workers.processes import MpiWorker
from synk_core.exceptions import Closed

from .failures import raise_for_start, start_errors
from .store import DataStore


class Lifecycle:
    """The master's rank, its workers and the group that connects them.

    Attributes:
        closing: held by the thread that ends the runtime; others wait until it has.
        reason: why it was closed; None while it is open.
        owner: the process that has made it, and not one that was forked from that.
        joined: whether the workers have started.
        wait_began: when the master's wait for workers began, by `time.perf_counter`.
        while_waiting: called now and then while the master waits for workers; given a thread, what
            it makes, and since when, while the master waits for that.
        before_close: called before the workers of an open runtime are stopped.
        on_end: called once, when all is over.

    Returns at once; workers start in the background.
    """

    def __init__(
        self,
        ranks: Assignment,
        master: int,
        settings: Settings,
        *,
        report: Callable[[str], None],
        store: DataStore,
        world: Optional[World] = None,
    ) -> None:
        size = ranks.size
        starts = size > 1 and world is None
        with start_errors(), contextlib.ExitStack() as undo:
            threads = 0 if world is None else world.threads(master)
            own, flight_ref = self._flight(store, size, master)
            self.rank = Rank(master, size, master, settings, flight=own, threads=threads)
            self.activity.functions = self.rank.functions
            self._ranks = ranks
            self.closing = threading.RLock()
            self.settings, self.store, self._report = settings, store, report
            self.before_close: Callable[[], None] = lambda: None
            self.on_end: Callable[[], None] = lambda: None
            steps = (STEPS_IN_LINE * size,)
            # Like the flight records, zeros: as long as nothing was written to shared memory.
            times, times_ref = store.room(("times",), np.dtype(float), steps, "times of steps")
            self.rank.times = memoryview(times)  # type: ignore[arg-type] # NumPy 1 does not say so
            self.threads = environment.ThreadLimit(size, threads)
            environment.keep_freed_memory()
            self.joined = self._ended = False
            self.reason: Optional[str] = None
            self.owner = os.getpid()
            self._world = world
            self.pool: WorkerPool
            self._group = synk_comm.create_group(size, settings.backend) if starts else None
            if self._group is not None:
                undo.callback(self._group.discard)
            hellos = hellos_of(self.rank, settings, ranks, times_ref, flight_ref)
            if world is None:
                on_device = bool(ranks.devices)
                self.pool = start_workers(hellos, on_device, self._group)
            else:
                self.pool = self._use(world, hellos)
            undo.pop_all()
        self.wait_began = 0.0
        self.while_waiting: List[Callable[..., None]] = []
        self.interrupts = Interrupts(self.rank, self.activity.flights, self.pool.interrupt)
        self.rank.before_decline = self.interrupts.give_up
        atexit.register(self.close)
        try:
            # At the same time as the workers take theirs.
            self.rank.device = take(
                ranks.contexts(master), settings.nccl, settings.graphs, settings.precision
            )
        except BaseException as error:
            self.end(f"{type(error).__name__} at its start")
            raise
        # Early: who puts a handler of his own over it, hands on to it.
        self.interrupts.install()

    def _flight(self, store: DataStore, size: int, master: int) -> Tuple[Flight, ArrayRef]:
        """Make the flight records; return the master's, and where the workers find theirs."""
        words = (WORDS * size,)
        room, ref = store.room(("flight",), np.dtype(np.int64), words, "the flight record")
        self.activity = Activity(room, size, master)
        return Flight(room, master), ref

    def _use(self, world: World, hellos: Sequence[Hello]) -> WorkerPool:
        """Use the ranks that a launcher has started as workers."""
        rank = self.rank
        rank.use(world)
        if rank.mirror is not None:
            self.activity.elsewhere = {
                other: world.members[other].host
                for other in range(world.size)
                if not world.is_near(other)
            }
        tag = world.next_tag()
        variables = engine.worker_variables(bool(self._ranks.devices))
        own = [
            replace(one, tag=tag, threads=world.threads(one.rank), environment=variables)
            for one in hellos
        ]
        pool = WorkerPool([partial(MpiWorker, world, hello) for hello in own], world=world)
        world.in_use = True
        return pool

    @property
    def state(self) -> str:
        """The state in a few words, for reprs."""
        if self.reason is not None:
            return f"closed: {self.reason}"
        return "ready" if self.joined else "starting"

    @property
    def is_foreign(self) -> bool:
        """Whether another process has made it, from which this one was forked."""
        return os.getpid() != self.owner

    @property
    def closed(self) -> bool:
        """Whether it is of no more use."""
        return self.reason is not None

    def require_open(self) -> None:
        """Raise `Closed` unless the runtime is open, and this process has made it."""
        if self.reason is None and os.getpid() == self.owner:
            return
        if self.is_foreign:
            raise Closed(
                f"this runtime belongs to process {self.owner}, and this is its child "
                f"{os.getpid()}; use it there, or call fork() of synkhronos in a fresh process"
            )
        raise Closed(
            f"this runtime is closed ({self.reason}); call fork() to start a new one, and "
            f"build functions again: they belong to the runtime that they were built in"
        )

    def enter(self) -> None:
        """Prepare for an order; the first one waits for the workers' start."""
        self.require_open()
        self.await_workers()
        self.threads.apply()

    def await_workers(self) -> None:
        """Wait for the workers' start, and join them; raise `StartError` if one fails."""
        if self.joined:
            return
        LATER.at_the_next_chance()
        self.wait_began = perf_counter()
        joining = False
        try:
            self.pool.wait_ready(tick=self.waiting)
            joining = True
            self.pool.send(JOIN, "starting")
            enter: Optional[Enter] = None
            if self._world is not None:
                enter = self._world.communicator
            elif self._group is not None:
                enter = partial(synk_comm.join, self._group.ticket(self.rank.rank))
            self.rank.join(enter, self.settings.timeout_s, self._watch)
        except BaseException as error:  # noqa: BLE001 - raised below
            if joining and self._world is not None:
                # Some ranks may wait for others inside of MPI.
                self._world.lost = self._world.lost or "the ranks lost each other in their start"
            raise_for_start(error, self)
        if self._group is not None:
            self._group.close()
        self.joined = True
        self._report(f"Synkhronos: {self._ranks.noun} initialized, master rank: {self.rank.master}")

    def _watch(self) -> None:
        """Called while the master waits for others; raises if one dies or ignores Ctrl-C."""
        self.pool.check(self.activity.doing)
        if not self.joined:
            self.pool.check_start()
        self.interrupts.check()
        self.waiting()
        self.interrupts.install()

    def waiting(self, *wait: Any) -> None:
        """Call those that follow the master's waits; see `while_waiting`."""
        for follow in self.while_waiting:
            follow(*wait)

    def close(self) -> None:
        """Stop the workers and free what they hold. Idempotent; returns within seconds."""
        if self.is_foreign:
            return
        with self.closing:
            was_open, self.reason = self.reason is None, self.reason or "by close()"
            LATER.leaving = False  # no order's result is under way any more
            try:
                if was_open:
                    self.before_close()
                self.pool.stop()
            finally:
                self._free()

    def end(self, reason: str) -> None:
        """Close after a failure, without asking the workers."""
        with self.closing:
            self.reason = self.reason or reason
            try:
                self.pool.kill()
            finally:
                self._free()

    def _free(self) -> None:
        if self._ended:
            return
        self.pool.kill()
        self.rank.times.release()
        self.activity.close()
        if self._world is not None:
            self._world.in_use = False
        self.on_end()
        self.rank.close()
        if self._group is not None:
            # Ranks that never joined have left what they would have removed.
            self._group.close() if self.joined else self._group.discard()
        self.store.close()
        self.threads.restore()
        self._ended = True
        # Late: Python's own handler would raise in a finalizer of an array, where errors are lost.
        self.interrupts.restore()
        atexit.unregister(self.close)
