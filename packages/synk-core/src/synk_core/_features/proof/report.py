"""The difference between two arrays, and the report of a proof. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Dict, Optional, Tuple

import numpy as np

from synk_core.engine import TITLE
from synk_core.exceptions import VerifyError

PART = 1 << 16
"""Elements that are compared at a time: they fit into a core's cache."""

BY_SLICES = "not compared: in-graph reductions reduce slice by slice, which one process does not"
"""A note of calls in slices."""

_CURE_OF_ROWS = (
    "Where rows need each other (negatives, neighbours, a denominator, batch normalization), take "
    "them from all ranks by in_graph.all_gather() or in_graph.all_reduce(). To go on as it is, "
    "build the function with proof=False"
)

_CURE_OF_UPDATES = (
    "no collective over the ranks' values gives that of all rows. Let the function store a "
    "gradient that is a mean over rows, all_reduce() that, and update from it: "
    "make_train_function(loss, params, inputs, updates.adam) does so. "
)


@dataclass(frozen=True)
class Difference:
    """The difference between an array and the expected one.

    Attributes:
        ulps: ``max |got - expected| / (scale * eps)``: units in the last place of the largest
            number, with the machine epsilon of the dtype. 0 where both are NaN, or the same
            infinity; infinite where only one is, where shapes or dtypes differ, and for any
            difference of integers and booleans.
        index: index of the entry with the largest difference, None if there is no entry.
        got, expected: that entry as text; or the shapes and dtypes that differ.
    """

    ulps: float
    index: Optional[Tuple[int, ...]] = None
    got: str = ""
    expected: str = ""


def largest_magnitude(array: Any) -> float:
    """Return the largest finite magnitude in the array, 0 if there is none."""
    array = np.asarray(array)
    if array.dtype.kind not in "fc":
        return 0.0
    with np.errstate(over="ignore", invalid="ignore"):
        magnitudes = np.abs(array)
    return float(np.max(magnitudes, initial=0.0, where=np.isfinite(magnitudes)))


def measure(got: Any, expected: Any, scale: float = 0.0) -> Difference:
    """Return the difference between two arrays.

    Args:
        scale: the magnitude of the summands, if it is larger than that of the result.
    """
    got, expected = np.asarray(got), np.asarray(expected)
    if got.shape != expected.shape or got.dtype != expected.dtype:
        ours, theirs = (f"{array.dtype} of shape {array.shape}" for array in (got, expected))
        return Difference(np.inf, None, ours, theirs)
    if not got.size:
        return Difference(0.0)
    unit = 0.0
    if got.dtype.kind in "fc":
        kind = np.finfo(got.dtype)
        # No difference is smaller than one step between the smallest numbers.
        smallest = float(np.nextafter(kind.dtype.type(0), kind.dtype.type(1)))
        unit = max(max(scale, largest_magnitude(expected)) * float(kind.eps), smallest)
    worst, place = -1.0, 0
    ours, theirs = got.reshape(-1), expected.reshape(-1)
    for start in range(0, got.size, PART):
        ulps = _ulps(ours[start : start + PART], theirs[start : start + PART], unit)
        top = int(np.argmax(ulps))
        if ulps[top] > worst:
            worst, place = float(ulps[top]), start + top
    index = tuple(int(i) for i in np.unravel_index(place, got.shape))
    return Difference(worst, index, repr(got[index].item()), repr(expected[index].item()))


def _ulps(got: np.ndarray, expected: np.ndarray, unit: float) -> Any:
    if not unit:
        return np.where(got != expected, np.inf, 0.0)
    wide = np.complex128 if got.dtype.kind == "c" else np.float64
    with np.errstate(all="ignore"):
        ulps = np.abs(got.astype(wide) - expected.astype(wide)) / unit
        # Infinite is only what no rounding explains, and not any difference from nothing but zeros.
        ulps = np.minimum(ulps, np.finfo(np.float64).max)
        if np.isfinite(np.sum(got)) and np.isfinite(np.sum(expected)):
            return ulps
        odd = ~(np.isfinite(got) & np.isfinite(expected))
        same = (got == expected) | (np.isnan(got) & np.isnan(expected))
        return np.where(odd, np.where(same, 0.0, np.inf), ulps)


@dataclass(frozen=True)
class Comparison:
    """One comparison of a call with what it should have been.

    Attributes:
        what: ``"output 0 (loss)"``, ``"update of w"``, ``"w on rank 1"`` (a replica), or
            ``"operations"`` (their code).
        op: the op that combines it over ranks; of an update, a way of the program to combine it.
        run: ``"parallel"`` or ``"3 slices"``.
        difference: from the result of one process; None if that was not compared.
        limit: the largest `Difference.ulps` that counts as rounding.
        reason: why nothing was compared, or what is wrong.
        is_wrong: whether it is wrong without a difference in numbers.
    """

    what: str
    op: Optional[str]
    run: str = ""
    difference: Optional[Difference] = None
    limit: float = 0.0
    reason: str = ""
    is_wrong: bool = False

    @property
    def ok(self) -> bool:
        """Whether the difference is rounding, or nothing was compared."""
        return self.severity <= 1

    @property
    def severity(self) -> float:
        """The difference divided by the limit: wrong if above 1."""
        if self.difference is None:
            return np.inf if self.is_wrong else -1.0
        ulps = self.difference.ulps
        return ulps / self.limit if self.limit else (np.inf if ulps else 0.0)

    def __str__(self) -> str:
        found = self.difference
        if found is None:
            return f"{self.what}: {'WRONG' if self.is_wrong else 'not compared'}: {self.reason}"
        at = f" at {list(found.index)}" if found.index and found.ulps else ""
        verdict = "ok" if self.ok else "WRONG"
        text = f"{self.what}: {verdict}, {found.ulps:.3g} ulp{at}, limit {self.limit:.3g}"
        if self.ok:
            return f"{text} ({self.run})"
        cause = _CURE_OF_UPDATES
        if not self.what.startswith("update of"):
            cause = (
                f"{self.op!r} of the ranks' parts is not the whole. Use another op; weights; or an "
                f"expression whose parts combine by the op. "
            )
        values = f"{found.got}, {found.expected} in one process"
        return f"{text} ({self.run}): {values}: {cause}{_CURE_OF_ROWS}"


@dataclass(frozen=True)
class Report:
    """What a proof has compared; ``str(report)`` has a line for each output and update.

    Attributes:
        name: name of the function.
        rows: the number of rows that each rank computed.
        comparisons: all comparisons, and what was not compared, with the reason.
        notes: what could not be done, and why.
        call: the number of the function's call, from 1; 0 for `verify()`.
        how: "whole" if one process computed all rows at once; "5 pieces" if they did not fit into
            its memory.
    """

    name: str
    rows: Tuple[int, ...]
    comparisons: Tuple[Comparison, ...]
    notes: Tuple[str, ...] = ()
    call: int = 0
    how: str = "whole"

    @property
    def wrong(self) -> Tuple[Comparison, ...]:
        """The comparisons that failed."""
        return tuple(c for c in self.comparisons if not c.ok)

    @property
    def ok(self) -> bool:
        """Whether all comparisons are equal but for rounding."""
        return not self.wrong

    @property
    def worst(self) -> Optional[Comparison]:
        """The comparison with the largest severity; None if nothing was compared."""
        compared = [c for c in self.comparisons if c.severity >= 0]
        return max(compared, key=lambda c: c.severity, default=None)

    def raise_if_wrong(self) -> Report:
        """Return the report itself.

        Raises:
            VerifyError: it is not ok.
        """
        if not self.ok:
            raise VerifyError(self)
        return self

    def __str__(self) -> str:
        verdict = "ok" if self.ok else "WRONG"
        if self.worst is None:
            verdict = "nothing could be compared"
        if self.how != "whole":
            verdict += f" (one process in {self.how})"
        call = f"call {self.call} of " if self.call else ""
        on = f"{self.name!r} on {len(self.rows)} ranks with {self.rows} rows"
        worst: Dict[Tuple[str, str], Comparison] = {}  # of each output and update, and each reason
        for found in self.comparisons:
            key = found.what.partition(" on rank")[0], found.reason
            worst[key] = max(worst.get(key, found), found, key=lambda c: c.severity)
        lines = [f"{call}{on}, against one process of {TITLE}: {verdict}"]
        return "\n  ".join([*lines, *map(str, worst.values()), *self.notes])
