"""Find the rows that cause a bad result. Pure: no ranks, no Theano."""

from __future__ import annotations

from typing import Callable, NamedTuple, Optional


class Found(NamedTuple):
    """The result of a search.

    Attributes:
        length: rows from the beginning that are bad together; one row fewer is not.
        alone: whether the last of these rows is bad by itself.
        every: whether other rows are bad by themselves too: then no single row is the cause.
    """

    length: int
    alone: bool
    every: bool


def search(is_bad: Callable[[int, int], bool], count: int) -> Optional[Found]:
    """Find the smallest beginning of ``range(count)`` that is bad, in about log2(count) tests.

    Assumes that rows added to a bad beginning leave it bad, as where one NaN makes all NaN.

    Args:
        is_bad: whether the rows ``start:stop``, never empty, are bad by themselves.

    Returns:
        None if all rows together are not bad (any more).

    >>> search(lambda start, stop: start <= 5 < stop, 100)
    Found(length=6, alone=True, every=False)
    """
    if not count or not is_bad(0, count):
        return None
    good, bad = 0, count
    while bad - good > 1:
        middle = (good + bad) // 2
        if is_bad(0, middle):
            bad = middle
        else:
            good = middle
    alone = bad == 1 or is_bad(bad - 1, bad)
    others = {count // 2, count - 1} - {0}
    every = bad == 1 and bool(others) and all(is_bad(row, row + 1) for row in others)
    return Found(bad, alone, every)
