"""What one rank does for the reductions inside of a graph, in the calls of one function.

All ranks know how many rows each of them has, and so who runs the function how many times: in
round k of a call every rank runs its slice k. A rank that has no such slice, or no rows at all,
comes to the round's reductions all the same, with nothing to contribute.

A rank that fails declines its next collective, which is the one in which the others wait in the
middle of their graphs, or come to.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Callable, List, Optional, Sequence, Tuple

import numpy as np

from synk_theano._graph.reduce_op import MEETING, AllReduce
from synk_theano._graph.shared import store, value_of
from synk_theano._plan.rows import split_rows
from synk_theano._watch.flight import Phase

if TYPE_CHECKING:
    from .rank import Rank

Rounds = List[Tuple[int, ...]]
"""For each round the rows that each rank has in it."""


class Meeting:
    """The meetings of one form of a function on one rank.

    Args:
        nodes: the form's reductions, in order.
        replicated: the variables that all ranks give the same new value, computed from nothing
            but reductions and what is equal everywhere, and how each accumulates over slices.
        rank: this one.

    Attributes:
        watch: given what this rank contributes, raises if that is not to go to the others.
    """

    def __init__(
        self, nodes: Sequence[Any], replicated: Sequence[Tuple[int, str]], rank: Rank
    ) -> None:
        self.watch: Optional[Callable[[np.ndarray], None]] = None
        self._nodes = nodes
        self._replicated = replicated
        self._rank = rank
        self._comm = rank.comm
        self._registry = rank.registry
        self._flight = rank.flight
        self._rounds: Rounds = []
        self._done = 0
        self._counts: Sequence[int] = ()
        self._failure: Optional[BaseException] = None

    def begin(self, counts: Sequence[int], num_slices: int) -> None:
        """A call begins in which the ranks have so many rows each, in so many slices."""
        self._counts = counts
        self._rounds = rounds_of(counts, num_slices)
        self._done = 0

    def execute(self, function: Any, arguments: Sequence[Any]) -> Any:
        """Run the function for the next round."""
        if self._done == len(self._rounds):
            # A call without any rows is the master's alone.
            return function(*arguments)
        self._done += 1
        self._failure = None
        for node in self._nodes:
            setattr(node.tag, MEETING, self)
        try:
            return function(*arguments)
        except BaseException:
            if self._failure is not None:
                # As it was, without what Theano makes of errors: it is about all ranks.
                raise self._failure from None
            raise
        finally:
            for node in self._nodes:
                delattr(node.tag, MEETING)

    def all_reduce(self, x: np.ndarray, op: AllReduce) -> np.ndarray:
        """Reduce over the ranks that have rows in this round; called in the middle of a graph."""
        rows = self._rounds[self._done - 1]
        own = rows[self._comm.rank]
        weight = {"weight": float(own)} if op.op == "avg" else {}
        phase = self._flight.phase
        try:
            if self.watch is not None:
                self.watch(x)
            self._flight.enter(Phase.COLLECTIVE)
            result = np.asarray(self._comm.all_reduce(x, op.op, **weight))
        except BaseException as error:
            self._failure = error
            raise
        self._flight.enter(*phase)
        # A signal that came while this rank was in there has gone by.
        self._rank.heed_interrupt()
        if op.power:
            result = result * np.asarray((own / sum(rows)) ** op.power, result.dtype)
        return result

    def finish(self) -> None:
        """The rounds in which others run the function and this rank does not; then all ranks
        have the same new values of what is to be equal."""
        for _ in self._rounds[self._done :]:
            for node in self._nodes:
                self._comm.all_reduce(None, node.op.op)
        if len(self._rounds) > 1 or (self._rounds and 0 in self._counts):
            for number, op in self._replicated:
                self._make_equal(self._registry[number], op)

    def _make_equal(self, variable: Any, op: str) -> None:
        value = np.array(value_of(variable))
        own = self._counts[self._comm.rank]
        if op == "avg" and len(self._rounds) > 1:
            # Each rank has weighted the rounds by its own rows: so they count by all rows.
            mine = value if own else None
            value = self._comm.all_reduce(mine, "avg", weight=float(own or 1))
        else:
            # From the rank that was in every round.
            self._comm.broadcast(value, root=int(np.argmax(self._counts)))
        store(variable, value)


def meeting_for(
    nodes: Sequence[Any],
    replicated: Sequence[Tuple[int, str]],
    rank: Rank,
) -> Optional[Meeting]:
    """The meetings of a form with these reductions; None if there are none."""
    return Meeting(nodes, replicated, rank) if nodes and rank.size > 1 else None


def rounds_of(counts: Sequence[int], num_slices: int) -> Rounds:
    """The rows of each rank in each round of a call.

    >>> rounds_of([3, 1, 0], 2)
    [(2, 1, 0), (1, 0, 0)]
    """
    most = min(num_slices, max(*counts, 1))
    sizes = [[stop - start for start, stop in split_rows(n, most)] for n in counts]
    rounds = [tuple(rows) for rows in zip(*sizes)]
    return [rows for rows in rounds if any(rows)]
