"""Give orders to all ranks, one at a time, under a lock."""

from __future__ import annotations

import _thread
import itertools
import os
import queue
import sys
import threading
from contextlib import suppress
from time import perf_counter
from typing import Any, Hashable, List, Optional, Sequence, Tuple

import synk_comm
from synk_core._shield import FRAMES, require_frames
from synk_core._wire.data import Data
from synk_core._wire.messages import (
    DISTRIBUTE,
    Act,
    Call,
    Collective,
    Extras,
    Form,
    Order,
    Prefetch,
    Step,
    Stop,
)
from synk_core._workers.interrupts import LATER
from synk_core.exceptions import NestedCall, WorkerDied

from .acts import ActTable, Prepared
from .builder import Builder
from .distributor import Distributor
from .failures import raise_for
from .garbage import Garbage
from .lifecycle import Lifecycle
from .record import Observers, Record
from .shipping import Shipping

STOP_TIMEOUT_S = 0.5
"""Seconds for workers to take the order to stop: idle ones do at once."""

_RLock: Any = _thread.RLock

_new: Any = tuple.__new__  # constructors of named tuples are written in Python

_CAN_BE_UNDONE = (Call, Prefetch, Collective)


class OrderLock(_RLock):  # type: ignore[misc] # Any, because some versions' stubs are final
    """A lock around staging and performing. Other threads wait for it.

    The thread that holds it cannot take it again: that would be a call from inside a computation,
    or from a signal handler, which would write into the memory that the outer one has prepared.

    Its release is written in C, as plain locks' is: Ctrl-C comes before or after it.

    Attributes:
        running: whether an order is being performed.
        began: when the lock was taken, in seconds of `time.perf_counter`.
    """

    def __init__(self) -> None:
        self.running = False
        self.began = 0.0
        self._pid = os.getpid()

    def __enter__(self) -> None:
        try:
            # Until Python 3.11 calls from C count, too: up to three for one frame.
            sys._getframe(max(0, (sys.getrecursionlimit() - FRAMES) // 4))
        except ValueError:
            pass  # the stack is far from its limit
        else:
            require_frames()  # an order that has begun comes to its end
        if os.getpid() != self._pid:  # a child, without the thread that may hold the lock
            self._at_fork_reinit()
            self._pid = os.getpid()
        if self._is_owned():
            raise NestedCall(
                "got a call inside a call: this thread already performs one on this runtime (the "
                "inner one comes from an Op's perform, a callback or a signal handler), expected "
                "one at a time; use synk.step() to perform several together"
            )
        try:
            self.acquire()
            self.began = perf_counter()
        except BaseException:  # a signal: `__exit__` will not run
            if self._is_owned():
                self.release()
            raise


class Orders:
    """Performs acts on all ranks.

    Attributes:
        lock: held while acts are staged and performed: other threads wait.
        observers: of orders; they are called while the lock is held.
        prefetches: whether `DelayedCall.prefetch` saves time, as on most GPUs.
    """

    def __init__(self, lifecycle: Lifecycle, builder: Builder) -> None:
        self._lifecycle, self._builder = lifecycle, builder
        rank = self._rank = lifecycle.rank
        self.size, self.master, self.lock = rank.size, rank.master, OrderLock()
        self.store = lifecycle.store
        self.require_open = lifecycle.require_open
        self.prefetches = rank.device.uploads is not None
        self.enter_device = rank.device.enter
        self.known_numbers = rank.registry.known_numbers
        self.acts = ActTable()
        self._serials = itertools.count(1)
        self._shipping: Optional[Shipping] = None
        if rank.mirror is not None and rank.world is not None:
            nodes = rank.world.nodes
            self._shipping = Shipping(nodes, self.store, rank.arrays, self.acts, rank.mirror)
        self.observers = Observers()
        self.garbage = Garbage(rank, self.acts, self.store, self.observers)
        self.distributor = Distributor(rank, self.perform_own, self.store, self.garbage.collect)
        self.observers.add(self.distributor)

    @property
    def closed(self) -> bool:
        """Whether the runtime is of no more use."""
        return self._lifecycle.closed

    def require_ready(self) -> None:
        """Prepare for staging: forget acts whose arrays are gone or have moved; raise if closed."""
        lifecycle = self._lifecycle
        if lifecycle.reason is not None or os.getpid() != lifecycle.owner:
            lifecycle.require_open()
        garbage = self.garbage
        if any(garbage.queues) or self._rank.serial <= garbage.lingers_until:
            garbage.collect()

    def enter(self, prepared: Prepared, key: Hashable = None) -> Prepared:
        """Number an act whose arrays are staged; it is found again by its key."""
        self.garbage.collect()  # first: staging may have moved arrays that older acts refer to
        return self.acts.enter(prepared, key)

    def perform(
        self,
        acts: Sequence[Prepared],
        origins: Sequence[int] = (0,),
        timeout_s: Optional[float] = None,
    ) -> List[Any]:
        """Perform acts on all ranks, in order; blocks until they have. The caller holds the lock.

        Args:
            origins: the lowest row that each act takes.
            timeout_s: seconds until all ranks have taken the order; None for the communicator's.

        Returns:
            The master's result of each act.

        Raises:
            WorkerFailed: user code raised on a worker; all goes on.
            WorkerDied: a worker process is gone; everything is closed.
            WorkerStalled: a worker took too long; everything is closed.
            ReplicasDiffer: ranks may have different values; nothing was done.
            Exception: user code raised it in the master.
            KeyboardInterrupt: nothing was done.
        """
        began, lifecycle, rank, lock = perf_counter(), self._lifecycle, self._rank, self.lock
        if (
            lifecycle.reason is not None
            or not lifecycle.joined
            or lifecycle.threads.seen != len(sys.modules)
            or os.getpid() != lifecycle.owner
        ):
            lifecycle.enter()
        LATER.at_the_next_chance()
        record = Record()
        record.acts, record.times, record.scatter_s = acts, rank.times, began - lock.began
        for before in self.observers.before:
            before(record)
        lifecycle.wait_began = perf_counter()
        steps = []
        for act, origin in zip(acts, origins):
            steps.append(_new(Step, (act.number, origin)))
        interrupts, extras = lifecycle.interrupts, None
        # An interrupt anywhere in here leaves nothing half sent, and the lock free.
        try:
            lock.running = True
            extras = self.acts.extras() if self.acts.changed else None
            if self._shipping is not None:
                extras = self._shipping.extend(extras, steps)
            record.serial = next(self._serials)
            interrupts.begin(record.serial)
            order = _new(Order, (record.serial, steps, extras))
            results = rank.perform(order, lock.began, timeout_s)
            struck = interrupts.finish()
            if extras is not None:
                sent, extras = extras, None
                self._taken_in(sent)
            if struck and rank.journal.on and all(isinstance(a.act, _CAN_BE_UNDONE) for a in acts):
                rank.take_back(KeyboardInterrupt())
            record.run_s = perf_counter() - began
            for after in self.observers.after:
                after(record)
        except BaseException as error:  # noqa: BLE001 - raised below
            interrupted = interrupts.end()
            try:
                raise_for(error, lifecycle, interrupted)
            finally:
                self._failed(record, extras)
        finally:
            lock.running = False
            if self.acts.changed:
                self.acts.end(acts)
        if interrupts.end():
            LATER.put_off()
        return results or []

    def perform_own(
        self,
        act: Act,
        label: Optional[str] = DISTRIBUTE,
        key: Hashable = None,
        timeout_s: Optional[float] = None,
    ) -> Any:
        """Perform an act of the runtime's own, for a caller that holds the lock."""
        prepared = None if key is None else self.acts.find(key)
        if prepared is None:
            prepared = self.enter(Prepared(act, label), key)
        self.lock.began = perf_counter()
        (result,) = self.perform((prepared,), timeout_s=timeout_s)
        # The figures of a call that had to wait for this begin now.
        self.lock.began = perf_counter()
        return result

    def reseed(self, variables: Tuple[int, ...]) -> None:
        """Copy random states that the program has set in the master alone to all ranks."""
        self.perform((self.enter(Prepared(Collective("reseed", variables))),))

    def stop_workers(self) -> None:
        """Order the workers to stop, if they are idle; they also stop when their channel ends."""
        lifecycle = self._lifecycle
        if lifecycle.joined and self._rank.in_step and not self.lock.running:
            number = self.acts.enter(Prepared(Stop())).number
            order = Order(next(self._serials), [Step(number)], self.acts.extras())
            lifecycle.wait_began = perf_counter()
            with suppress(synk_comm.CommError, WorkerDied):
                self._rank.send(order, STOP_TIMEOUT_S)

    def close(self) -> None:
        """Drop what refers to shared memory: the runtime has ended."""
        if self._shipping is not None:
            self._shipping.close()
        for close in self.observers.close:
            close()
        self.acts.close()  # users may keep functions, and with them this

    def make_data(self, value: Any = None, var: Any = None, **options: Any) -> Data:
        """Make a `Data`; see `synkhronos.data`."""
        self.require_open()
        return self.store.make(value, var, **options)

    def await_thread(self, thread: threading.Thread, made: Any, makes: str) -> Any:
        """Return the next item that a thread of the program queues; blocks until it does."""
        LATER.at_the_next_chance()
        began = perf_counter()
        while True:
            self.require_open()
            with suppress(queue.Empty):
                return made.get(timeout=0.1)  # then somebody may have closed it
            self._lifecycle.waiting(thread, makes, began)

    def require_form(self, function_id: int, form: Form) -> None:
        """Compile a form of a function and distribute it, unless every rank has it."""
        self.require_open()
        self._builder.require_form(function_id, form)
        self.distributor.send((function_id,))

    def numbers(self, variables: Sequence[Any]) -> Tuple[int, ...]:
        """Return variables' numbers; distribute those that workers lack, under the lock."""
        self.require_open()
        numbers = tuple(map(self._rank.registry.number_of, variables))
        if not self.distributor.has_all_variables():
            self.distributor.send()
        return numbers

    def _taken_in(self, extras: Extras) -> None:
        """Note that all ranks have these, even if the order is undone."""
        self.acts.sent(extras)
        if self._shipping is not None:
            self._shipping.sent()

    def _failed(self, record: Record, extras: Optional[Extras]) -> None:
        """Note that an order failed, and that ranks may lack what came with it."""
        if not self.closed:
            for failed in self.observers.failed:
                failed(record)
        self.acts.failed(extras)
        if self._shipping is not None:
            self._shipping.failed()
