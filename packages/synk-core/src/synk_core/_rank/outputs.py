"""Make one result of many: of a rank's slices, and of all ranks in the master. Exactly.

``avg`` weighs by rows: sum(rows * value) / sum(rows), in the value's own precision (float16 in
float32), so that the result does not depend on how rows were split, but for rounding. An average of
equal values can differ from them in the last bit: values that no row goes into are not averaged.
"""

from __future__ import annotations

from typing import Any, Callable, Dict, List, Optional, Sequence, Tuple

import numpy as np

from synk_core._graph.digest import digest
from synk_core._graph.values import (
    array_of,
    at_least_1d,
    concatenated,
    in_c_order,
    is_on_device,
)
from synk_core._plan.ops import ROWLESS_OP
from synk_core._text import shown
from synk_core.device import Device
from synk_core.engine import DEVICES
from synk_core.exceptions import InputValueError, OpError

_COMBINE: Dict[str, Callable[[Any, Any], Any]] = {
    "sum": np.add,
    "prod": np.multiply,
    "max": np.maximum,
    "min": np.minimum,
}


class HostSums:
    """Accumulates values in host memory; `DEVICES.sums` does so on a device."""

    @staticmethod
    def scaled(value: Any, factor: float) -> Any:
        """Return a new array, ``factor * value``; float16 in float32."""
        if value.dtype == np.float16:
            value = value.astype(np.float32)
        return value.copy() if factor == 1 else value * value.dtype.type(factor)

    @staticmethod
    def add_scaled(into: Any, value: Any, factor: float) -> Any:
        """Return ``into + factor * value``; overwrites `into` if it has dimensions."""
        term = value if factor == 1 else HostSums.scaled(value, factor)
        if not into.ndim:
            return into + term
        into += term
        return into

    @staticmethod
    def combine(op: str, into: Any, value: Any) -> Any:
        """Return ``into op value``: sum, prod, max or min; may overwrite `into`."""
        return np.asarray(_COMBINE[op](into, value), into.dtype)

    @staticmethod
    def quotient(value: Any, divisor: float, dtype: Any) -> Any:
        """Return ``value / divisor`` in a dtype; may overwrite `value`."""
        if divisor != 1:
            value = value / np.asarray(value).dtype.type(divisor)
        return np.asarray(value, dtype)


_RUN = 16
"""Terms added one after the other; sums of as many terms are added in pairs, as NumPy does."""


class Accumulator:
    """One output's or update's values over the slices of a call."""

    def __init__(self, op: Optional[str], what: str) -> None:
        if op is None:
            raise OpError(
                f"{what}: got op None with num_slices > 1, expected an op that accumulates over "
                f"slices ('avg', 'sum', 'max', 'min', 'prod', 'gather')"
            )
        self._op = op
        self._what = what
        self._value: Any = None
        self._weight = 0.0
        self._parts: List[Any] = []  # to gather; or of a sum: [number of terms, their sum]
        self._shape: Any = None
        self._dtype: Any = None
        self._sums: Any = HostSums

    def add(self, value: Any, rows: float) -> None:
        """Add the value of a slice with `rows` rows; raise if its shape is not that of others."""
        op = self._op
        if type(value) is not np.ndarray:
            if is_on_device(value):
                self._sums = DEVICES.sums
            else:
                value = np.asarray(value)
        if self._shape not in (None, value.shape) and op not in ("last", ROWLESS_OP):
            raise InputValueError(
                f"{self._what}: slices gave shapes {self._shape} and {value.shape}, which op "
                f"{op!r} cannot combine; an output with an entry for each row needs op "
                f"'gather', as in (variable, 'gather')"
            )
        self._dtype, self._shape = value.dtype, value.shape
        if op == "gather":
            self._parts.append(at_least_1d(value).copy())
            self._shape = None
        elif op == "avg":
            self._weight += rows
            self._add(value, rows)
        elif op in ("sum", "prod") and self._value is None and value.dtype.kind in "fc":
            self._add(value, 1)
        elif op in ("last", ROWLESS_OP):
            self._value = value
        elif self._value is None:
            # With linkers that keep their memory, the next slice may overwrite the value.
            self._value = value.copy()
        else:
            self._value = self._sums.combine(op, self._value, value)

    def _add(self, value: Any, factor: float) -> None:
        parts, sums = self._parts, self._sums
        if not parts or parts[-1][0] >= _RUN:
            parts.append([0, None])
        last = parts[-1]
        last[0] += 1
        if last[0] == 1:
            last[1] = sums.scaled(value, factor)
        elif self._op == "prod":
            last[1] = sums.combine("prod", last[1], value)
        else:
            last[1] = sums.add_scaled(last[1], value, factor)
        while len(parts) > 1 and parts[-2][0] == parts[-1][0]:
            self._join()

    def _join(self) -> None:
        (n, first), (m, second) = self._parts[-2:]
        op = "prod" if self._op == "prod" else "sum"
        self._parts[-2:] = [[n + m, self._sums.combine(op, first, second)]]

    def result(self) -> Any:
        """Return the value of all slices so far (at least one), in the memory of the slices."""
        if self._op == "gather":
            return _joined(self._parts, f"{self._what}: ", "slice")
        if not self._parts:
            return self._value.copy()
        while len(self._parts) > 1:
            self._join()
        return self._sums.quotient(self._parts[0][1], self._weight or 1.0, self._dtype)


def collect(comm: Any, master: int, op: Optional[str], value: Any, weight: float) -> Any:
    """Reduce or gather one output of all ranks in the master, through host memory."""
    if op is None:
        return value
    if value is not None:
        alone = comm.size == 1 and is_on_device(value)
        value = value if alone else np.asarray(value)
        value = at_least_1d(value) if op == "gather" else value
    if comm.size == 1:
        return value
    if op == "gather":
        parts = comm.gather(value, root=master)
        return None if parts is None else _joined(parts)
    return reduce_to(comm, master, op, value, weight)


def reduce_to(comm: Any, master: int, op: str, value: Any, weight: float) -> Any:
    """Return all ranks' values (one, or several in a list) reduced, in the master; else None.

    `weight` is this rank's, in averages.
    """
    if op == ROWLESS_OP:
        op, held = "avg", value if isinstance(value, list) else [value]
        own = None if value is None else "".join(map(digest, held)).encode()
        digests = comm.all_gather(None if own is None else np.frombuffer(own, np.uint8))
        if len({text.tobytes() for text in digests if text is not None}) == 1:
            # Of one operand the average is the operand itself.
            only = next(rank for rank, text in enumerate(digests) if text is not None)
            value = value if comm.rank == only else None
            if only == master:
                return value
    reduced = comm.reduce(value, op, master, **({"weight": weight} if op == "avg" else {}))
    return array_of(reduced)


def collect_on_device(
    comm: Any,
    master: int,
    device: Device,
    ops: Sequence[Optional[str]],
    values: Sequence[Any],
    weight: float,
) -> Tuple[List[Any], Tuple[int, ...]]:
    """Collect outputs but numbers, those with one op in one message; every rank has computed.

    Arrays on the device stay there, and the call does not wait for the device.

    Returns:
        The results; and the places of those that are still this rank's own: numbers on the device,
        and what no row goes into. They are to be combined through host memory when all is ordered.
        A function may compute them long before the rest, and a collective on the device would come
        after that.
    """
    results = list(values)
    together: Dict[str, List[int]] = {}
    later = []
    for i, (op, value) in enumerate(zip(ops, values)):
        stays = op is not None and device.takes([value])
        if device.is_functional:
            is_later, stays = op == ROWLESS_OP, op not in (None, "gather")
        else:
            is_later = stays and (op == ROWLESS_OP or (value.ndim == 0 and op != "gather"))
        if is_later:
            later.append(i)
        elif stays and (op == "gather" or device.takes([value], reducible=True)):
            together.setdefault(str(op), []).append(i)
        else:
            results[i] = collect(comm, master, op, value, weight)
    for op, places in together.items():
        group = [in_c_order(values[i]) for i in places]
        if op == "gather":
            collected = comm.gather([at_least_1d(value) for value in group], master)
        else:
            collected = reduce_to(comm, master, op, group, weight)
        for i, result in zip(places, collected or [None] * len(places)):
            results[i] = _joined(result) if op == "gather" and result is not None else result
    return results, tuple(later)


def _joined(parts: Sequence[Any], what: str = "", by: str = "rank") -> Any:
    try:
        return concatenated([part for part in parts if part is not None])
    except ValueError:
        shapes = {place: part.shape for place, part in enumerate(parts) if part is not None}
        raise InputValueError(
            f"{what}an output with op 'gather' has shapes that differ in more than their length: "
            f"by {by} {shown(shapes)}"
        ) from None
