"""How far two arrays are apart, and the report that `verify()` makes of it. Pure."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Dict, List, Optional, Sequence, Tuple

import numpy as np

from synk_theano.exceptions import VerifyError


@dataclass(frozen=True)
class Difference:
    """How far an array is from what was expected of it.

    Attributes:
        error: ``max |got - expected| / (scale * eps)``, with the machine epsilon of the dtype.
            0 where both are NaN, or the same infinity; infinite where only one is, where shapes
            or dtypes differ, and for any difference of integers and booleans.
        ulps: the largest number of steps from one representable number to the next, which an
            entry is away. Large where numbers cancel to nearly 0, without being wrong.
        index: of the entry with the largest error, None if there is no entry.
        got, expected: that entry, as text; or what differs in shape or dtype.
        noise: if above 1: by how much (in units of the error) the expected value itself changes
            when inputs and parameters change by one rounding. The error is counted in it.
    """

    error: float
    ulps: float
    index: Optional[Tuple[int, ...]] = None
    got: str = ""
    expected: str = ""
    noise: float = 1.0

    def in_units_of(self, noise: float) -> Difference:
        """The same difference, its error counted in units of `noise`."""
        return replace(self, error=self.error / noise, noise=noise)


def largest_magnitude(*arrays: Any) -> float:
    """The largest finite magnitude in the arrays, 0 if there is none."""
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
    """Compare two arrays.

    Args:
        scale: the magnitude of the numbers that were added up on the way, if it is larger than
            that of the result.
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
    # Nothing can be nearer than one step between the smallest numbers.
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
    """The place of each float among all floats of its dtype; both zeros have one place."""
    unsigned = np.dtype(f"u{array.dtype.itemsize}")
    top = unsigned.type(1 << (8 * array.dtype.itemsize - 1))
    bits = np.ascontiguousarray(array).view(unsigned).reshape(array.shape)
    magnitude = bits & unsigned.type(top - unsigned.type(1))
    return np.where(bits & top, top - magnitude, top + magnitude)


@dataclass(frozen=True)
class Comparison:
    """One comparison of a run with what it should have given.

    Attributes:
        what: ``"output 0 (loss)"`` or ``"update of w"``, ``"... on rank 1"``.
        op: how it is combined over ranks, None for the master's own result.
        run: ``"parallel"`` or ``"3 slices"``.
        against: ``"serial"``: plain Theano on all rows; ``"pieces"``: plain Theano on each
            piece of the rows, combined by the op; ``"before"``: the value before the call.
        difference: None if nothing was compared, for the `reason`.
        limit: the largest `Difference.error` that is taken for rounding.
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
        """The error as a part of the limit: above 1 it is wrong."""
        if self.difference is None:
            return -1.0
        error = self.difference.error
        return error / self.limit if self.limit else (np.inf if error else 0.0)


@dataclass(frozen=True)
class Drift:
    """A shared variable whose value on a rank was not the master's when `verify` began.

    Attributes:
        tolerated: the function itself updates it from each rank's own rows: it may well differ.
    """

    variable: str
    rank: int
    difference: Difference
    tolerated: bool

    def __str__(self) -> str:
        where = "" if self.difference.index in (None, ()) else f" at {self.difference.index}"
        reason = ", as this function's own updates make it" if self.tolerated else ""
        return (
            f"rank {self.rank}'s {self.variable} differs from the master's{where}: "
            f"{self.difference.got}, not {self.difference.expected} "
            f"({self.difference.ulps:.3g} ulp){reason}"
        )


@dataclass(frozen=True)
class Report:
    """What `verify()` found; ``str(report)`` is a table.

    Attributes:
        name: of the function.
        rows: how many rows each rank computed.
        comparisons: everything that was compared, or not, for a reason.
        drifts: variables that differed between ranks to begin with.
        notes: what was not run, and why.
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
        """Whether all that was compared is equal but for rounding, and replicas were equal."""
        return not self.wrong and all(drift.tolerated for drift in self.drifts)

    @property
    def worst(self) -> Optional[Comparison]:
        """The comparison with the largest error in relation to its limit, None without any."""
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
            f"{self.name} on {len(self.rows)} ranks with {self.rows} rows, against plain Theano: "
            f"{verdict}"
        )
        lines = [title, *(f"  {drift}" for drift in self.drifts)]
        astray = sorted({drift.variable for drift in self.drifts if not drift.tolerated})
        if astray:
            lines.append(
                f"  a value set on the master stays there: broadcast() what all ranks are to have, "
                f"here {', '.join(astray)}"
            )
        lines += _table([_cells(c) for c in _worst_of_each(self.comparisons)])
        lines += [f"  {note}" for note in [*self.notes, *_diagnoses(self.comparisons, astray)]]
        return "\n".join(lines)


def _worst_of_each(comparisons: Sequence[Comparison]) -> List[Comparison]:
    """One comparison for each thing compared, the worst; and all reasons for comparing nothing."""
    rows: Dict[Tuple[str, str], Comparison] = {}
    for comparison in comparisons:
        # Different ranks are one thing here, in one line.
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


def _diagnoses(comparisons: Sequence[Comparison], astray: Sequence[str]) -> List[str]:
    """What is wrong where pieces add up as told, but not to the serial result; and the reverse.

    Args:
        astray: variables that differ between ranks and should not.
    """
    wrong = [c for c in comparisons if not c.ok]
    faulty = {c.what.partition(" on rank")[0] for c in wrong if c.against != "serial"}
    texts = []
    for what, op in dict.fromkeys((c.what.partition(" on rank")[0], c.op) for c in wrong):
        if astray:
            texts.append(f"{what}: of replicas that differ, as told above, nothing else is known")
        elif what.startswith("update of") and what not in faulty:
            texts.append(
                f"{what}: each rank's own value is right, but {op!r} of them is not the whole's: "
                f"an update that is not linear in the rows. Have the function write the gradient, "
                f"all_reduce() that, and update from it (see make_train_function)"
            )
        elif what in faulty:
            texts.append(f"{what}: the ranks did not compute what plain Theano does of their rows")
        else:
            texts.append(
                f"{what}: the ranks computed their rows rightly, but {op!r} of the parts is not "
                f"the whole: use another op, or an expression whose parts add up so"
            )
    return texts
