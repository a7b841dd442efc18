"""Index batches: shuffle numbers, not data."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

__all__ = ["index_batches"]


def index_batches(
    num_rows: int,
    batch_size: int,
    rng: Any | None = None,
    drop_last: bool = False,
) -> Iterator[Any]:
    """Yield index arrays that together select each of ``num_rows`` rows once.

    Use them with the keyword ``batch=`` of functions: the data set stays in shared memory, and each
    rank reads its own part of the indexes, in parallel::

        for indexes in index_batches(len(x_data), 128, rng):
            loss = train(x_data, y_data, batch=indexes)

    Args:
        num_rows: Length of the data along axis 0.
        batch_size: Rows per batch, for all ranks together. It need not be divisible by the number
            of ranks, nor divide ``num_rows``: the last batch is then smaller.
        rng: Shuffles the rows: a ``numpy.random.Generator`` or ``RandomState`` (``permutation`` is
            called once, at the start of the iteration). None keeps the rows in order.
        drop_last: Leave out a last batch that is smaller than ``batch_size``.

    Yields:
        int64 arrays with the shape ``(batch_size,)``; the last one may be shorter.

    Raises:
        TypeError: ``rng`` is not a generator.
        ValueError: ``batch_size`` is less than 1, or ``num_rows`` is negative. Both are raised at
            the call, not at the first batch.
    """
    if rng is not None and not hasattr(rng, "permutation"):
        raise TypeError(
            f"rng is {rng!r}; expected a generator such as numpy.random.default_rng(0), made once "
            "before the epochs"
        )
    if batch_size < 1:
        raise ValueError(f"batch_size is {batch_size}; expected at least 1")
    if num_rows < 0:
        raise ValueError(f"num_rows is {num_rows}; expected 0 or more")
    stop = num_rows - num_rows % batch_size if drop_last else num_rows
    return _batches(num_rows, stop, batch_size, rng)


def _batches(num_rows: int, stop: int, batch_size: int, rng: Any | None) -> Iterator[Any]:
    order = np.arange(num_rows) if rng is None else rng.permutation(num_rows)
    order = order.astype(np.int64, copy=False)
    for start in range(0, stop, batch_size):
        yield order[start : min(start + batch_size, stop)]
