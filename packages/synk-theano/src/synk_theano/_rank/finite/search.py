"""Which rows is it owed to? Pure: no ranks, no Theano."""

from __future__ import annotations

from typing import Callable, NamedTuple, Optional


class Found(NamedTuple):
    """The end of a search.

    Attributes:
        length: so many rows from the beginning are enough, and one less are not.
        alone: whether the last of these does it by itself.
        every: whether other rows do so by themselves just the same: then it is no row's fault.
    """

    length: int
    alone: bool
    every: bool


def search(is_bad: Callable[[int, int], bool], count: int) -> Optional[Found]:
    """Find the smallest beginning of ``range(count)`` that is bad, in about log2(count) looks.

    What a bad beginning begins with has to be bad as well: so it is where one NaN makes all NaN.

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
