"""Staging, numbering and performing acts: what functions and collectives need of the master."""

from __future__ import annotations

import contextlib
import itertools
import weakref
from dataclasses import replace
from time import perf_counter
from typing import (
    Any,
    Callable,
    FrozenSet,
    Hashable,
    List,
    NamedTuple,
    Optional,
    Sequence,
    Tuple,
    cast,
)

import numpy as np

from synk_core._graph.facts import Event
from synk_core._plan.rows import Bounds, Selection
from synk_core._rank.proof import Rehearsed
from synk_core._watch.proof.origins import Origins
from synk_core._watch.proof.report import Report
from synk_core._watch.stats import DISTRIBUTE, Ledger, Performed, Tally
from synk_core._wire.data import Data
from synk_core._wire.messages import Act, ArrayRef, Call, Form, Proof, Rows, Step, TakeTimes
from synk_core.exceptions import NestedCall

from .builder import Builder
from .controller import Controller
from .distributor import Distributor
from .store import DataStore


class Standing(NamedTuple):
    """The position of an act among the acts of a step.

    Attributes:
        place: from 0.
        called: numbers of the functions that earlier acts call.
    """

    place: int = 0
    called: FrozenSet[int] = frozenset()


ALONE = Standing()


class Prepared(NamedTuple):
    """An act that is staged and ready to be performed.

    Attributes:
        finish: makes the caller's result of the ranks' result.
        event: for those who follow what the program does.
        nbytes: of inputs that the ranks read.
    """

    step: Step
    finish: Callable[[Any], Any]
    tally: Tally
    event: Event
    nbytes: int = 0


class Executor:
    """Performs acts on all ranks, one order at a time.

    Attributes:
        lock: held while acts are staged and performed: other threads wait.
        observers: called with each order that was performed; the caller holds the lock. Replaced as
            a whole, never changed, because an observer may leave while they are called.
        store: the arrays in shared memory that orders refer to.
        distributor: sends functions and variables to the workers.
        prefetches: whether `DelayedCall.prefetch` saves time, as on most GPUs.
        await_thread: see `Controller.await_thread`.
    """

    def __init__(
        self, controller: Controller, store: DataStore, builder: Builder, origins: Origins
    ) -> None:
        rank = controller.rank
        self.size, self.master = rank.size, rank.master
        self.lock = controller.lock
        self.ledger = Ledger(self.size, self.master, is_whole=rank.mirror is None)
        self.observers: List[Callable[[Performed], None]] = [self.ledger.observe, origins.observe]
        self.distributor = Distributor(rank, self.run_act, store, controller.garbage.collect)
        self._controller = controller
        self.store = store
        self._builder = builder
        self._acts = controller.acts
        self._registry = rank.registry
        self._device = rank.device
        self._places: weakref.WeakValueDictionary[int, Any] = weakref.WeakValueDictionary()
        self._collect = controller.garbage.collect
        self._require_open = controller.require_open
        self.prefetches = rank.device.uploads is not None
        self.await_thread = controller.await_thread

    @property
    def closed(self) -> bool:
        """Whether the runtime is of no more use."""
        return self._controller.closed

    def enter_device(self) -> None:
        """Make this thread fit to compute on the master's device."""
        self._device.enter()

    def require_ready(self) -> None:
        """Prepare for staging: forget acts whose arrays are gone or have moved.

        Raises:
            Closed: the runtime was closed.
        """
        self._require_open()
        self._collect()

    def enter(self, act: Act, name: Optional[Hashable] = None, holder: Any = None) -> int:
        """Return the number of an act; a known `name` has the same as before.

        Args:
            holder: closed by its `close()` when the act is forgotten; not kept alive.
        """
        self._collect()
        return self._acts.enter(act, name, holder)

    def knows(self, number: int) -> bool:
        """Return whether an act has not been forgotten."""
        self._collect()
        return number in self._acts

    def is_divided(self, step: Step) -> bool:
        """Return whether a call has several parts: else it is what one process computes."""
        call = cast("Call", self._acts.get(step.number))
        parts = 2 if call.rows is None else sum(map(bool, call.rows.counts))
        return parts > 1 or call.num_slices > 1

    def proving(self, step: Step, proof: Proof) -> Step:
        """Return a step that performs a call once, and proves it."""
        call = cast("Call", self._acts.get(step.number))
        return Step(self._acts.enter(replace(call, proof=proof)), step.origin)

    def rehearse(self, step: Step, proof: Proof) -> Report:
        """Have all ranks perform a call and undo it; return what it proves. The caller holds the
        lock, and has staged no other act."""
        try:
            self._controller.run([self.proving(step, replace(proof, rehearses=True))])
        except Rehearsed as done:
            return done.report
        raise AssertionError("a rehearsal was not undone")

    def perform(self, prepared: Sequence[Prepared]) -> List[Any]:
        """Have all ranks perform acts, in order; blocks until they have. The caller holds the lock.

        Returns:
            The result of each act.
        """
        controller = self._controller
        began = perf_counter()
        results = controller.run([act.step for act in prepared])
        run_s = perf_counter() - began
        finished = []
        for act, result in zip(prepared, results):
            finished.append(act.finish(result))
        serial = controller.rank.serial
        performed = Performed(prepared, controller.times, began - self.lock.began, run_s, serial)
        # Last: a warning of theirs may be an error, where the user's filters make it one.
        for observe in self.observers:
            observe(performed)
        return finished

    def run_act(
        self,
        act: Act,
        tally: Optional[str] = DISTRIBUTE,
        name: Optional[Hashable] = None,
        timeout_s: Optional[float] = None,
    ) -> Any:
        """Have all ranks perform an act of the runtime's own. The caller holds the lock.

        Args:
            tally: name of its line in `stats()`; None for none.
        """
        began = perf_counter()
        (result,) = self._controller.run([Step(self._acts.enter(act, name))], timeout_s)
        if tally is not None:
            self.ledger.tally(tally).add(perf_counter() - began)
        # The figures of a call that had to wait for this begin now.
        self.lock.began = perf_counter()
        return result

    def take_times(self) -> None:
        """Add to the ledger what ranks of other hosts have logged, if there are any.

        Within a call this does nothing: their figures come later.
        """
        if self.ledger.lacks_times and not self._controller.closed:
            with contextlib.suppress(NestedCall), self.lock:
                self.ledger.complete(self.run_act(TakeTimes(), tally=None))

    def data(self, value: Any = None, var: Any = None, **options: Any) -> Data:
        """Make a `Data`; see `synkhronos.data`."""
        self._require_open()
        return self.store.make(value, var, **options)

    def room(
        self, slot: Tuple[Any, ...], dtype: Any, shape: Tuple[int, ...], what: str
    ) -> Tuple[np.ndarray, ArrayRef]:
        """Return an array in shared memory, reused for `slot`; `what` names it in errors."""
        self._require_open()
        return self.store.room(slot, dtype, shape, what)

    def rows(
        self,
        selection: Selection,
        bounds: Sequence[Bounds],
        place: int = 0,
        needs_index: bool = True,
    ) -> Tuple[Optional[np.ndarray], Rows]:
        """Stage a selection: return the room of its index (None without one), and the rows."""
        if selection.index is None or not needs_index:
            return None, Rows(tuple(bounds), selection.step, is_regular=selection.index is None)
        index = selection.index
        target, ref = self.room(("index", place), index.dtype, index.shape, "the rows of batch=")
        target[...] = index
        return target, Rows(tuple(bounds), 1, ref)

    def take_place(self, owner: Any) -> int:
        """Return a place, as in `Standing`, of no act that is under way, until `owner` leaves it.

        An owner that is no more has left.
        """
        place = next(n for n in itertools.count(1) if n not in self._places)
        self._places[place] = owner
        return -place

    def leave_place(self, place: int) -> None:
        """Have a place of `take_place` be free again."""
        self._places.pop(-place, None)

    def require_form(self, function_id: int, form: Form) -> None:
        """Have `form` of a function on every rank; compile and distribute it if necessary."""
        self._require_open()
        self._builder.require_form(function_id, form)
        self.distributor.send((function_id,))

    def numbers(self, variables: Sequence[Any]) -> Tuple[int, ...]:
        """Return shared variables' numbers; distribute those that the workers lack.

        The caller holds the lock.
        """
        self._require_open()
        numbers = tuple(self._registry.number_of(variable) for variable in variables)
        if not self.distributor.has_all_variables():
            self.distributor.send()
        return numbers
