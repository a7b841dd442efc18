"""One rank's part of the reductions inside a graph, in the calls of one function.

All ranks have the rows of each, and so how often each runs the function: in round k of a call every
rank runs its slice k. A rank without such a slice, or without rows, joins the round's reductions
with nothing to contribute.

A rank that fails declines its next collective: the one in which the others wait, in the middle of
their graphs, or which they reach next.
"""

from __future__ import annotations

from typing import Any, Callable, List, Optional, Sequence, Tuple

import numpy as np

from synk_core._graph.reduce_op import AllReduce, meeting
from synk_core._graph.shared import store, value_of
from synk_core._plan.rows import split_rows
from synk_core._wire.flight import Phase

from .workplace import Workplace

Rounds = List[Tuple[int, ...]]
"""For each round the rows of each rank."""


class GraphReductions:
    """The reductions inside one form of a function, on one rank.

    Args:
        replicated: numbers of the variables whose new value is the same on all ranks, computed
            from reductions and from equal values alone; each with its op over slices.

    Attributes:
        watch: called with this rank's contribution before the others get it; may raise.
    """

    def __init__(
        self, nodes: Sequence[Any], replicated: Sequence[Tuple[int, str]], here: Workplace
    ) -> None:
        self.watch: Optional[Callable[[np.ndarray], None]] = None
        self._nodes = nodes
        self._replicated = replicated
        self._here = here
        self._comm = here.comm
        self._rounds: Rounds = []
        self._done = 0
        self._counts: Sequence[int] = ()
        self._failure: Optional[BaseException] = None

    def begin(self, counts: Sequence[int], num_slices: int) -> None:
        """Begin a call with these rows of each rank, in so many slices."""
        self._counts = counts
        self._rounds = rounds_of(counts, num_slices)
        self._done = 0

    def execute(self, function: Any, arguments: Sequence[Any]) -> Any:
        """Run the function for the next round."""
        if self._done == len(self._rounds):
            # A call without any rows: the master computes alone.
            return function(*arguments)
        self._done += 1
        self._failure = None
        try:
            with meeting(self):
                return function(*arguments)
        except BaseException:
            if self._failure is not None:
                # Without the engine's additions to errors: it concerns all ranks.
                raise self._failure from None
            raise

    def all_reduce(self, x: np.ndarray, op: AllReduce) -> np.ndarray:
        """Reduce over the ranks with rows in this round; called in the middle of a graph."""
        rows = self._rounds[self._done - 1]
        own = rows[self._comm.rank]
        # A product with a share of the rows, or its inverse, may leave float16's range.
        wide = np.promote_types(x.dtype, np.float32) if op.power else x.dtype
        weight = {"weight": float(own)} if op.op == "avg" else {}
        phase = self._here.flight.word
        try:
            if self.watch is not None:
                self.watch(x)
            self._here.flight.enter(Phase.COLLECTIVE)
            result = self._meet(np.asarray(x, wide), op.op, **weight)
        except BaseException as error:
            self._failure = error
            raise
        self._here.flight.enter(phase)
        # A signal during the collective was not looked at.
        self._here.flight.raise_if_interrupted(self._here.serial)
        if op.power:
            result = result * np.asarray((own / sum(rows)) ** op.power, wide)
        return np.asarray(result, x.dtype)  # compiled code takes no NumPy scalar

    def _meet(self, x: Optional[np.ndarray], op: str, **weight: float) -> Any:
        if op in ("sum", "avg"):
            return self._comm.all_reduce(x, op, **weight)
        parts = self._comm.all_gather(x)
        if x is None:
            return None
        before = [part for part in parts[: self._comm.rank] if part is not None]
        if op == "before":
            return sum(before, np.zeros_like(x))
        return np.concatenate([part for part in parts if part is not None])

    def finish(self) -> None:
        """Join the rounds that others run without this rank; then make replicated values equal."""
        for _ in self._rounds[self._done :]:
            for node in self._nodes:
                self._meet(None, node.op.op)
        if len(self._rounds) > 1 or (self._rounds and 0 in self._counts):
            for number, op in self._replicated:
                self._make_equal(self._here.registry[number], op)

    def _make_equal(self, variable: Any, op: str) -> None:
        value = np.array(value_of(variable))
        own = self._counts[self._comm.rank]
        if op == "avg" and len(self._rounds) > 1:
            # Each rank has weighted the rounds by its own rows; weighted by rows, they are exact.
            mine = value if own else None
            value = np.asarray(self._comm.all_reduce(mine, "avg", weight=float(own or 1)))
        else:
            # From a rank that took part in every round.
            self._comm.broadcast(value, root=int(np.argmax(self._counts)))
        store(variable, value)


def rounds_of(counts: Sequence[int], num_slices: int) -> Rounds:
    """Return the rows of each rank in each round of a call.

    >>> rounds_of([3, 1, 0], 2)
    [(2, 1, 0), (1, 0, 0)]
    """
    most = min(num_slices, max(*counts, 1))
    sizes = [[stop - start for start, stop in split_rows(n, most)] for n in counts]
    rounds = [tuple(rows) for rows in zip(*sizes)]
    return [rows for rows in rounds if any(rows)]
