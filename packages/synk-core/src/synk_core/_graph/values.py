"""Values of variables: NumPy arrays in host memory, or the engine's arrays on a device."""

from __future__ import annotations

from typing import Any, Sequence, Tuple

import numpy as np

from synk_core.engine import DEVICES, TensorType


def is_on_device(value: Any) -> bool:
    """Return whether a value is a device array."""
    return DEVICES is not None and type(value) is not np.ndarray and DEVICES.is_array(value)


def is_on_default_device(value: Any) -> bool:
    """Return whether a value is an array on the rank's default device."""
    return is_on_device(value) and DEVICES.is_on_default_device(value)


def is_elsewhere(value: Any) -> bool:
    """Return whether a value is an array on another device than the default one."""
    return is_on_device(value) and not is_on_default_device(value)


def is_array(value: Any) -> bool:
    """Return whether a value is an array, on the host or a device; random states may be none."""
    return isinstance(value, np.ndarray) or is_on_device(value)


def is_device_type(type_: Any) -> bool:
    """Return whether variables of this type have their values on a device."""
    return DEVICES is not None and DEVICES.is_device_type(type_)


def host_type(variable: Any) -> Any:
    """Return the type of the variable's arrays in host memory."""
    type_ = variable.type
    return TensorType(type_.dtype, type_.broadcastable) if is_device_type(type_) else type_


def on_host(value: Any) -> Any:
    """Return the value in host memory: a copy if it lies on a device, after waiting for it."""
    return np.asarray(value) if is_on_device(value) else value


def array_of(value: Any) -> Any:
    """Return a NumPy scalar (communicators return some) as an array; others unchanged."""
    return np.asarray(value) if isinstance(value, np.generic) else value


def empty_like(value: Any, shape: Tuple[int, ...], dtype: Any) -> Any:
    """Return a new array on the device (or host) of `value`."""
    if is_on_device(value):
        return DEVICES.empty_like(value, shape, dtype)
    return np.empty(shape, dtype)


def empty_of(type_: Any, shape: Tuple[int, ...]) -> Any:
    """Return a new array of a variable's type, on its device (or host)."""
    if is_device_type(type_):
        return DEVICES.empty_like(type_, shape, type_.dtype)
    return np.empty(shape, type_.dtype)


def is_plain(value: Any) -> bool:
    """Return whether an array can receive results: it is in C order, and writable."""
    if is_on_device(value):
        return bool(DEVICES.is_writable(value))
    return bool(value.flags.writeable and value.flags.c_contiguous)


def is_view(value: Any) -> bool:
    """Return whether an array's memory belongs to another array, as far as that is known."""
    return bool(DEVICES.is_view(value)) if is_on_device(value) else value.base is not None


def in_c_order(value: Any) -> Any:
    """Return the array itself, or a copy in C order on the same device."""
    return DEVICES.in_c_order(value) if is_on_device(value) else value


def at_least_1d(value: Any) -> Any:
    """Return the array itself; of a scalar, a vector of one entry."""
    return value if value.ndim else value.reshape((1,))


def concatenated(parts: Sequence[Any]) -> Any:
    """Return the arrays joined along axis 0, on their device; ValueError if shapes forbid that."""
    return DEVICES.concatenated(parts) if is_on_device(parts[0]) else np.concatenate(parts)
