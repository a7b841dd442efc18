"""What is measured: sizes, the arrays of a rank, and what NumPy says the result has to be.

Sums of small integers in float32 are exact in any order; their period is prime, so no chunk looks
like another.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from synk_benchmarks.results import GB, KB, MB

SIZES = (4, KB, 4 * KB, 16 * KB, 64 * KB, 256 * KB, MB, 4 * MB, 16 * MB, 64 * MB)
RANKS = (2, 4)
PERIOD = 4099
ROOT = 0

# Which ranks give one array, or one for each rank; and which receive.
_REDUCED = {"all_reduce", "all_reduce_in_place"}
_STACKED = {"all_gather", "all_to_all"}
_BLOCKS = {"reduce_scatter", "all_to_all"}


METRICS = (
    *("barrier", "all_reduce", "all_reduce_in_place", "reduce_scatter", "broadcast"),
    *("all_gather", "all_to_all", "ping_pong", "mismatch", "order"),
)
WITHOUT_SIZE = {"barrier", "mismatch", "order"}
OVER_MPI = ("order", "barrier", "broadcast", "all_reduce", "ping_pong")
MPI_SIZES = (KB, MB, 100 * MB)


def parse_size(text: str) -> int:
    """Read 4, 64K or 1M; ValueError if it is none, or no multiple of a float32."""
    digits, factor = text[:-1], {"K": KB, "M": MB, "G": GB}.get(text[-1:].upper(), 1)
    digits = text if factor == 1 else digits
    if not digits.isdigit() or int(digits) * factor < 4 or int(digits) * factor % 4:
        raise ValueError(f"{text!r} is no size; expected a multiple of 4 bytes, as 4, 64K or 1M")
    return int(digits) * factor


class Case:
    """One collective at one size: `out` receives the result of what this rank gives, `x`.

    `nbytes` are those of the array that a rank gives, or of one block if it gives one to each.
    """

    def __init__(self, op: str, nbytes: int, rank: int, size: int) -> None:
        self.op = op
        self.nbytes = nbytes
        self.rank = rank
        self.size = size
        self.count = nbytes // 4
        self._given = size if op in _BLOCKS else 1
        self._received = size if op in _STACKED else 1
        if op in WITHOUT_SIZE:
            self._received = 0
        if op == "ping_pong" and rank > 1:
            self._received = 0
        self.x = self._empty(self._given)
        self.out = self._empty(self._received)

    def scratch(self) -> Any:
        """Return another array like x, for contenders that only work in place."""
        return self._empty(self._given)

    def fill(self, x: Any, out: Any) -> None:
        """Write this rank's values, and into the rest what is no result."""
        if out is not x:
            out.fill(-1)
        for block, row in enumerate(self._rows(x)):
            row[:] = self._values(_base(self.rank, block))

    def wrong(self, out: Any) -> str:
        """Return what is wrong with a result; empty if nothing is."""
        for block, row in enumerate(self._rows(out)[: self._received]):
            right = self._values(self._expected(block))
            if not np.array_equal(row, right):
                at = int(np.flatnonzero(row != right)[0])
                return (
                    f"wrong result on rank {self.rank}: got {row[at]} at {at} of block {block}, "
                    f"expected {right[at]}"
                )
        return ""

    def rest(self, x: Any, out: Any) -> None:
        """Prepare for many calls: sums in place would grow beyond all bounds."""
        if x is out:
            x.fill(0)

    def _empty(self, blocks: int) -> Any:
        shape = (self.count,) if blocks == 1 else (blocks, self.count)
        return np.empty(shape, np.float32)

    def _rows(self, x: Any) -> Any:
        return x.reshape(-1, self.count) if x.size else x

    def _values(self, base: Any) -> Any:
        return np.resize(base, self.count)

    def _expected(self, block: int) -> Any:
        ranks = range(self.size)
        if self.op in _REDUCED:
            return sum(_base(rank, 0) for rank in ranks)
        if self.op == "reduce_scatter":
            return sum(_base(rank, self.rank) for rank in ranks)
        if self.op == "all_to_all":
            return _base(block, self.rank)
        if self.op == "all_gather":
            return _base(block, 0)
        return _base(ROOT, 0)  # broadcast, ping_pong


def _base(rank: int, block: int) -> Any:
    numbers = np.arange(PERIOD) * (3 + rank) + 13 * block + 5 * rank
    return (numbers % 97 + 1).astype(np.float32)
