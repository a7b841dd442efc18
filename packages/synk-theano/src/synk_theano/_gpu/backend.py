"""Answers to synk-core about Theano's GPUs (`synk_core.engine.DEVICES`).

Theano's back end is not imported before `why_unusable` or `take`.
"""

from __future__ import annotations

import importlib
import sys
from functools import cache
from typing import TYPE_CHECKING, Any, List, Optional

import theano

import synk_comm
from synk_comm import cuda
from synk_core.device import DOCTOR, Contexts
from synk_core.exceptions import StartError

from . import sums
from .arrays import (
    concatenated,
    empty_like,
    in_c_order,
    is_array,
    is_device_type,
    is_on_default_device,
    is_view,
    is_writable,
    ordinal_of,
    to_device,
)
from .precision import exclude_tf32, set_matrix_products

if TYPE_CHECKING:
    from .device import GpuArrayDevice

__all__ = [
    "NOTICE",
    "OWNS_VARIABLES",
    "concatenated",
    "count",
    "empty_like",
    "in_c_order",
    "in_use",
    "is_array",
    "is_device_type",
    "is_on_default_device",
    "is_view",
    "is_writable",
    "named_in_options",
    "sums",
    "take",
    "to_device",
    "why_no_nccl",
    "why_unusable",
]


NOTICE = ""
"""What `fork()` says if it finds GPUs and nobody has asked for them."""

OWNS_VARIABLES = True
"""Whether variables of the device have no values in host memory."""


def count() -> int:
    """Return the number of GPUs that CUDA shows to this process."""
    return cuda.Driver().device_count()


def why_no_nccl() -> str:
    """Return why ranks cannot use NCCL; "" if they can."""
    return synk_comm.why_no_nccl()


def why_unusable() -> str:
    """Return why the back end cannot be loaded; "" if it can."""
    try:
        importlib.import_module("pygpu")
    except Exception as error:  # noqa: BLE001 - one made for another NumPy raises anything
        return f"Theano's GPU back end needs pygpu, which cannot be imported ({error})"
    return "" if theano.config.cxx else "Theano's GPU back end needs a C++ compiler (g++)"


def in_use() -> Optional[str]:
    """Return the default device that this process already uses; a CUDA device by its number."""
    gpuarray = sys.modules.get("theano.gpuarray")
    if gpuarray is None or getattr(gpuarray, "pygpu", None) is None:
        return None
    try:
        held = gpuarray.get_context(None)
    except gpuarray.ContextNotDefined:
        return None
    known = gpuarray.init_dev.devmap.items()
    name = next((str(name) for name, context in known if context is held), None)
    return f"cuda{ordinal_of(cuda.Driver(), name, held)}" if name == "cuda" else name


def named_in_options() -> List[str]:
    """Return the names of contexts that Theano's flag ``contexts`` defines."""
    pairs = filter(None, getattr(theano.config, "contexts", "").split(";"))
    return [pair.partition("->")[0].strip() for pair in pairs]


def take(contexts: Contexts, nccl: bool, graphs: str, precision: str) -> GpuArrayDevice:
    """Initialize a rank's devices. New shared variables of floats lie on the default one from now
    on, and functions compute there. Other arguments as `CudaDevice`.

    Raises:
        StartError: a device cannot be used, or not in this precision.
    """
    from .device import CudaDevice, GpuArrayDevice  # needs the engine's names, which need this file

    importlib.import_module("theano.gpuarray")  # takes what Theano's flags name into use
    default = name = str(contexts[None])
    held = in_use()
    if held is not None and held != default:
        raise StartError(
            f"device {default}: this process uses {held} already, and can use only one; assign "
            f"{held} to it by master_rank= or devices=, or start a new process"
        )
    is_cuda = default.startswith("cuda")
    if precision == "float32" and is_cuda:
        exclude_tf32(held)
    try:
        # If it is in use already, this makes new variables and functions use it.
        theano.gpuarray.use(default if held is None else _known_as(default))
        context = theano.gpuarray.get_context(None)
        for named, name in contexts.items():
            if named is not None:
                _name_context(named, name)
        for named, name in contexts.items():
            if name.startswith("cuda"):
                set_matrix_products(theano.gpuarray.get_context(named), precision == "tf32")
    except StartError:
        raise
    except Exception as error:
        raise StartError(
            f"device {name} cannot be initialized: {type(error).__name__}: {error}; {DOCTOR}"
        ) from error
    _keep_old_values()
    if not is_cuda:
        return GpuArrayDevice(default, context)
    device = CudaDevice(default, context, nccl, graphs, precision)
    device.enter()
    return device


def _name_context(name: str, device: str) -> None:
    """Give a device a context name; StartError if the name means another one already."""
    gpuarray = sys.modules["theano.gpuarray"]
    if name in named_in_options() and name in gpuarray.type.list_contexts():
        return  # the user's own choice, for this process
    known = _known_as(device) if device == in_use() else device
    gpuarray.init_dev(known, name)
    if gpuarray.get_context(name) is not gpuarray.init_dev.devmap[known]:
        raise StartError(
            f"context name {name!r} means another device than {device} in this process already; "
            f"give the same devices as before, or start a new process"
        )


def _known_as(name: str) -> str:
    """Return Theano's name of the device in use, which may be "cuda" alone."""
    known = sys.modules["theano.gpuarray"].init_dev.devmap
    return name if name in known else "cuda"


@cache
def _keep_old_values() -> None:
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
