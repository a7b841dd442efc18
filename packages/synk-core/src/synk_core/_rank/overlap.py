"""Averages over ranks that begin while a function still computes: of a vector made of parts.

In a step that calls a function and then averages what it has computed (`all_reduce` with the
function's rows as weights), the average begins with the first parts. The ranks' calls are compared
before the function runs. From then on a rank that fails gives the others something in place of what
it lacks, so that their devices do not wait for it for ever. Then it declines, and all undo the
step.
"""

from __future__ import annotations

from typing import Any, Callable, List, Optional, Sequence, Tuple

from synk_core._graph.values import empty_like
from synk_core._wire.flight import Phase
from synk_core.device import VectorParts

from .workplace import Workplace


class OverlappedAverage:
    """The average of one variable's new value, in the calls of one form of a function, on one rank.

    It is an `Aim` of the parts, which `function` reports.

    Attributes:
        vector: to which the ranks' average comes.
        started: whether parts are being reduced already.
        is_done: whether the last call has averaged the variable.
    """

    takes_parts = True

    def __init__(self, here: Workplace, function: Any, parts: VectorParts, number: int) -> None:
        self.function = function
        self.parts = parts
        self.vector: Any = None
        self.started = False
        self.is_done = False
        self._here = here
        self._number = number
        self._storage = here.registry[number].container.storage
        self._reduction: Any = None
        self._given = 0
        self._weight = 0.0
        self._failure: Optional[BaseException] = None
        self._learned = -1

    @classmethod
    def of(cls, here: Workplace, function: Any, number: int) -> Optional[OverlappedAverage]:
        """Return what averages the variable; None if the function does not join it from parts."""
        found = here.device.in_parts(function, here.registry[number].container.storage)
        return None if found is None else cls(here, *found, number)

    def learn(self) -> None:
        """Overlap from the next call on: all ranks have averaged the variable after this one.

        If the order is undone, all ranks forget it, as whatever they have learned before.
        """
        value = self._storage[0]
        if self._here.device.takes([value], reducible=True):
            self.parts.learn(value.dtype.itemsize)
            self._learned = self._here.undone

    def ready(self, sources: Sequence[Any]) -> None:
        """Reduce the next pieces."""
        self.started = True
        self._apart(self._reduce, sources)

    def _reduce(self, sources: Sequence[Any]) -> None:
        for source in sources:
            self._reduction.ready(source)
            self._given += 1

    def begin(self, counts: Sequence[int]) -> None:
        """Begin a call, whose average is weighted by these rows of each rank."""
        self._weight, self.is_done = float(counts[self._here.rank]), False

    def execute(self, function: Callable[..., List[Any]], arguments: Sequence[Any]) -> List[Any]:
        """Run the function, and average the variable.

        Does just the former while the sizes of the parts are not known. Blocks until all ranks have
        come here. The function is this object's, or computes the same.
        """
        pieces = self.parts.pieces
        if not pieces or self._learned != self._here.undone:
            return function(*arguments)
        self.vector, self.started, self._given = self._room(), False, 0
        try:
            self._apart(self._begin, pieces)
            with self.parts.aimed(self):
                results = function(*arguments)
            value = self._storage[0]
            self.is_done = value.shape == self.vector.shape
            if self.is_done and value is not self.vector:
                self.ready([value[begin:end] for begin, end, _ in pieces[self._given :]])
            # The sizes have changed: the reduced pieces are others, and the next act reduces all.
            self._apart(self._reduction.wait)
            if self.is_done:
                self._storage[0] = self.vector
        except BaseException:
            if self._reduction is not None:
                self._apart(self._reduction.wait)
            if self._failure is not None:
                # Without the engine's additions to errors: it concerns all ranks.
                raise self._failure from None
            raise
        finally:
            self._reduction = self.vector = self._failure = None
        return results

    def _begin(self, pieces: Sequence[Tuple[int, int, int]]) -> None:
        comm: Any = self._here.comm  # of devices
        bounds = [(begin, end) for begin, end, _ in pieces]
        self._reduction = comm.partitioned_all_reduce(
            self.vector, "avg", bounds=bounds, weight=self._weight
        )

    def _room(self) -> Any:
        value, size = self._storage[0], self.parts.size
        if value.shape == (size,):
            return self._here.journal.room(self._number, self._storage)
        return empty_like(value, (size,), value.dtype)

    def _apart(self, act: Callable[..., Any], *arguments: Any, **named: Any) -> Any:
        """Do something that no signal interrupts: the ranks would lose each other."""
        here, phase = self._here, self._here.flight.word
        here.flight.enter(Phase.COLLECTIVE)
        try:
            result = act(*arguments, **named)
        except BaseException as error:
            self._failure = self._failure or error
            raise
        here.flight.enter(phase)
        here.flight.raise_if_interrupted(here.serial)
        return result
