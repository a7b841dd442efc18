"""Arrays and contexts of libgpuarray, Theano's GPU back end, which is not imported here.

A process that computes on processors needs none: functions look for it among imported modules.
"""

from __future__ import annotations

import sys
from typing import Any, Sequence

import numpy as np
import theano

from synk_theano_compat.cuda import stream_of


def is_array(value: Any) -> bool:
    """Return whether a value is an array on a device."""
    gpuarray = sys.modules.get("pygpu.gpuarray")
    return gpuarray is not None and isinstance(value, gpuarray.GpuArray)


def is_device_type(type_: Any) -> bool:
    """Return whether variables of this type have their values on a device."""
    return hasattr(type_, "context_name") and hasattr(type_, "typecode")


def is_on_default_device(array: Any) -> bool:
    """Return whether a device array lies on the default device."""
    return bool(array.context is sys.modules["theano.gpuarray.type"].get_context(None))


def is_writable(array: Any) -> bool:
    """Return whether a device array can take results: it is in C order, too."""
    return bool(array.flags["C_CONTIGUOUS"] and array.flags["WRITEABLE"])


def is_view(array: Any) -> bool:
    """Return whether a device array's memory belongs to another array.

    Some views have no base: one that begins where the other array begins is not recognized.
    """
    return array.base is not None or array.offset != 0


def empty(shape: Sequence[int], dtype: Any, context: Any) -> Any:
    """Return a new array on the device of a context."""
    return sys.modules["pygpu"].empty(shape, dtype=np.dtype(dtype), context=context)


def empty_like(like: Any, shape: Sequence[int], dtype: Any) -> Any:
    """Return a new array on the device of a device array, or of a variable's type."""
    return empty(shape, dtype, like.context)


def in_c_order(array: Any) -> Any:
    """Return a device array itself, or a copy in C order on its device."""
    if array.flags["C_CONTIGUOUS"]:
        return array
    return sys.modules["pygpu"].ascontiguousarray(array)


def concatenated(parts: Sequence[Any]) -> Any:
    """Return device arrays joined along axis 0.

    Raises:
        ValueError: their shapes do not allow it.
    """
    if any(part.ndim == 0 or part.shape[1:] != parts[0].shape[1:] for part in parts):
        raise ValueError("shapes differ in more than their length")
    pygpu = sys.modules["pygpu"]
    return pygpu.concatenate([in_c_order(part) for part in parts], context=parts[0].context)


def to_device(value: Any, type_: Any) -> Any:
    """Return an expression on the device of a type."""
    from theano.gpuarray.basic_ops import GpuFromHost

    return GpuFromHost(type_.context_name)(value)


def is_copy(op: Any, name: str) -> bool:
    """Return whether an op copies between host and default device: a GpuFromHost, HostFromGpu."""
    module = sys.modules.get("theano.gpuarray.basic_ops")
    return (
        module is not None
        and type(op) is getattr(module, name)
        and getattr(op, "context_name", None) is None
    )


def ordinal_of(driver: Any, name: str, context: Any) -> int:
    """Return the number of a device among those that this process sees; "cuda" may be any."""
    if name[4:].isdigit():
        return int(name[4:])
    where = str(context.unique_id).lower()
    for number in range(driver.device_count()):
        if str(driver.pci_bus_id(number)).lower() == where:
            return number
    return 0


def stream(context: Any) -> int:
    """Return the number of the stream for all work of a CUDA device's context.

    If libgpuarray has more streams, it orders them with events that only it knows; but the default
    stream, 0, waits for all of them.
    """
    return stream_of(context) if theano.config.gpuarray.single_stream else 0
