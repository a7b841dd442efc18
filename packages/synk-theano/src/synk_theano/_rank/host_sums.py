"""Accumulate values of slices in host memory; `_graph.devices.sums` does so on a device."""

from __future__ import annotations

from typing import Any, Callable, Dict

import numpy as np

_COMBINE: Dict[str, Callable[[Any, Any], Any]] = {
    "sum": np.add,
    "prod": np.multiply,
    "max": np.maximum,
    "min": np.minimum,
}


def scaled(value: Any, factor: float) -> Any:
    """Return a new array, ``factor * value``; float16 in float32."""
    if value.dtype == np.float16:
        value = value.astype(np.float32)
    return value * value.dtype.type(factor)


def add_scaled(into: Any, value: Any, factor: float) -> Any:
    """Return ``into + factor * value``; may overwrite `into`."""
    return into + scaled(value, factor)


def combine(op: str, into: Any, value: Any) -> Any:
    """Return ``into op value``: sum, prod, max or min; may overwrite `into`."""
    return np.asarray(_COMBINE[op](into, value), value.dtype)


def quotient(value: Any, divisor: float, dtype: Any) -> Any:
    """Return ``value / divisor`` in a dtype; may overwrite `value`."""
    return np.asarray(value / np.asarray(value).dtype.type(divisor), dtype)
