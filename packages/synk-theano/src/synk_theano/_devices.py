"""Theano's GPUs, as the runtime uses them: the back end gpuarray, on pygpu and libgpuarray.

Neither is imported before `why_unusable` or `load`: a process that computes on processors needs
none. So arrays on a device are looked for among what is imported.
"""

from __future__ import annotations

import ctypes
import importlib
import sys
from functools import cache
from typing import Any, List, Optional, Sequence, Tuple

import numpy as np
import theano

from synk_core.exceptions import StartError
from synk_theano_compat.cuda import stream_of

from . import _sums as sums

__all__ = [
    "concatenated",
    "context",
    "default_context",
    "empty",
    "in_c_order",
    "in_use",
    "is_array",
    "is_copy",
    "keep_old_values",
    "load",
    "name_context",
    "named_in_options",
    "set_matrix_products",
    "stream",
    "sums",
    "to_device",
    "use",
    "why_unusable",
]

_BLAS = 3
"""Word of libgpuarray's context (0.6 and 0.7, GPUCONTEXT_HEAD in its private.h) with the address of
what it knows of cuBLAS, which begins with cuBLAS's handle."""

_PLAIN_MATH, _TF32_MATH = 0, 3
"""CUBLAS_DEFAULT_MATH and CUBLAS_TF32_TENSOR_OP_MATH."""


# ---- arrays ----------------------------------------------------------------------------------


def is_array(value: Any) -> bool:
    """Return whether a value is an array on a device."""
    gpuarray = sys.modules.get("pygpu.gpuarray")
    return gpuarray is not None and isinstance(value, gpuarray.GpuArray)


def empty(shape: Sequence[int], dtype: Any, context: Any) -> Any:
    """Return a new array on the device of a context."""
    return sys.modules["pygpu"].empty(shape, dtype=np.dtype(dtype), context=context)


def in_c_order(value: Any) -> Any:
    """Return a copy of an array in C order, on its device."""
    return sys.modules["pygpu"].ascontiguousarray(value)


def concatenated(parts: Sequence[Any], context: Any) -> Any:
    """Return arrays in C order joined along axis 0."""
    return sys.modules["pygpu"].concatenate(parts, context=context)


def to_device(value: Any, type_: Any) -> Any:
    """Return an expression on the device of a type."""
    from theano.gpuarray.basic_ops import GpuFromHost

    return GpuFromHost(type_.context_name)(value)


def is_copy(op: Any, name: str) -> bool:
    """Return whether an op copies between host memory and the default device.

    Args:
        name: "GpuFromHost" or "HostFromGpu".
    """
    module = sys.modules.get("theano.gpuarray.basic_ops")
    return (
        module is not None
        and type(op) is getattr(module, name)
        and getattr(op, "context_name", None) is None
    )


# ---- contexts --------------------------------------------------------------------------------


def why_unusable() -> str:
    """Return why the back end cannot be loaded; "" if it can."""
    try:
        importlib.import_module("pygpu")
    except Exception as error:  # noqa: BLE001 - one made for another NumPy raises anything
        return f"Theano's GPU back end needs pygpu, which cannot be imported ({error})"
    return "" if theano.config.cxx else "Theano's GPU back end needs a C++ compiler (g++)"


def load() -> None:
    """Import the back end, which takes the devices into use that Theano's flags name."""
    importlib.import_module("theano.gpuarray")


def in_use() -> Optional[Tuple[str, Any]]:
    """Return the name that Theano has for this process's default device, and the context; None
    if there is none. The name may be "cuda", which is any of them."""
    gpuarray = sys.modules.get("theano.gpuarray")
    if gpuarray is None or getattr(gpuarray, "pygpu", None) is None:
        return None
    try:
        held = gpuarray.get_context(None)
    except gpuarray.ContextNotDefined:
        return None
    known = gpuarray.init_dev.devmap.items()
    name = next((name for name, context in known if context is held), None)
    return None if name is None else (name, held)


def use(name: str, is_in_use: bool) -> Any:
    """Have new shared variables of floats lie on a device, and functions compute there; return its
    context.

    Args:
        is_in_use: whether this process computes on it already.
    """
    theano.gpuarray.use(_known_as(name) if is_in_use else name)
    return theano.gpuarray.get_context(None)


def context(name: Optional[str]) -> Any:
    """Return the context of a name; None is the default one's."""
    return theano.gpuarray.get_context(name)


def default_context() -> Any:
    """Return the context of the default device."""
    return sys.modules["theano.gpuarray.type"].get_context(None)


def named_in_options() -> List[str]:
    """Return the names of contexts that Theano's flag ``contexts`` defines."""
    pairs = filter(None, getattr(theano.config, "contexts", "").split(";"))
    return [pair.partition("->")[0].strip() for pair in pairs]


def name_context(name: str, device: str, is_default: bool) -> None:
    """Have a context name mean a device.

    Args:
        is_default: whether it is this process's default device.

    Raises:
        StartError: the name means another one already.
    """
    gpuarray = sys.modules["theano.gpuarray"]
    if name in named_in_options() and name in gpuarray.type.list_contexts():
        return  # the user's own choice, for this process
    known = _known_as(device) if is_default else device
    gpuarray.init_dev(known, name)
    if gpuarray.get_context(name) is not gpuarray.init_dev.devmap[known]:
        raise StartError(
            f"context name {name!r} means another device than {device} in this process already; "
            f"give the same devices as before, or start a new process"
        )


def _known_as(name: str) -> str:
    """Return Theano's name of a device that is in use, which may be "cuda" alone."""
    known = sys.modules["theano.gpuarray"].init_dev.devmap
    return name if name in known else "cuda"


@cache
def keep_old_values() -> None:
    """Make `set_value` of a device's variable store a new array from now on, as on the host.

    Theano would overwrite the old array with the new values: it could not be restored if the order
    fails, and the runtime would not notice that the program has set a value.
    """
    gpu_type = sys.modules["theano.gpuarray.type"].GpuArrayType
    in_place = gpu_type.filter_inplace

    def filter_inplace(
        self: Any, data: Any, _old_data: Any, strict: bool = False, allow_downcast: Any = None
    ) -> Any:
        return in_place(self, data, None, strict=strict, allow_downcast=allow_downcast)

    gpu_type.filter_inplace = filter_inplace


def stream(context: Any) -> int:
    """Return the number of the stream that all work of a CUDA device's context is enqueued on.

    With streams of its own for copies, libgpuarray orders them with events that only it knows; the
    default stream, 0, waits for all of its streams.
    """
    return stream_of(context) if theano.config.gpuarray.single_stream else 0


def set_matrix_products(context: Any, tf32: bool) -> None:
    """Have cuBLAS round the factors of this context's matrix products to TF32, or not.

    Raises:
        StartError: this libgpuarray or cuBLAS is not known.
    """
    import pygpu

    words = (ctypes.c_size_t * (_BLAS + 1)).from_address(context.ptr)
    if not tf32 and not words[_BLAS]:
        return  # cuBLAS has not been used in this context
    problem = StartError(
        "precision='tf32': cuBLAS is not where libgpuarray 0.7 keeps it; use 'default', which "
        "rounds factors of convolutions alone"
    )
    # The symbol is libgpuarray's, on which the extension module depends.
    setup = getattr(ctypes.CDLL(pygpu.gpuarray.__file__), "gpublas_setup", None)
    if setup is None:
        raise problem
    setup.argtypes = [ctypes.c_void_p]
    if setup(context.ptr) or not words[_BLAS]:
        raise problem
    handle = ctypes.c_void_p(ctypes.c_size_t.from_address(words[_BLAS]).value)
    cublas = ctypes.CDLL("libcublas.so")
    used = ctypes.c_void_p()
    with context:
        # A handle on another stream is none of libgpuarray's.
        status = cublas.cublasGetStream_v2(handle, ctypes.byref(used))
        if status or (used.value or 0) != stream_of(context):
            raise problem
        if cublas.cublasSetMathMode(handle, _TF32_MATH if tf32 else _PLAIN_MATH):
            raise problem
