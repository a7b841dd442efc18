"""The terms of a reduction, and large arrays by collectives of a back-end's own."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from .ops import Array, ReduceOp, combine


class AgreedReduction(NamedTuple):
    """What all ranks have agreed upon.

    Attributes:
        op: how values are combined.
        ranks: who contributes.
        factors: weights of these, None if all are equal.
        root: the only rank that gets the result; None if all do.
    """

    op: ReduceOp
    ranks: list[int]
    factors: list[float] | None
    root: int | None

    def combine(self, operands: Sequence[Array], out: Array) -> Exception | None:
        """Reduce one stretch of each contributing rank."""
        return combine(self.op, operands, out, self.factors)


class Stretch(NamedTuple):
    """Flat bytes of one rank.

    Attributes:
        dtype, nbytes: of the data, the same on all ranks.
        source: what this rank brings; None if nothing.
        target: where the result goes; None if nowhere. May be the memory of ``source``.
    """

    dtype: np.dtype[Any]
    nbytes: int
    source: Array | None
    target: Array | None


class Bulk(ABC):
    """What a fabric does with large arrays at once, instead of slot by slot.

    All ranks have agreed upon the call, in the round with the heads, and call the same method.
    Arrays are flat bytes. What is returned is valid until this rank's next call.
    """

    @abstractmethod
    def spread(self, root: int, data: Array, deadline: float) -> None:
        """Copy the root's bytes into ``data`` of all others, which is as long."""

    @abstractmethod
    def collect(
        self,
        root: int | None,
        source: Array | None,
        counts: Sequence[int],
        deadline: float,
    ) -> list[Array]:
        """Return all ranks' bytes, by rank; on others than the root, if there is one, nothing.

        Args:
            source: this rank's; None if it has none.
            counts: how many each rank has.
        """

    @abstractmethod
    def deal(
        self, sources: Sequence[Array] | None, counts: Sequence[int], deadline: float
    ) -> list[Array]:
        """Return what each rank has for this one, by rank.

        Args:
            sources: what this rank has for each; None if it gives nothing.
            counts: how many bytes each rank has for this one.
        """

    @abstractmethod
    def reduce(self, plan: AgreedReduction, stretch: Stretch, deadline: float) -> Exception | None:
        """Reduce one stretch; return what NumPy raised about overflow and its like."""
