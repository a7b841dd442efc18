"""The master's control of its workers: start them, give orders to all ranks, end them.

While it waits inside a collective the master watches the processes: a dead one ends the call, and
with it the whole group, because its replica of the variables is lost.
"""

from __future__ import annotations

import atexit
import contextlib
import itertools
import os
import queue
import sys
import threading
import time
from dataclasses import replace
from functools import partial
from typing import Any, Callable, List, Optional, Sequence, Tuple

import numpy as np

import synk_comm
from synk_core import engine
from synk_core._graph import environment
from synk_core._graph.devices.assignment import Assignment, take
from synk_core._rank.rank import Enter, Rank
from synk_core._text import text_of
from synk_core._watch.flight import WORDS, Flight
from synk_core._wire.messages import (
    JOIN,
    Act,
    ArrayRef,
    Call,
    Collective,
    Extras,
    Hello,
    Order,
    Prefetch,
    Settings,
    Step,
    Stop,
)
from synk_core._wire.orders import STEPS_IN_LINE
from synk_core._wire.world import World
from synk_core._workers.activity import Activity
from synk_core._workers.interrupts import LATER, Interrupts
from synk_core._workers.mpi_pool import MpiPool
from synk_core._workers.pool import WorkerPool, hellos_of, start_workers
from synk_core._workers.stalls import StallWatch
from synk_core.exceptions import Closed, InputValueError, Interrupted, SynkError, WorkerDied

from .acts import ActTable, Garbage, OrderLock
from .failures import add_note, mismatch, start_errors, worker_failed
from .replicas import Replicas
from .shipping import Shipping
from .store import DataStore

TELL_TIMEOUT_S = 0.5
"""Seconds for workers to take the order to stop: idle ones do at once."""

_CAN_BE_UNDONE = (Call, Prefetch, Collective)

FAILURE_TIMEOUT_S = 0.05
"""Seconds to read failures that workers have reported already."""


class Controller:
    """The master's rank, its workers and the group that connects them.

    Attributes:
        acts: numbers the acts that orders are made of.
        lock: held while acts are staged and performed.
        closing: held by the thread that ends the runtime; others wait until it has.
        times: seconds that each rank computed in the last order, by act and rank.
        garbage: forgets what the program has dropped.
        replicas: notices variables whose values may differ between ranks.
        joined: whether the workers have started.

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
        on_end: Callable[[], None],
        world: Optional[World] = None,
    ) -> None:
        size = ranks.size
        starts = size > 1 and world is None
        with start_errors(), contextlib.ExitStack() as undo:
            threads = 0 if world is None else world.threads(master)
            own, flight_ref = self._flight(store, size, master)
            self.rank = Rank(master, size, master, settings, flight=own, threads=threads)
            self._activity.functions = self.rank.functions
            self.replicas = Replicas(self.rank, settings)
            self._ranks = ranks
            self.acts = ActTable()
            self.lock, self.closing = OrderLock(), threading.RLock()
            self.garbage = Garbage(self.rank, self.acts, store, self.replicas)
            self._settings, self._on_end, self._report = settings, on_end, report
            self._store = store
            steps = (STEPS_IN_LINE * size,)
            times, times_ref = _zeros(store, "times", np.dtype(float), steps, "times of steps")
            self.times = self.rank.times = memoryview(times)  # type: ignore[arg-type] # NumPy 1 does not say so
            self._serials = itertools.count(1)
            self._threads = environment.ThreadLimit(size, threads)
            environment.keep_freed_memory()
            self.joined = self._ended = False
            self._closed: Optional[str] = None
            self._owner = os.getpid()
            self._world = world
            self._shipping: Optional[Shipping] = None
            self._pool: WorkerPool
            self._group = synk_comm.create_group(size, settings.backend) if starts else None
            if self._group is not None:
                undo.callback(self._group.discard)
            hellos = hellos_of(self.rank, settings, ranks, times_ref, flight_ref)
            if world is None:
                on_device = bool(ranks.devices)
                self._pool = start_workers(hellos, on_device, self._group)
            else:
                self._pool = self._use(world, hellos)
            undo.pop_all()
        self._stalls = StallWatch(self._activity, master, self._pool.stacks, settings.stall_s)
        self._interrupts = Interrupts(self.rank, self._activity.flights, self._pool.interrupt)
        self.rank.before_decline = self._interrupts.give_up
        atexit.register(self.close)
        try:
            # At the same time as the workers take theirs.
            self.rank.device = take(
                ranks.contexts(master), settings.nccl, settings.graphs, settings.precision
            )
        except BaseException as error:
            self._end(f"{type(error).__name__} at its start")
            raise
        # Early: who puts a handler of his own over it, hands on to it.
        self._interrupts.install()

    def _flight(self, store: DataStore, size: int, master: int) -> Tuple[Flight, ArrayRef]:
        """Make the flight records; return the master's, and where the workers find theirs."""
        words = (WORDS * size,)
        room, ref = _zeros(store, "flight", np.dtype(np.int64), words, "the flight record")
        self._activity = Activity(room, size)
        return Flight(room, master), ref

    def _use(self, world: World, hellos: Sequence[Hello]) -> MpiPool:
        """Have the ranks that a launcher has started be the workers."""
        rank = self.rank
        rank.use(world)
        if rank.mirror is not None:
            self._shipping = Shipping(world.nodes, self._store, rank.arrays, self.acts, rank.mirror)
            self._activity.elsewhere = {
                other: world.members[other].host
                for other in range(world.size)
                if not world.is_near(other)
            }
        tag = world.next_tag()
        variables = engine.worker_variables(bool(self._ranks.devices))
        pool = MpiPool(
            world,
            [
                replace(one, tag=tag, threads=world.threads(one.rank), environment=variables)
                for one in hellos
            ],
        )
        world.in_use = True
        return pool

    @property
    def state(self) -> str:
        """The state in a few words, for reprs."""
        if self._closed is not None:
            return f"closed: {self._closed}"
        return "ready" if self.joined else "starting"

    @property
    def is_foreign(self) -> bool:
        """Whether another process has made it, from which this one was forked."""
        return os.getpid() != self._owner

    @property
    def closed(self) -> bool:
        """Whether it is of no more use."""
        return self._closed is not None

    @property
    def worker_pids(self) -> Tuple[int, ...]:
        """Process ids of the workers, in rank order without the master."""
        return self._pool.pids

    def require_open(self) -> None:
        """
        Raises:
            Closed: it was closed, a failure has closed it, or it is another process's.
        """
        if self._closed is None and os.getpid() == self._owner:
            return
        if self.is_foreign:
            raise Closed(
                f"this runtime belongs to process {self._owner}, and this is its child "
                f"{os.getpid()}; use it there, or call fork() of synkhronos in a fresh process"
            )
        raise Closed(
            f"this runtime is closed ({self._closed}); call fork() to start a new one, and "
            f"build functions again: they belong to the runtime that they were built in"
        )

    def await_workers(self) -> None:
        """Wait for the workers' start, and join them; returns at once the second time.

        Raises:
            StartError: one could not start; everything is closed then.
        """
        if self.joined:
            return
        LATER.at_the_next_chance()
        self._stalls.began = time.monotonic()
        joining = False
        try:
            self._pool.wait_ready(tick=lambda _late: self._stalls.check())
            joining = True
            self._pool.send(JOIN, "starting")
            enter: Optional[Enter] = None
            if self._world is not None:
                enter = self._world.communicator
            elif self._group is not None:
                enter = partial(synk_comm.join, self._group.ticket(self.rank.rank))
            self.rank.join(enter, self._settings.timeout_s, self._watch)
        except BaseException as error:
            if joining and self._world is not None:
                # Some ranks may wait for others inside of MPI.
                self._world.lost = self._world.lost or "the ranks lost each other in their start"
            self._fail_start(error)
            raise
        if self._group is not None:
            self._group.close()
        self.joined = True
        self._report(f"Synkhronos: {self._ranks.noun} initialized, master rank: {self.rank.master}")

    def run(self, steps: List[Step], timeout_s: Optional[float] = None) -> List[Any]:
        """Have all ranks perform these acts; blocks until they have. The caller holds the lock.

        Args:
            timeout_s: seconds until all ranks have taken the order; None for the communicator's.

        Returns:
            The result of each act.

        Raises:
            WorkerFailed: user code raised on a worker; all goes on.
            WorkerDied: a worker process is gone; everything is closed.
            WorkerStalled: a worker took too long; everything is closed.
            ReplicasDiffer: ranks may have different values; nothing was done.
            Exception: user code raised it in the master.
            KeyboardInterrupt: nothing was done.
        """
        self.require_open()
        LATER.at_the_next_chance()
        if not self.joined:
            self.await_workers()
        acts = [self.acts.get(step.number) for step in steps]
        self._reseed(acts)
        self.replicas.require_equal(acts)
        if self._threads.seen != len(sys.modules):
            self._threads.apply()
        extras = None
        self._stalls.began = time.monotonic()
        # An interrupt anywhere in here leaves nothing half sent, and the lock free.
        try:
            self.lock.running = True
            extras = self.acts.extras()
            if self._shipping is not None:
                extras = self._shipping.extend(extras, steps)
            order = Order(next(self._serials), steps, extras)
            self._interrupts.begin(order.serial)
            results = self.rank.perform(order, self.lock.began, timeout_s)
            struck = self._interrupts.finish()
            if extras is not None:
                sent, extras = extras, None
                self._taken_in(sent)
            if struck and self.rank.journal.on and all(isinstance(a, _CAN_BE_UNDONE) for a in acts):
                self.rank.take_back(KeyboardInterrupt())
            self.replicas.done(acts)
        except BaseException as error:  # noqa: BLE001 - raised below
            interrupted = self._interrupts.end()
            try:
                self._fail(error, interrupted)
                raise
            except Exception as raised:
                if interrupted:
                    raise KeyboardInterrupt from raised
                raise
            finally:
                if self._closed is None:
                    self.replicas.failed(acts)
                self._not_taken_in(extras)
        finally:
            self.lock.running = False
            self.acts.end(steps)
        if self._interrupts.end():
            LATER.put_off()
        return results or []

    def _reseed(self, acts: List[Optional[Act]]) -> None:
        """Have all ranks take the random states that the program has set in the master alone."""
        changed = self.replicas.changed_states(acts)
        if changed:
            self.run([Step(self.acts.enter(Collective("reseed", changed)))])

    def await_thread(self, thread: threading.Thread, made: Any, makes: str) -> Any:
        """Return the next item that a thread of the program queues; blocks until it does."""
        LATER.at_the_next_chance()
        stall_s = self._settings.stall_s
        stalls = StallWatch(self._activity, self.rank.master, self._pool.stacks, stall_s)
        stalls.began = time.monotonic()
        while True:
            self.require_open()
            with contextlib.suppress(queue.Empty):
                return made.get(timeout=0.1)  # then somebody may have closed it
            stalls.check(thread, makes)

    def _taken_in(self, extras: Extras) -> None:
        """Note that all ranks have these, even if the order is undone."""
        self.acts.sent(extras)
        if self._shipping is not None:
            self._shipping.sent()

    def _not_taken_in(self, extras: Optional[Extras]) -> None:
        """Note that an order failed, and that ranks may lack what came with it."""
        self.acts.failed(extras)
        if self._shipping is not None:
            self._shipping.failed()

    def _fail_start(self, error: BaseException) -> None:
        """Close, and raise the error for a failed start."""
        # A worker that fails to join has reported why before the others lose it.
        failures = self._pool.failures(range(self.rank.size), 0, FAILURE_TIMEOUT_S)
        self._blame(error)
        try:
            if isinstance(error, Exception) and (failures or not isinstance(error, SynkError)):
                self._pool.require_started(failures)
                self._end_out_of_step(error, "the start")
            raise error
        except BaseException as raised:
            self._end(f"its workers could not be started ({type(raised).__name__})")
            raise

    def _fail(self, error: Any, interrupted: bool) -> None:
        """Raise the error for a failed order, unless that is `error` itself."""
        doing = self.rank.doing or "an order"  # the act under way, as far as this rank has come
        if self._closed is not None:
            raise Closed(f"the runtime was closed while {doing} was under way") from error
        if self.rank.group_raised(error, synk_comm.PeerDeclined):
            failures = self._pool.failures(error.reasons, self.rank.serial)
            if interrupted:
                raise KeyboardInterrupt from None
            note = "" if self.rank.journal.on else self.replicas.note
            failed, cause = worker_failed(error, failures, doing, note)
            raise failed from cause
        if self.rank.group_raised(error, synk_comm.MismatchError):
            raise InputValueError(mismatch(doing, error)) from error
        if not self.rank.in_step:
            self._end_out_of_step(error, doing)
        else:
            declined, self.rank.also_declined = self.rank.also_declined, {}
            self._pool.failures(declined, self.rank.serial)
        if isinstance(error, Interrupted):
            raise KeyboardInterrupt from None
        if isinstance(error, Exception) and not isinstance(error, SynkError):
            add_note(error, f"in {doing}, on rank {self.rank.rank} of {self.rank.size}")

    def _watch(self) -> None:
        """Called while the master waits for others.

        Raises:
            WorkerDied: one will never come.
            KeyboardInterrupt: Ctrl-C, and some rank does not listen.
        """
        self._pool.check(self._activity.doing)
        if not self.joined:
            self._pool.check_joining()
        self._interrupts.check()
        self._stalls.check()
        self._interrupts.install()

    def _blame(self, error: Any) -> None:
        """Note which rank was lost first, if MPI has reported one."""
        if self.rank.group_raised(error, synk_comm.PeerLost) and isinstance(self._pool, MpiPool):
            self._pool.blame(error.rank)

    def _end_out_of_step(self, error: BaseException, doing: str) -> None:
        """End a group whose ranks have lost each other; raise `WorkerDied` if a death caused it."""
        self._blame(error)
        ours = self.rank.group_raised(error)
        try:
            self._pool.check(self._activity.doing)
            if ours and isinstance(error, synk_comm.AbortedError) and error.rank != self.rank.rank:
                doing_it = self._activity.doing(error.rank)
                raise WorkerDied(error.rank, None, doing_it, error.reason)
        except WorkerDied as died:
            history = self._activity.history(died.rank)
            self._end(str(died))
            if isinstance(error, WorkerDied):
                add_note(error, history)
                return
            add_note(died, history)
            raise died from error
        if ours and isinstance(error, synk_comm.CommTimeout):
            stalled = self._stalls.error()
            add_note(stalled, self._activity.history(stalled.rank))
            self._end(f"rank {stalled.rank} was {stalled.doing} for too long")
            raise stalled from error
        self._end(f"{type(error).__name__} in {doing}: {text_of(error)}".removesuffix(": "))

    def close(self) -> None:
        """Stop the workers and free what they hold. Idempotent; returns within seconds."""
        if self.is_foreign:
            return
        with self.closing:
            was_open, self._closed = self._closed is None, self._closed or "by close()"
            LATER.leaving = False  # no order's result is under way any more
            try:
                if was_open:
                    self._tell_to_stop()
                self._pool.stop()
            finally:
                self._free()

    def _tell_to_stop(self) -> None:
        """Order the workers to stop, if they are idle; they also stop when their channel ends."""
        if self.joined and self.rank.in_step and not self.lock.running:
            number = self.acts.enter(Stop())
            order = Order(next(self._serials), [Step(number)], self.acts.extras())
            self._stalls.began = time.monotonic()
            with contextlib.suppress(synk_comm.CommError, WorkerDied):
                self.rank.tell(order, TELL_TIMEOUT_S)

    def _end(self, reason: str) -> None:
        """Close after a failure, without asking the workers."""
        with self.closing:
            self._closed = self._closed or reason
            try:
                self._pool.kill()
            finally:
                self._free()

    def _free(self) -> None:
        if self._ended:
            return
        self._pool.kill()
        self._interrupts.restore()
        self.times.release()
        self._activity.close()
        if self._shipping is not None:
            self._shipping.close()
        if self._world is not None:
            self._world.in_use = False
        self.replicas.close()
        self.rank.close()
        if self._group is not None:
            # Ranks that never joined have left what they would have removed.
            self._group.close() if self.joined else self._group.discard()
        self._store.close()
        # Users may keep functions; these must not keep shared memory.
        for function in self.garbage.watched():
            function.close()
        self._on_end()
        self._threads.restore()
        self._ended = True
        atexit.unregister(self.close)


def _zeros(
    store: DataStore, slot: str, dtype: np.dtype, shape: Tuple[int, ...], what: str
) -> Tuple[np.ndarray, ArrayRef]:
    """Return an array of zeros in shared memory, and where the workers find it."""
    room, ref = store.room((slot,), dtype, shape, what)
    room[...] = 0
    return room, ref
