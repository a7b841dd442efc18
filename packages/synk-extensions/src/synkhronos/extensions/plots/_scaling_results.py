"""Check measurements of scaling, and group them by number of processes."""

from __future__ import annotations

import math
import statistics
from typing import Any, Dict, List, Mapping, Sequence

from synkhronos.exceptions import InputTypeError, InputValueError

CURE = (
    "give plot_scaling a list such as [{'n': 1, 'seconds': 0.8, 'rows': 4096}, "
    "{'n': 2, 'seconds': 0.42, 'rows': 4096}]"
)


class ScalingResults:
    """Rates by number of processes.

    Args:
        results: see `plot_scaling`.

    Attributes:
        processes: numbers of processes, ascending.
        rates: rows per second, the median of each number's measurements.
        slowest, fastest: their extremes.
    """

    def __init__(self, results: Sequence[Mapping[str, Any]]) -> None:
        if isinstance(results, (str, bytes, Mapping)) or not isinstance(results, Sequence):
            raise InputTypeError(
                f"results: got {type(results).__name__}, expected a list of measurements; {CURE}"
            )
        if not results:
            raise InputValueError(f"results: got no measurement, expected at least one; {CURE}")
        by_number: Dict[int, List[float]] = {}
        for place, result in enumerate(results):
            n = _number(result, place, "n")
            if n != int(n):
                raise InputValueError(f"results[{place}]['n']: got {n}, expected a whole number")
            rate = _number(result, place, "rows") / _number(result, place, "seconds")
            by_number.setdefault(int(n), []).append(rate)
        self.processes = sorted(by_number)
        rates = [by_number[n] for n in self.processes]
        self.rates = [statistics.median(values) for values in rates]
        self.slowest = [min(values) for values in rates]
        self.fastest = [max(values) for values in rates]

    @property
    def linear(self) -> List[float]:
        """Rows per second if each process were as fast as with the smallest number of processes."""
        first = self.rates[0] / self.processes[0]
        return [first * n for n in self.processes]

    @property
    def efficiency(self) -> List[float]:
        """Measured rates as fractions of the linear ones."""
        return [rate / linear for rate, linear in zip(self.rates, self.linear)]


def _number(result: Mapping[str, Any], place: int, name: str) -> float:
    """Return a finite number above 0."""
    if not isinstance(result, Mapping) or name not in result:
        raise InputValueError(f"results[{place}]: got {result!r}, expected a key {name!r}; {CURE}")
    try:
        number = float(result[name])
    except (TypeError, ValueError):
        number = math.nan
    if not (math.isfinite(number) and number > 0):
        raise InputValueError(
            f"results[{place}][{name!r}]: got {result[name]!r}, expected a number above 0; {CURE}"
        )
    return number
