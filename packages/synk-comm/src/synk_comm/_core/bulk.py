"""The terms of a reduction, and large arrays by collectives of a back-end's own."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from .calls import CollectiveCall
from .ops import OVER, Array, ReduceOp, combine, scaled


class AgreedReduction(NamedTuple):
    """A reduction that all ranks have agreed upon."""

    op: ReduceOp
    ranks: list[int]  # that contribute
    factors: list[float] | None  # weights of these, None if all are equal
    root: int | None  # the only rank that gets the result; None if all do
    accidents: list[Exception]  # NumPy's, on overflow and its like, see ``combine``

    def combine(self, operands: Sequence[Array], out: Array) -> Exception | None:
        """Reduce one stretch of each contributing rank."""
        accident = combine(self.op, operands, out, self.factors)
        if accident is not None:
            self.accidents.append(accident)
        return accident

    def finish(self) -> None:
        """Raise NumPy's first exception, now that the call is over."""
        if self.accidents:
            self.accidents[0].__dict__[OVER] = True
            raise self.accidents[0]


def agreed(calls: Sequence[CollectiveCall]) -> AgreedReduction:
    """Return the reduction that all ranks' calls ask for."""
    ranks = [rank for rank, call in enumerate(calls) if call.weight]
    weights = [calls[rank].weight for rank in ranks]
    factors = None if min(weights) == max(weights) else scaled(weights)
    root = calls[0].root if calls[0].root >= 0 else None
    return AgreedReduction(ReduceOp(calls[0].op), ranks, factors, root, [])


class Stretch(NamedTuple):
    """Flat bytes of one rank."""

    dtype: np.dtype[Any]
    nbytes: int
    source: Array | None  # None if this rank contributes nothing
    target: Array | None  # perhaps the memory of ``source``; None if this rank gets no result


class Bulk(ABC):
    """The collectives of a back-end that move or reduce a large array at once, not slot by slot.

    All ranks call the same method, after the round with the heads. Arrays are flat bytes. Returned
    arrays are valid until this rank's next call.
    """

    @abstractmethod
    def spread(self, root: int, data: Array, deadline: float) -> None:
        """Copy the root's bytes into ``data`` of all others, which is as long."""

    @abstractmethod
    def collect(
        self, root: int | None, source: Array | None, counts: Sequence[int], deadline: float
    ) -> list[Array]:
        """Return all ranks' bytes, ``counts`` of each; on others than a root, nothing."""

    @abstractmethod
    def deal(
        self, sources: Sequence[Array] | None, counts: Sequence[int], deadline: float
    ) -> list[Array]:
        """Return the bytes of each rank for this one, ``counts`` of each."""

    @abstractmethod
    def reduce(self, plan: AgreedReduction, stretch: Stretch, deadline: float) -> Exception | None:
        """Reduce one stretch; return NumPy's exception on overflow and its like."""
