"""The sums that accumulate values of slices in host memory: the twin of `_graph.devices.sums`."""

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
    """A new array, ``factor * value``; float16 in float32."""
    if value.dtype == np.float16:
        value = value.astype(np.float32)
    return value * value.dtype.type(factor)


def add_scaled(into: Any, value: Any, factor: float) -> Any:
    """``into + factor * value``; `into` is used up."""
    return into + scaled(value, factor)


def combine(op: str, into: Any, value: Any) -> Any:
    """``into op value``: sum, prod, max or min; `into` is used up."""
    return np.asarray(_COMBINE[op](into, value), value.dtype)


def quotient(value: Any, divisor: float, dtype: Any) -> Any:
    """``value / divisor`` in a dtype; `value` is used up."""
    return np.asarray(value / np.asarray(value).dtype.type(divisor), dtype)
