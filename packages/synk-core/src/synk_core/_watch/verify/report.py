"""The difference between two arrays, and the report that `verify()` returns. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Dict, List, Optional, Sequence, Tuple

import numpy as np

from synk_core.engine import TITLE
from synk_core.exceptions import VerifyError

_HEAD = ("", "op", "worst run", "error/eps", "limit", "ulp", "")


@dataclass(frozen=True)
class Difference:
    """The difference between an array and the expected one.

    Attributes:
        error: ``max |got - expected| / (scale * eps)``, with the machine epsilon of the dtype.
            0 where both are NaN, or the same infinity; infinite where only one is, where shapes
            or dtypes differ, and for any difference of integers and booleans.
        ulps: the largest distance of an entry, in steps from one representable number to the next.
            It may be large and right where numbers cancel to nearly 0.
        index: index of the entry with the largest error, None if there is no entry.
        got, expected: that entry as text; or the shapes and dtypes that differ.
        noise: if above 1, the change of the expected value (in units of the error) when inputs and
            parameters change by one rounding. The error is divided by it.
    """

    error: float
    ulps: float
    index: Optional[Tuple[int, ...]] = None
    got: str = ""
    expected: str = ""
    noise: float = 1.0


def largest_magnitude(array: Any) -> float:
    """Return the largest finite magnitude in the array, 0 if there is none."""
    array = np.asarray(array)
    if array.dtype.kind not in "fc":
        return 0.0
    with np.errstate(over="ignore", invalid="ignore"):
        magnitudes = np.abs(array)
    return float(np.max(magnitudes[np.isfinite(magnitudes)], initial=0.0))


def measure(got: Any, expected: Any, scale: float = 0.0) -> Difference:
    """Return the difference between two arrays.

    Args:
        scale: the magnitude of the summands, if it is larger than that of the result.
    """
    got, expected = np.asarray(got), np.asarray(expected)
    if got.shape != expected.shape or got.dtype != expected.dtype:
        ours, theirs = (f"{array.dtype} of shape {array.shape}" for array in (got, expected))
        return Difference(np.inf, np.inf, None, ours, theirs)
    if not got.size:
        return Difference(0.0, 0.0)
    if got.dtype.kind in "fc":
        errors, ulps = _errors(got, expected, scale), _ulps(got, expected)
    else:
        errors = np.where(got != expected, np.inf, 0.0)
        ulps = np.abs(got.astype(np.longdouble) - expected.astype(np.longdouble))
    place = np.unravel_index(int(np.argmax(errors)), errors.shape)
    index = tuple(int(i) for i in place)
    values = repr(got[place].item()), repr(expected[place].item())
    return Difference(float(errors[place]), float(np.max(ulps)), index, *values)


def _errors(got: np.ndarray, expected: np.ndarray, scale: float) -> Any:
    wide = np.clongdouble if got.dtype.kind == "c" else np.longdouble
    kind = np.finfo(got.dtype)
    # No difference is smaller than one step between the smallest numbers.
    smallest = np.nextafter(kind.dtype.type(0), kind.dtype.type(1))
    unit = np.longdouble(max(scale, largest_magnitude(expected))) * kind.eps
    with np.errstate(invalid="ignore", over="ignore"):
        errors = np.abs(got.astype(wide) - expected.astype(wide)) / max(unit, smallest)
        odd = ~(np.isfinite(got) & np.isfinite(expected))
        same = (got == expected) | (np.isnan(got) & np.isnan(expected))
        return np.where(odd, np.where(same, 0.0, np.inf), errors).astype(np.float64)


def _ulps(got: np.ndarray, expected: np.ndarray) -> np.ndarray:
    """Return the steps between entries; of complex numbers between both parts."""
    real = np.finfo(got.dtype).dtype
    a, b = (np.ascontiguousarray(array).reshape(-1).view(real) for array in (got, expected))
    x, y = _order(a), _order(b)
    steps = np.where(x > y, x - y, y - x).astype(np.float64)
    nans = np.isnan(a).astype(int) + np.isnan(b)
    return np.where(nans == 2, 0.0, np.where(nans == 1, np.inf, steps))


def _order(array: np.ndarray) -> np.ndarray:
    """Return the place of each float among all floats of its dtype; both zeros have one place."""
    unsigned = np.dtype(f"u{array.dtype.itemsize}")
    top = unsigned.type(1 << (8 * array.dtype.itemsize - 1))
    bits = array.view(unsigned)
    magnitude = bits & unsigned.type(top - unsigned.type(1))
    return np.where(bits & top, top - magnitude, top + magnitude)


@dataclass(frozen=True)
class Comparison:
    """One comparison of a run with the expected result.

    Attributes:
        what: ``"output 0 (loss)"`` or ``"update of w"``, ``"... on rank 1"``.
        op: the op that combines it over ranks, None for the master's own result.
        run: ``"parallel"`` or ``"3 slices"``.
        against: ``"serial"``: plain Theano on all rows; ``"pieces"``: plain Theano on each
            piece of the rows, combined by the op; ``"before"``: the value before the call.
        difference: None if nothing was compared, for the `reason`.
        limit: the largest `Difference.error` that counts as rounding.
    """

    what: str
    op: Optional[str]
    run: str = ""
    against: str = ""
    difference: Optional[Difference] = None
    limit: float = 0.0
    reason: str = ""

    @property
    def ok(self) -> bool:
        """Whether the difference is rounding, or nothing was compared."""
        return self.difference is None or self.difference.error <= self.limit

    @property
    def severity(self) -> float:
        """The error divided by the limit: wrong if above 1."""
        if self.difference is None:
            return -1.0
        error = self.difference.error
        return error / self.limit if self.limit else (np.inf if error else 0.0)

    @property
    def subject(self) -> str:
        """The output or update, whatever the rank."""
        return self.what.partition(" on rank")[0]

    def cells(self) -> Tuple[str, ...]:
        """Return its row of a report's table."""
        found, op = self.difference, self.op or "own"
        if found is None:
            return self.what, op, "", "", "", "", "not compared: " + self.reason
        remark = "ok" if self.ok else f"WRONG  {found.got}, not {found.expected}"
        if found.index and found.error:
            remark += f" at {list(found.index)}"
        if found.noise > 1.0:
            remark += f" (rounding the inputs changes it by {found.noise:.3g} eps)"
        figures = (f"{number:.3g}" for number in (found.error, self.limit, found.ulps))
        return (self.what, op, f"{self.run}/{self.against}", *figures, remark)


@dataclass(frozen=True)
class Drift:
    """A shared variable whose value on a rank was not the master's when `verify` began.

    Attributes:
        tolerated: whether the function updates it from each rank's own rows, so that it may differ.
    """

    variable: str
    rank: int
    difference: Difference
    tolerated: bool

    def __str__(self) -> str:
        found = self.difference
        where = f" at {found.index}" if found.index else ""
        reason = ", because of this function's own updates" if self.tolerated else ""
        return (
            f"rank {self.rank}'s {self.variable} differs from the master's{where}: {found.got}, "
            f"not {found.expected} ({found.ulps:.3g} ulp){reason}"
        )


@dataclass(frozen=True)
class Report:
    """The result of `verify()`; ``str(report)`` is a table.

    Attributes:
        name: name of the function.
        rows: the number of rows that each rank computed.
        comparisons: all comparisons, and what was not compared, with the reason.
        drifts: variables that differed between ranks before the first run.
        notes: runs that were not made, and why.
    """

    name: str
    rows: Tuple[int, ...]
    comparisons: Tuple[Comparison, ...]
    drifts: Tuple[Drift, ...] = ()
    notes: Tuple[str, ...] = ()

    @property
    def wrong(self) -> Tuple[Comparison, ...]:
        """The comparisons that failed."""
        return tuple(c for c in self.comparisons if not c.ok)

    @property
    def ok(self) -> bool:
        """Whether all comparisons are equal but for rounding, and replicas were equal."""
        return not self.wrong and all(drift.tolerated for drift in self.drifts)

    @property
    def worst(self) -> Optional[Comparison]:
        """The comparison with the largest severity; None if nothing was compared."""
        compared = [c for c in self.comparisons if c.difference is not None]
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
        if self.ok and self.worst is None:
            verdict = "nothing could be compared"
        on = f"{self.name} on {len(self.rows)} ranks with {self.rows} rows"
        lines = [f"{on}, against plain {TITLE}: {verdict}", *map("  {}".format, self.drifts)]
        unequal = sorted({drift.variable for drift in self.drifts if not drift.tolerated})
        if unequal:
            lines.append(
                f"  a value set on the master stays there: broadcast() variables that all ranks "
                f"should share, here {', '.join(unequal)}"
            )
        lines += _table(self.comparisons)
        lines += [f"  {note}" for note in [*self.notes, *_diagnoses(self.wrong, bool(unequal))]]
        return "\n".join(lines)


def _table(comparisons: Sequence[Comparison]) -> List[str]:
    """Return a line for the worst comparison of each output and update, and for each reason why
    something was not compared."""
    worst: Dict[Tuple[str, str], Comparison] = {}
    for found in comparisons:
        key = found.subject, found.reason
        worst[key] = max(worst.get(key, found), found, key=lambda c: c.severity)
    if not worst:
        return ["  nothing to compare"]
    rows = [_HEAD, *(comparison.cells() for comparison in worst.values())]
    widths = [max(map(len, column)) for column in zip(*rows)]
    return [("  " + "  ".join(map(str.ljust, row, widths))).rstrip() for row in rows]


def _diagnoses(wrong: Sequence[Comparison], is_unequal: bool) -> List[str]:
    """Return a diagnosis of each output and update that is wrong.

    Args:
        is_unequal: whether variables differ between ranks that should not.
    """
    faulty = {c.subject for c in wrong if c.against != "serial"}
    texts = []
    for what, op in dict.fromkeys((c.subject, c.op) for c in wrong):
        if is_unequal:
            text = "not judged, because the replicas above differ"
        elif what in faulty:
            text = f"the ranks did not compute what plain {TITLE} does on their rows"
        elif what.startswith("update of"):
            text = (
                f"each rank's own value is right, but {op!r} of them is not that of all rows: the "
                f"update is not linear in the rows. Let the function store the gradient, "
                f"all_reduce() that, and update from it (see make_train_function)"
            )
        else:
            text = (
                f"the ranks computed their rows correctly, but {op!r} of the parts is not the "
                f"whole: use another op, or an expression whose parts combine by it"
            )
        texts.append(f"{what}: {text}")
    return texts
