"""The difference between two arrays, and the report that `verify()` returns. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Dict, List, Optional, Sequence, Tuple

import numpy as np

from synk_core.engine import TITLE
from synk_core.exceptions import VerifyError


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


def largest_magnitude(*arrays: Any) -> float:
    """Return the largest finite magnitude in the arrays, 0 if there is none."""
    largest = 0.0
    for array in arrays:
        array = np.asarray(array)
        if array.dtype.kind in "fc" and array.size:
            with np.errstate(over="ignore", invalid="ignore"):
                magnitudes = np.abs(array)
            finite = magnitudes[np.isfinite(magnitudes)]
            if finite.size:
                largest = max(largest, float(finite.max()))
    return largest


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
    if got.dtype.kind not in "fc":
        wrong = got != expected
        errors = np.where(wrong, np.inf, 0.0)
        ulps = float(np.max(_distance(got, expected))) if wrong.any() else 0.0
    else:
        scale = max(scale, largest_magnitude(expected))
        errors = _errors(got, expected, scale)
        ulps = float(np.max(_ulps(got, expected)))
    place = np.unravel_index(int(np.argmax(errors)), errors.shape)
    index = tuple(int(i) for i in place)
    return Difference(
        float(errors[place]), ulps, index, repr(got[place].item()), repr(expected[place].item())
    )


def _distance(a: np.ndarray, b: np.ndarray) -> Any:
    return np.abs(a.astype(np.longdouble) - b.astype(np.longdouble))


def _errors(got: np.ndarray, expected: np.ndarray, scale: float) -> Any:
    wide = np.clongdouble if got.dtype.kind == "c" else np.longdouble
    kind = np.finfo(got.dtype)
    # No difference is smaller than one step between the smallest numbers.
    smallest = np.nextafter(kind.dtype.type(0), kind.dtype.type(1))
    unit = max(np.longdouble(scale) * kind.eps, np.longdouble(smallest))
    with np.errstate(invalid="ignore", over="ignore"):
        errors = np.abs(got.astype(wide) - expected.astype(wide)) / unit
        odd = ~(np.isfinite(got) & np.isfinite(expected))
        same = (got == expected) | (np.isnan(got) & np.isnan(expected))
        return np.where(odd, np.where(same, 0.0, np.inf), errors).astype(np.float64)


def _ulps(a: np.ndarray, b: np.ndarray) -> Any:
    if a.dtype.kind == "c":
        return np.maximum(_ulps(a.real.copy(), b.real.copy()), _ulps(a.imag.copy(), b.imag.copy()))
    x, y = _order(a), _order(b)
    steps = np.where(x > y, x - y, y - x).astype(np.float64)
    nans = np.isnan(a).astype(int) + np.isnan(b)
    return np.where(nans == 2, 0.0, np.where(nans == 1, np.inf, steps))


def _order(array: np.ndarray) -> np.ndarray:
    """Return the place of each float among all floats of its dtype; both zeros have one place."""
    unsigned = np.dtype(f"u{array.dtype.itemsize}")
    top = unsigned.type(1 << (8 * array.dtype.itemsize - 1))
    bits = np.ascontiguousarray(array).view(unsigned).reshape(array.shape)
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
    run: str
    against: str
    difference: Optional[Difference]
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
        where = "" if self.difference.index in (None, ()) else f" at {self.difference.index}"
        reason = ", because of this function's own updates" if self.tolerated else ""
        return (
            f"rank {self.rank}'s {self.variable} differs from the master's{where}: "
            f"{self.difference.got}, not {self.difference.expected} "
            f"({self.difference.ulps:.3g} ulp){reason}"
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
        return max(compared, key=lambda c: c.severity) if compared else None

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
        title = (
            f"{self.name} on {len(self.rows)} ranks with {self.rows} rows, against plain {TITLE}: "
            f"{verdict}"
        )
        lines = [title, *(f"  {drift}" for drift in self.drifts)]
        unequal = sorted({drift.variable for drift in self.drifts if not drift.tolerated})
        if unequal:
            lines.append(
                f"  a value set on the master stays there: broadcast() variables that all ranks "
                f"should share, here {', '.join(unequal)}"
            )
        lines += _table([_cells(c) for c in _worst_of_each(self.comparisons)])
        lines += [f"  {note}" for note in [*self.notes, *_diagnoses(self.comparisons, unequal)]]
        return "\n".join(lines)


def _worst_of_each(comparisons: Sequence[Comparison]) -> List[Comparison]:
    """Return the worst comparison of each output and update, and all that were not compared."""
    rows: Dict[Tuple[str, str], Comparison] = {}
    for comparison in comparisons:
        # One line for all ranks.
        key = (comparison.what.partition(" on rank")[0], comparison.reason)
        held = rows.get(key)
        if held is None or comparison.severity > held.severity:
            rows[key] = comparison
    return list(rows.values())


def _cells(comparison: Comparison) -> List[str]:
    op = "own" if comparison.op is None else comparison.op
    found = comparison.difference
    if found is None:
        return [comparison.what, op, "not compared: " + comparison.reason]
    remark = "ok" if comparison.ok else f"WRONG  {found.got}, not {found.expected}"
    if found.index and found.error:
        remark += f" at {list(found.index)}"
    if found.noise > 1.0:
        remark += f" (rounding the inputs changes it by {found.noise:.3g} eps)"
    return [
        comparison.what,
        op,
        f"{comparison.run}/{comparison.against}",
        f"{found.error:.3g}",
        f"{comparison.limit:.3g}",
        f"{found.ulps:.3g}",
        remark,
    ]


def _table(rows: Sequence[Sequence[str]]) -> List[str]:
    if not rows:
        return ["  nothing to compare"]
    head = ["", "op", "worst run", "error/eps", "limit", "ulp", ""]
    rows = [head, *rows]
    full = [row for row in rows if len(row) == len(head)]
    widths = [max(len(row[i]) for row in full) for i in range(len(head))]
    widths[:2] = [max(len(row[i]) for row in rows) for i in range(2)]
    return [
        "  " + "  ".join(cell.ljust(width) for cell, width in zip(row, widths)).rstrip()
        for row in rows
    ]


def _diagnoses(comparisons: Sequence[Comparison], unequal: Sequence[str]) -> List[str]:
    """Return a diagnosis of each output and update that is wrong.

    Args:
        unequal: variables that differ between ranks and should not.
    """
    wrong = [c for c in comparisons if not c.ok]
    faulty = {c.what.partition(" on rank")[0] for c in wrong if c.against != "serial"}
    texts = []
    for what, op in dict.fromkeys((c.what.partition(" on rank")[0], c.op) for c in wrong):
        if unequal:
            texts.append(f"{what}: not judged, because the replicas above differ")
        elif what.startswith("update of") and what not in faulty:
            texts.append(
                f"{what}: each rank's own value is right, but {op!r} of them is not that of all "
                f"rows: the update is not linear in the rows. Let the function store the gradient, "
                f"all_reduce() that, and update from it (see make_train_function)"
            )
        elif what in faulty:
            texts.append(f"{what}: the ranks did not compute what plain {TITLE} does on their rows")
        else:
            texts.append(
                f"{what}: the ranks computed their rows correctly, but {op!r} of the parts is not "
                f"the whole: use another op, or an expression whose parts combine by it"
            )
    return texts
