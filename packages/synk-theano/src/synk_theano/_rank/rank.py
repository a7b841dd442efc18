"""One rank: what it owns, and how it performs an order. The same in master and workers.

The rule that keeps ranks in step: an order is any number of collectives, and it ends with one in
which all ranks say that they have done their part: a barrier, or the collecting of a call's
outputs if that is the last. A rank that fails declines its next collective; its peers leave the
order there. After the end nothing can fail any more but the master's own last sum (NumPy can be
told to raise what it else warns of): it declines the collective that the others wait for next.
"""

from __future__ import annotations

import contextlib
import gc
import os
from time import perf_counter
from typing import Any, Callable, Dict, List, Optional, Tuple

import numpy as np

import synk_comm
from synk_comm import cuda
from synk_theano._graph.devices.device import AnyDevice, Cpu, Gpu
from synk_theano._graph.environment import threads_per_rank
from synk_theano._graph.shared import VariableRegistry
from synk_theano._text import text_of
from synk_theano._watch.flight import OWN_WORK, WORDS, Flight, Outcome, Phase
from synk_theano._watch.spans import Recorder
from synk_theano._wire.arrays import ArrayCache
from synk_theano._wire.messages import (
    Act,
    Call,
    Collective,
    Distribute,
    Extras,
    Order,
    Record,
    Stop,
    WatchFinite,
)
from synk_theano._wire.orders import OrderLine
from synk_theano.exceptions import Interrupted

from .call import PreparedCall
from .collectives import PreparedCollective
from .distribute import PreparedDistribution, PreparedRecording
from .finite.finite import Finite, FiniteSwitch
from .functions import LoadedFunction
from .payload import take_over
from .undo import Journal

# Members of enums are slow to look up in some versions of Python.
_IDLE, _END, _DONE = Phase.IDLE, Phase.END, Outcome.DONE

MOST_THREADS = 8
"""For reading rows: more of them do not read faster."""

REASON_LIMIT = 1000
"""Characters of a reason that travels to the peers; the traceback goes another way."""


class Rank:
    """A rank's communicator, shared variables, functions and mapped arrays.

    Args:
        reseed: give the states of random streams a seed of this rank's own.
        device: where it computes; None for the processor.
        flight: where it writes what it is doing; None for nowhere that others see.
        atomic: keep what an order changes until all ranks have done their part of it.

    Attributes:
        device: where it computes.
        in_step: False while an order is under way, and after a failure that leaves it unknown
            how far the other ranks are: then the group is of no more use.
        also_declined: the other ranks that failed in the order in which this one failed.
        doing: the act under way, in words.
        serial: of the order under way.
        pid: of this process.
        failed_at: when an order failed here last, in seconds of `time.perf_counter`.
        times: where each rank writes how long it computed, by act of the order and rank.
        recorder: what it did when, if that is recorded.
        flight: what it does now, and its last acts.
        journal: what variables were before the order under way.
        finite: what looks whether all that is computed is finite, if anything does: in a list, as
            a variable's value, for the journal.
        before_decline: called with this rank's error before it tells the others; returns for how
            many seconds to wait for them, None for as long as for any collective.
    """

    def __init__(
        self,
        rank: int,
        size: int,
        master: int,
        *,
        reseed: bool = True,
        device: Optional[AnyDevice] = None,
        flight: Optional[Flight] = None,
        atomic: bool = True,
    ) -> None:
        self.rank = rank
        self.size = size
        self.master = master
        self.registry = VariableRegistry()
        self.functions: Dict[int, LoadedFunction] = {}
        self.arrays = ArrayCache(min(threads_per_rank(size), MOST_THREADS))
        self.device: AnyDevice = device or Cpu()
        self.in_step = True
        self.also_declined: Dict[int, str] = {}
        self.doing = ""
        self.serial = 0
        self.times: Any = None
        self.recorder = Recorder()
        self.flight = flight or Flight(np.zeros(WORDS * size, np.int64), rank)
        self.journal = Journal(atomic)
        self.finite: List[Optional[Finite]] = [None]
        self.before_decline: Callable[[BaseException], Optional[float]] = lambda _error: None
        self.pid = os.getpid()
        self.failed_at = 0.0
        self._reseed = reseed
        self._acts: Dict[int, Any] = {}
        self._comm: Optional[synk_comm.Communicator] = None
        self._line: Optional[OrderLine] = None

    @property
    def is_master(self) -> bool:
        return self.rank == self.master

    @property
    def comm(self) -> synk_comm.Communicator:
        if self._comm is None:
            raise RuntimeError(f"rank {self.rank} has not joined the others yet")
        return self._comm

    @property
    def line(self) -> OrderLine:
        if self._line is None:
            raise RuntimeError(f"rank {self.rank} has nobody to get orders from or to give them to")
        return self._line

    def join(self, ticket: Optional[str], timeout_s: float, watch: Callable[[], None]) -> None:
        """Meet the other ranks. Blocks until all are there; alone, nothing is needed."""
        if ticket is None:
            (self._comm,) = synk_comm.local_group(1)
        else:
            host = synk_comm.join(ticket, timeout_s=timeout_s, watch=watch)
            self._comm = host
            self._line = OrderLine(host, self.master)
            self._comm = self.device.connect(host)

    def perform(
        self,
        order: Optional[Order] = None,
        began: Optional[float] = None,
        timeout_s: Optional[float] = None,
    ) -> Optional[List[Any]]:
        """Do this rank's part of an order. Blocks until all ranks have done theirs.

        Args:
            order: what the master wants; the other ranks wait for it here.
            began: when the master began to prepare it, by `time.perf_counter`.
            timeout_s: for the master's telling, see `OrderLine.give`.

        Returns:
            On the master what each act asks for; None elsewhere if the order was to stop.

        Raises:
            synk_comm.PeerDeclined: another rank failed; this one has left the order.
            Exception: this rank failed, and its peers have left the order.
        """
        # Pessimistic: whatever interrupts in between, the ranks may have lost each other.
        self.in_step, self.doing = False, ""
        self.device.enter()
        prepared = perf_counter()
        if order is None:
            order = self._next_order()
            began = prepared = perf_counter()
        elif self._line is not None:
            self._line.give(order, timeout_s)
        self.serial = order.serial
        self.doing = "taking in what is new"
        self.journal.begin()
        known = self.registry.end
        flight, recording = self.flight, self.recorder.on
        ending = False
        try:
            # Where a rank waits for others nothing interrupts: they would lose each other.
            try:
                performed = self._perform_acts(order)
            except BaseException:
                if flight.phase[0] in OWN_WORK:
                    flight.enter(Phase.FAIL)
                raise
            if performed is None:
                flight.enter(Phase.CLOSE)
                return None
            ending = True
            results = self._finish(*performed)
            if recording:
                self._record(order, began or prepared, prepared)
            return results
        except BaseException as error:
            self.failed_at = perf_counter()
            try:
                self._undo(known, order, error)
            finally:
                self.journal.undo()
            if is_of_the_group(error):
                self.in_step = isinstance(error, (synk_comm.PeerDeclined, synk_comm.MismatchError))
            elif ending:
                # The others may have finished: what was undone here alone cannot be mended.
                self.in_step = False
            else:
                self._decline(error)
            raise

    def _perform_acts(self, order: Order) -> Optional[Tuple[List[Any], bool]]:
        """Results, and whether the last act told that all ranks are done; None to stop."""
        recorder, flight = self.recorder, self.flight
        serial, steps, extras = order
        if extras is not None:
            flight.enter(Phase.TAKE_IN)
            self._take_in(extras)
        results = []
        place, synchronized = self.rank, self.size == 1
        for i, (number, origin) in enumerate(steps):
            act = self._acts[number]
            if act is None:
                return None
            self.heed_interrupt()
            self.doing = act.doing
            recorder.place = serial, i
            flight.begin(serial, *act.record)
            results.append(act(origin, place))
            flight.end(_DONE)
            place += self.size
            synchronized = act.synchronizes
        return results, synchronized

    def _next_order(self) -> Order:
        """Wait for the master's next order.

        Raises:
            synk_comm.PeerDeclined: the master failed after this rank had done its part.
        """
        self.flight.enter(_IDLE)
        try:
            return self.line.take()
        except synk_comm.PeerDeclined:
            self.flight.mark(self.serial, Outcome.UNDONE)
            self.journal.undo()
            raise

    def heed_interrupt(self) -> None:
        """
        Raises:
            Interrupted: the master gives up the order under way.
        """
        if self.flight.interrupted == self.serial:
            raise Interrupted

    def _finish(self, results: List[Any], synchronized: bool) -> List[Any]:
        """Wait until all ranks are done, if nothing has told so; results as the user gets them."""
        if not synchronized and self.size > 1:
            self.flight.enter(_END)
            began = perf_counter()
            self.comm.barrier()
            self.recorder.add("wait", "until all are done", began, perf_counter())
        if self.rank == self.master:
            if isinstance(self.device, Gpu):
                self.flight.enter(_END)
                began = perf_counter()
                results = self.device.fetch(results)
                self.recorder.add("copy", "results from the device", began, perf_counter())
            self.flight.enter(_IDLE)
        self.in_step = True
        return results

    def _record(self, order: Order, began: float, prepared: float) -> None:
        """Record an order as a whole: when the master began it, and when it gave it."""
        add, end = self.recorder.add, perf_counter()
        self.recorder.place = order.serial, len(order.steps)
        names = [self._acts[number].name for number, _ in order.steps]
        add("call", ", ".join(names), began, end)
        if self.is_master:
            add("scatter", "check, plan, copy", began, prepared)
        self.recorder.place = None

    def tell(self, order: Order, timeout_s: float) -> None:
        """Have the other ranks perform an order without this one: the last order of all."""
        self.in_step = False
        if self._line is not None:
            self._line.give(order, timeout_s)

    def _take_in(self, extras: Extras) -> None:
        for number in extras.forget_acts:
            self._acts.pop(number, None)
        self.arrays.forget(extras.forget_arrays)
        for number in extras.forget_functions:
            self.functions.pop(number, None)
        for number in extras.forget_variables:
            self.registry.forget(number)
            self.journal.forget(number)
        if extras.forget_functions and not self.is_master:
            # Graphs are cycles. Little else is made here that would have them looked for; when to
            # do so in the master is the user's business.
            gc.collect()
        for number, act in extras.acts.items():
            self._acts[number] = self._prepared(act)

    def _prepared(self, act: Act) -> Any:
        """What performs `act`, given an origin; None for the end."""
        if isinstance(act, Call):
            return PreparedCall(self, self.functions[act.function_id], act)
        if isinstance(act, Collective):
            return PreparedCollective(self, act)
        if isinstance(act, Distribute):
            return PreparedDistribution(self, act)
        if isinstance(act, Record):
            return PreparedRecording(self, act)
        if isinstance(act, WatchFinite):
            return FiniteSwitch(self, act.on)
        if isinstance(act, Stop):
            return None
        raise TypeError(f"rank {self.comm.rank} got {act!r}, which is nothing to perform")

    def take_over(self, act: Distribute) -> None:
        """Build what the master has sent."""
        if not self.is_master:
            payload = self.arrays.get(act.payload)
            seed = self.comm.rank if self._reseed else None
            take_over(payload, act, self.registry, self.functions, seed)

    def _undo(self, known: int, order: Order, error: BaseException) -> None:
        """Keep nothing of an order that failed: the master counts nothing as sent."""
        self.journal.undo()
        self.recorder.place = None
        self.flight.mark(order.serial, Outcome.UNDONE)
        if not isinstance(error, synk_comm.PeerDeclined):
            self.flight.end(Outcome.FAILED)
        if not self.is_master:
            self.registry.truncate(known)
        if order.extras is not None:
            for number in order.extras.acts:
                self._acts.pop(number, None)

    def take_back(self, error: BaseException) -> None:
        """On the master: undo the order that all ranks have just done, and raise `error`.

        The others wait for the next order, and undo this one when they learn that there is none.
        """
        self.in_step = False
        self.journal.undo()
        self.flight.mark(self.serial, Outcome.UNDONE)
        self._decline(error)
        raise error

    def _decline(self, error: BaseException) -> None:
        self.also_declined = {}
        with contextlib.suppress(synk_comm.CommError):
            self.also_declined = self.comm.decline(
                f"{type(error).__name__}: {text_of(error)}"[:REASON_LIMIT],
                timeout_s=self.before_decline(error),
            )
            self.in_step = True

    def close(self) -> None:
        """Drop everything. Never blocks for long."""
        if self._comm is not None:
            # First: to free what the device still works on would wait for it.
            self._comm.close()
        self.times = None
        self.flight.release()
        self.journal.clear()
        for act in self._acts.values():
            if isinstance(act, PreparedCall):
                act.release()
        self._acts.clear()
        self.arrays.clear()
        self.functions.clear()
        self.registry.truncate(0)


def is_of_the_group(error: BaseException) -> bool:
    """Whether an error is about all ranks: one of the communicator, not of this rank's device."""
    return isinstance(error, synk_comm.CommError) and not isinstance(error, cuda.CudaError)
