"""One rank: performs orders, as the master and as a worker.

The rule that keeps ranks in step: an order is any number of collectives, and it ends with one in
which all ranks confirm that they have done their part: the collecting of calls' outputs or an
all_reduce if that is the last, else a barrier. A rank that fails declines its next collective; its
peers leave the order there. After the end nothing can fail any more but the master's own last sum
(NumPy can be set to raise where it else warns): then the master declines the collective that the
others wait for next.
"""

from __future__ import annotations

import contextlib
import gc
import os
import pickle
from dataclasses import replace
from time import perf_counter
from typing import Any, Callable, Dict, Iterator, List, Optional, Type

import numpy as np

import synk_comm
from synk_comm import cuda
from synk_core._text import text_of
from synk_core._wire.channel import ChannelClosed
from synk_core._wire.flight import OWN_WORK, ActOutcome, Phase
from synk_core._wire.messages import (
    Call,
    Collective,
    Distribute,
    Extras,
    Order,
    Own,
    Prefetch,
    Step,
    Stop,
)

from .call import CallResult, PreparedCall, PreparedPrefetch
from .collectives import PreparedCollective
from .distribute import PreparedDistribution, PreparedOwn
from .workplace import NotJoined, Workplace

# Members of enums are slow to look up in some versions of Python.
_IDLE, _END, _DONE = Phase.IDLE, Phase.END, ActOutcome.DONE
_REDUCE = Phase.REDUCE

_PREPARED: Dict[type, Callable[[Workplace, Any], Any]] = {
    Call: lambda here, act: (act.variant.prepare if act.variant else PreparedCall)(here, act),
    Prefetch: PreparedPrefetch,
    Collective: PreparedCollective,
    Distribute: PreparedDistribution,
    Own: PreparedOwn,
    Stop: lambda _here, _act: None,
}
"""Makes what performs an act, called with (origin, place); None ends the rank."""

Enter = Callable[..., synk_comm.Communicator]
"""Enters a group, and returns its communicator; takes `timeout_s` and `watch`."""

REASON_LIMIT = 1000
"""Characters of a reason that peers get; tracebacks go to the master alone."""


WIDTH = 32
"""Integers in a line: serial, bytes of extras, number of steps, then two for each step."""

_HEADER = 3
STEPS_IN_LINE = (WIDTH - _HEADER) // 2

_GRAIN = 512
"""Extras are padded to multiples of this many bytes: few lengths, few different broadcasts."""


class OrderLine:
    """Sends orders in the master; receives them in a worker."""

    def __init__(self, comm: Any, master: int) -> None:
        self._broadcast: Callable[..., Any] = comm.broadcast
        self._master = master
        self._line = np.zeros(WIDTH, np.int64)
        # Single integers go in quicker this way.
        self._words: Any = memoryview(self._line)  # type: ignore[arg-type] # says NumPy 1

    def give(self, order: Order, timeout_s: Optional[float] = None) -> None:
        """Send an order to all other ranks; block until they take it, at most for `timeout_s`
        seconds (None: the communicator's)."""
        serial, steps, extras = order
        words = self._words
        words[0], words[1], words[2] = serial, 0, len(steps)
        payload = b""
        if len(steps) > STEPS_IN_LINE:
            extras = replace(extras or Extras({}), steps=list(steps))
        else:
            place = _HEADER
            for number, origin in steps:
                words[place], words[place + 1] = number, origin
                place += 2
        if extras is not None:
            payload = pickle.dumps(extras, protocol=5)
            words[1] = len(payload)
        self._broadcast(self._line, self._master, timeout_s=timeout_s)
        if payload:
            padded = np.zeros(_padded(len(payload)), np.uint8)
            padded[: len(payload)] = np.frombuffer(payload, np.uint8)
            self._broadcast(padded, self._master, timeout_s=timeout_s)

    def take(self) -> Order:
        """Wait for the master's next order, or for the master's end."""
        self._broadcast(self._line, self._master)
        serial, length, count, *words = self._line.tolist()
        steps: List[Step] = []
        if count <= STEPS_IN_LINE:
            steps = [Step(words[2 * i], words[2 * i + 1]) for i in range(count)]
        if not length:
            return Order(serial, steps)
        padded = np.empty(_padded(length), np.uint8)
        self._broadcast(padded, self._master)
        # From the master alone: through memory that only its children can open, or by MPI.
        extras: Extras = pickle.loads(padded[:length].tobytes())
        return Order(serial, steps if extras.steps is None else extras.steps, extras)


def _padded(length: int) -> int:
    return -(-length // _GRAIN) * _GRAIN


class Rank(Workplace):
    """A rank at work: joins the others, performs orders, undoes those that fail.

    Attributes:
        in_step: False while an order is under way, and after a failure that leaves it unknown
            how far the other ranks are: then the group is of no more use.
        also_declined: the other ranks that failed in the order in which this one failed.
        failed_at: when an order failed here last, in seconds of `time.perf_counter`.
        before_decline: called with this rank's error before the others are notified; returns the
            seconds to wait for them, None for as long as for any collective.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.in_step = True
        self.also_declined: Dict[int, str] = {}
        self.failed_at = 0.0
        self._ending = False  # whether the others may have done the order under way
        self.pid = os.getpid()
        self.before_decline: Callable[[BaseException], Optional[float]] = lambda _error: None
        self.line: Optional[OrderLine] = None
        self._groups: List[synk_comm.Communicator] = []

    def group_raised(self, error: BaseException, *kinds: Type[BaseException]) -> bool:
        """Return whether an error (of these kinds) is about this runtime's ranks: the program may
        have groups of its own, whose errors are failures like others."""
        if not isinstance(error, kinds or (synk_comm.CommError, ChannelClosed)):
            return False
        # Nothing of the program's runs before the ranks have joined.
        ours = not self._groups or any(group.raised(error) for group in self._groups)
        return ours and not isinstance(error, cuda.CudaError)

    def join(self, enter: Optional[Enter], timeout_s: float, watch: Callable[[], None]) -> None:
        """Meet the other ranks. Blocks until all are there; alone, nothing is needed."""
        if enter is None:
            (self.comm,) = self._groups = synk_comm.local_group(1)
        else:
            host = enter(timeout_s=timeout_s, watch=watch)
            self.comm = host
            self.line = OrderLine(host, self.master)
            if self.mirror is not None:
                self.mirror.join(host)
                host.barrier()  # a rank that fails until here fails at the start
            self.device.apart = self._apart
            self.comm = self.device.connect(host)
            self._groups = [host, self.comm, *(self.mirror.groups if self.mirror else ())]

    def perform(
        self,
        order: Optional[Order] = None,
        began: Optional[float] = None,
        timeout_s: Optional[float] = None,
    ) -> Optional[List[Any]]:
        """Do this rank's part of an order. Blocks until all ranks have done theirs.

        Args:
            order: given by the master; None on the other ranks, which wait for it here.
            began: when the master began to prepare it, by `time.perf_counter`.
            timeout_s: of the master's giving it, see `OrderLine.give`.

        Returns:
            On the master the result of each act; elsewhere None after an order to stop.

        Raises:
            synk_comm.PeerDeclined: another rank failed; this one has left the order.
            Exception: this rank failed, and its peers have left the order.
        """
        # Pessimistic: after an interrupt in between, the ranks may have lost each other.
        self.in_step, self.doing, self._ending = False, "", False
        if self.device.is_gpu:
            self.device.begin()
        prepared = perf_counter()
        flight = self.flight
        try:
            if order is None:
                flight.enter(_IDLE)
                order = self.line.take()  # type: ignore[union-attr] # ranks without get orders
                began = prepared = perf_counter()
            elif self.line is not None:
                self.line.give(order, timeout_s)
        except synk_comm.PeerDeclined:  # another rank has failed after this one was done
            self._undo_last()
            raise
        self.serial = order.serial
        self.doing = "taking in what is new"
        if self.journal.kept_values or self.journal.spares:
            self.journal.begin()
        known = self.registry.end
        recorder = flight.recorder
        try:
            # Nothing interrupts a wait for others: the ranks would lose each other. An interrupt
            # that comes before this rank has noted its failure is caught below.
            try:
                results = self._perform_acts(order)
            except BaseException:
                if flight.phase[0] in OWN_WORK:
                    flight.enter(Phase.FAIL)
                raise
            if recorder is not None and results is not None:
                names = [self.acts[number].name for number, _ in order.steps]
                recorder.performed(order.serial, names, began or prepared, prepared, self.is_master)
            return results
        except BaseException as error:
            self._fail(error, order, known)
            raise

    def _fail(self, error: BaseException, order: Order, known: int) -> None:
        """Undo an order, and have the others leave it, unless one of them has failed."""
        self.failed_at = perf_counter()
        try:
            self.device.undo()
            self._undo(known, order, error)
        finally:
            self.journal.undo()
        if self.group_raised(error):
            self.in_step = isinstance(error, (synk_comm.PeerDeclined, synk_comm.MismatchError))
        elif self._ending:
            # The others may have finished: this rank alone has undone the order.
            self.in_step = False
        else:
            self._decline(error)

    def _perform_acts(self, order: Order) -> Optional[List[Any]]:
        """Perform the acts, and wait until all ranks have; return results as the user gets them.
        None to stop."""
        flight = self.flight
        serial, steps, extras = order
        if extras is not None:
            flight.enter(Phase.TAKE_IN)
            self._take_in(extras)
        results = []
        place, synchronized = self.rank, self.size == 1
        average = None  # what an act may do for the one after it
        on_device = self.device.takes_collectives
        for i, (number, origin) in enumerate(steps):
            act = self.acts[number]
            if act is None:
                flight.enter(Phase.CLOSE)
                return None
            self.doing = act.doing
            if on_device:
                if isinstance(act, PreparedCollective):
                    act.average = average
                following = self.acts[steps[i + 1][0]] if i + 1 < len(steps) else None
                average = act.plan_overlap(following) if isinstance(act, PreparedCall) else None
            flight.begin(serial, i, act)
            results.append(act(origin, place))
            flight.end(_DONE)
            place += self.size
            synchronized = act.synchronizes
        if self.device.is_functional:
            flight.enter(_REDUCE)
            synchronized = self.device.end(results) or synchronized
        if on_device and any(map(_is_incomplete, results)):
            results, synchronized = self._collected(results, steps), True
        self._ending = True
        if not synchronized and self.size > 1:
            flight.enter(_END)
            self.comm.barrier()
        if self.is_master:
            if self.device.is_gpu:
                flight.enter(_END)
                results = self.device.fetch(results)
            flight.enter(_IDLE)
        self.in_step = True
        return results

    @contextlib.contextmanager
    def _apart(self) -> Iterator[None]:
        """Do something that no signal interrupts: the ranks would lose each other."""
        flight, phase, is_own = self.flight, self.flight.word, self.flight.phase[0] in OWN_WORK
        flight.enter(Phase.COLLECTIVE)
        yield
        flight.enter(phase)
        if is_own:
            flight.raise_if_interrupted(self.serial)

    def _collected(self, results: List[Any], steps: List[Step]) -> List[Any]:
        """Return the results, with what calls have left to be collected in the end."""
        self.flight.enter(Phase.DEVICE)
        results = self.device.fetch(results)
        self.flight.enter(Phase.REDUCE)
        for i, result in enumerate(results):
            if _is_incomplete(result):
                self.doing = self.acts[steps[i].number].doing
                results[i] = result.collected(self.comm, self.master)
        return results

    def _undo_last(self) -> None:
        """Undo the order that this rank has done, as the others do."""
        self.flight.mark(self.serial, ActOutcome.UNDONE)
        self.undone = self.serial
        self.journal.undo()

    def send(self, order: Order, timeout_s: float) -> None:
        """Send the other ranks their last order, which this one does not perform."""
        self.in_step = False
        if self.line is not None:
            self.line.give(order, timeout_s)

    def _take_in(self, extras: Extras) -> None:
        if self.mirror is not None:
            # First: nothing fails between the ranks' agreement on the order and this.
            self.mirror.forget(extras.forget_arrays)
            self.mirror.take_in(extras)
        for number in extras.forget_acts:
            self._forget_act(number)
        self.arrays.forget(extras.forget_arrays)
        for number in extras.forget_functions:
            if number in self.functions:
                self.functions.pop(number).close()
            if self.device.uploads is not None:
                self.device.uploads.forget(number)
        for number in extras.forget_variables:
            self.registry.forget(number)
            self.journal.forget(number)
        if extras.forget_functions and not self.is_master:
            # Graphs are cycles, and little else here triggers a collection. In the master it is
            # the user's program that decides.
            gc.collect()
        for number, act in extras.acts.items():
            self.acts[number] = _PREPARED[type(act)](self, act)

    def _forget_act(self, number: int) -> None:
        # No variable of `_take_in`, which would keep it until all garbage is collected.
        act = self.acts.pop(number, None)
        if isinstance(act, PreparedCall):
            act.close()  # its function may hold it still, as the one prefetched last

    def _undo(self, known: int, order: Order, error: BaseException) -> None:
        """Drop everything that came with a failed order: the master counts nothing as sent."""
        self.undone = order.serial
        self.journal.undo()
        self.flight.mark(order.serial, ActOutcome.UNDONE)
        if self.flight.recorder is not None:
            self.flight.recorder.place = None
        if not self.group_raised(error, synk_comm.PeerDeclined):
            self.flight.end(ActOutcome.FAILED)
        if not self.is_master:
            self.registry.truncate(known)
        if order.extras is not None:
            for number in order.extras.acts:
                self.acts.pop(number, None)

    def take_back(self, error: BaseException) -> None:
        """On the master: undo the order that all ranks have just done, and raise `error`.

        The others wait for the next order; they undo this one when the master declines that.
        """
        self.in_step = False
        self._undo_last()
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
        if not isinstance(self.comm, NotJoined):
            # First: freeing memory that the device still uses would wait for it.
            self.comm.close()
        if self.mirror is not None:
            self.mirror.close()
        self.times = None
        self.flight.close()
        self.journal.close()
        for act in list(self.acts.values()):
            if isinstance(act, PreparedCall):
                act.close()
        self.acts.clear()
        self.arrays.close()
        for function in list(self.functions.values()):
            function.close()
        self.functions.clear()
        self.registry.truncate(0)
        self.device.close()


def _is_incomplete(result: Any) -> bool:
    return isinstance(result, CallResult) and bool(result.later)
