"""Sums of values on the device, by the functions of `HostSums` in `synk_core._rank.outputs`."""

from __future__ import annotations

import sys
from typing import Any

import numpy as np

from .arrays import real

_COMBINE = {"sum": "add", "prod": "multiply", "max": "maximum", "min": "minimum"}


def scaled(value: Any, factor: float) -> Any:
    """Return ``factor * value``; float16 in float32."""
    value = real(value)
    if value.dtype == np.float16:
        value = value.astype(np.float32)
    return value if factor == 1 else value * value.dtype.type(factor)


def add_scaled(into: Any, value: Any, factor: float) -> Any:
    """Return ``into + factor * value``."""
    return into + scaled(value, factor).astype(into.dtype)


def combine(op: str, into: Any, value: Any) -> Any:
    """Return ``into op value``: sum, prod, max or min."""
    into = real(into)
    combined = getattr(sys.modules["jax.numpy"], _COMBINE[op])
    return combined(into, real(value)).astype(into.dtype)


def quotient(value: Any, divisor: float, dtype: Any) -> Any:
    """Return ``value / divisor`` in a dtype."""
    if divisor != 1:
        value = value / value.dtype.type(divisor)
    return value.astype(dtype)


def bits(_value: Any) -> None:
    """Return None: arrays are compared in host memory."""
