"""Answers to synk-core about JAX's GPUs (`synk_core.engine.DEVICES`).

JAX is not imported before `count`, `why_unusable` or `take`.
"""

from __future__ import annotations

import ctypes
import importlib
import importlib.util
import os
import sys
from functools import partial
from itertools import takewhile
from typing import TYPE_CHECKING, Any, List, NamedTuple, Optional, Sequence, Tuple

import numpy as np
import pytensor
import pytensor.tensor as T
from pytensor.compile.executor import Function
from pytensor.compile.sharedvalue import SharedVariable
from pytensor.link.jax.linker import JAXLinker

import synk_comm
from synk_comm import cuda
from synk_core.device import DOCTOR, Contexts
from synk_core.exceptions import StartError

from . import arrays, sums
from .arrays import is_array, learn_types, real, stand_ins, to_host

__all__ = [
    "NOTICE",
    "OWNS_VARIABLES",
    "concatenated",
    "count",
    "empty_like",
    "fitted",
    "in_c_order",
    "in_use",
    "is_array",
    "is_device_type",
    "is_on_default_device",
    "is_view",
    "is_writable",
    "machine",
    "mode",
    "named_in_options",
    "sums",
    "take",
    "to_device",
    "why_no_nccl",
    "why_unusable",
]

if TYPE_CHECKING:
    from .device import JaxDevice

NOTICE = (
    "JAX translates functions for the GPUs; mode='NUMBA' of a function, or fork(use_gpu=False), "
    "keeps CPU cores"
)

OWNS_VARIABLES = False
"""Whether variables of the device have no values in host memory."""

_PRECISIONS = {"float32": "highest", "tf32": "tensorfloat32"}


class _Taken(NamedTuple):
    """The device of this process."""

    name: str
    number: int  # among the GPUs that CUDA shows to this process
    place: Any  # JAX's object
    alone: Any  # notes of functions outside of orders


_taken: List[_Taken] = []


# ---- of values ---------------------------------------------------------------------------------

is_on_default_device = is_array


def is_device_type(_type: Any) -> bool:
    """Return False: a variable's value can lie anywhere."""
    return False


def is_writable(_value: Any) -> bool:
    """Return False: JAX's arrays are never written."""
    return False


def is_view(_value: Any) -> bool:
    """Return False: each has memory of its own."""
    return False


def in_c_order(value: Any) -> Any:
    """Return the array itself."""
    return value


def empty_like(_value: Any, shape: Tuple[int, ...], dtype: Any) -> np.ndarray:
    """Return room in host memory, because none on the device could be filled."""
    return np.empty(shape, dtype)


def concatenated(parts: Sequence[Any]) -> Any:
    """Return the arrays joined along axis 0; ValueError if shapes forbid that."""
    if any(part.ndim == 0 or part.shape[1:] != parts[0].shape[1:] for part in parts):
        raise ValueError("shapes differ in more than their length")
    return sys.modules["jax.numpy"].concatenate(list(map(real, parts)))


def to_device(variable: Any, _type: Any) -> Any:
    """Return the variable itself."""
    return variable


# ---- of devices --------------------------------------------------------------------------------


def count() -> int:
    """Return the number of GPUs that this process can use; CUDA is not initialized."""
    return stand_ins() or _visible_gpus()


def why_unusable() -> str:
    """Return why JAX's GPUs cannot be used; "" if they can."""
    if importlib.util.find_spec("jax") is None:
        return "PyTensor's functions run on GPUs by JAX, which is not installed"
    plugins = ("jax_cuda13_plugin", "jax_cuda12_plugin")
    if stand_ins() or any(map(importlib.util.find_spec, plugins)):
        return ""
    return "JAX is installed without CUDA"


def why_no_nccl() -> str:
    """Return why programs cannot reduce over ranks; "" if they can."""
    return "" if stand_ins() else synk_comm.why_no_nccl()


def in_use() -> Optional[str]:
    """Return the name of the device that this process uses already."""
    return _taken[0].name if _taken else None


def named_in_options() -> List[str]:
    """Return the names of devices in PyTensor's options: there are none."""
    return []


def take(contexts: Contexts, nccl: bool, graphs: str, precision: str) -> JaxDevice:  # noqa: ARG001
    """Initialize a rank's device. Functions of this package are JAX's from now on, unless they name
    another mode.

    Raises:
        StartError: the device cannot be used, or this process uses others.
    """
    name = str(contexts[None])
    if len(set(contexts.values())) > 1 or not name.startswith("cuda"):
        raise StartError(f"device {name}: with PyTensor each rank has one GPU, such as 'cuda0'")
    if in_use() not in (None, name):
        raise StartError(
            f"device {name}: this process uses {in_use()} already, and can use only one; assign "
            f"{in_use()} to it by master_rank= or devices=, or start a new process"
        )
    if not _taken:
        _initialize(name)
    from .device import JaxDevice  # imports JAX, whose settings are made above

    taken = _taken[0]
    jax: Any = sys.modules["jax"]
    if precision in _PRECISIONS:  # else the user's, or JAX's own
        jax.config.update("jax_default_matmul_precision", _PRECISIONS[precision])
    device = JaxDevice(name, taken.number, taken.place, nccl, precision, _open.remove)
    _open.append(device)
    return device


_open: List[Any] = []  # devices of runtimes


def mode() -> Optional[str]:
    """Return the mode of functions that name none; None for PyTensor's own choice.

    Plain functions keep that: PyTensor's own translation draws from copies of random states, has no
    gradient of `scan`, and returns arrays that cannot be written.
    """
    return "JAX" if _open and pytensor.config.mode == "Mode" else None


def _initialize(name: str) -> None:
    try:
        jax: Any = importlib.import_module("jax")
        # It sets the precision of all programs by PyTensor's floatX; graphs know it better.
        importlib.import_module("pytensor.link.jax.dispatch")
        jax.config.update("jax_enable_x64", True)
        _cache_programs(jax)
        number = int(name.removeprefix("cuda"))
        if stand_ins():
            place = jax.devices("cpu")[0]
        else:
            number, place = _gpu(jax, number)
        if len(jax.devices()) > 1:
            jax.config.update("jax_default_device", place)
        learn_types()
    except StartError:
        raise
    except Exception as error:
        raise StartError(
            f"device {name} cannot be initialized: {type(error).__name__}: {error}; {DOCTOR}"
        ) from error
    from .pending import Pending  # imports JAX

    alone = Pending(partial(arrays.to_device, place=place))
    _taken.append(_Taken(name, number, place, alone))
    _accept_device_values()


def _cache_programs(jax: Any) -> None:
    """Keep compiled programs on disk, unless the user has chosen a folder."""
    if jax.config.jax_compilation_cache_dir is None:
        folder = os.path.join(pytensor.config.base_compiledir, "jax")
        jax.config.update("jax_compilation_cache_dir", folder)
        jax.config.update("jax_persistent_cache_min_compile_time_secs", 0)


def _gpu(jax: Any, number: int) -> Tuple[int, Any]:
    """Return a GPU's number among those that this process sees, and JAX's device.

    JAX takes three quarters of the memory of each GPU that it sees: so it is to see one alone.
    """
    if jax._src.xla_bridge.backends_are_initialized():
        gpus = jax.devices("gpu")
        takes_all = os.environ.get(_PREALLOCATE, "").lower() not in ("0", "false")
        if len(gpus) > 1 and takes_all:
            raise StartError(
                f"this process has computed with JAX already, which has taken memory of all "
                f"{len(gpus)} GPUs; call fork() before, or set {_PREALLOCATE}=false"
            )
        return number, gpus[number]
    if _is_cuda_initialized():
        # It is too late to hide GPUs from CUDA.
        os.environ.setdefault(_PREALLOCATE, "false")
        return number, jax.devices("gpu")[number]
    seen = os.environ.get(_VISIBLE)
    entries = seen.split(",") if seen else [str(n) for n in range(number + 1)]
    os.environ[_VISIBLE] = entries[number]
    try:
        return 0, jax.devices("gpu")[0]
    finally:
        # Processes that are started later get what the user has set.
        if seen is None:
            del os.environ[_VISIBLE]
        else:
            os.environ[_VISIBLE] = seen


_PREALLOCATE, _VISIBLE = "XLA_PYTHON_CLIENT_PREALLOCATE", "CUDA_VISIBLE_DEVICES"
_NOT_INITIALIZED = 3


def _is_cuda_initialized() -> bool:
    found = ctypes.c_int()
    return ctypes.CDLL("libcuda.so.1").cuDeviceGetCount(ctypes.byref(found)) != _NOT_INITIALIZED


def _visible_gpus() -> int:
    """Return the number of GPUs by the driver's management library, without CUDA; by CUDA if that
    is not there."""
    found = ctypes.c_uint()
    try:
        nvml = ctypes.CDLL("libnvidia-ml.so.1")
        if nvml.nvmlInit_v2() or nvml.nvmlDeviceGetCount_v2(ctypes.byref(found)):
            raise OSError("no GPUs by NVML")
    except OSError:
        return cuda.Driver().device_count()
    seen = os.environ.get(_VISIBLE)
    if seen is None:
        return found.value
    entries = [entry.strip() for entry in seen.split(",")]
    # As CUDA reads it: up to the first entry that is none.
    usable = [not e.isdigit() or int(e) < found.value for e in entries if e not in ("", "-1")]
    return len(list(takewhile(bool, usable)))


# ---- PyTensor's own objects --------------------------------------------------------------------


def machine(function: Any) -> Any:
    """Return a machine for a function of JAX's; None if this process has no device."""
    if not _taken:
        return None
    from .machine import JaxMachine  # imports JAX

    return JaxMachine(function, _taken[0].alone)


def fitted(function: Any) -> Any:
    """Return a function that computes on the processor, also if its variables lie on the device."""
    if not _taken:
        return function
    from .machine import fitted

    return fitted(function)


def _accept_device_values() -> None:
    """Make PyTensor's variables and functions take values on the device from now on."""
    from .machine import in_host_memory, shared_places  # imports JAX
    from .pending import CURRENT

    get_value, set_value = SharedVariable.get_value, SharedVariable.set_value
    call = Function.__call__

    def get(self: Any, borrow: bool = False, return_internal_type: bool = False) -> Any:
        value = self.container.storage[0]
        if is_array(value):
            return value if return_internal_type else to_host(value)
        return get_value(self, borrow, return_internal_type)

    def set_(self: Any, new_value: Any, borrow: bool = False) -> None:
        if is_array(new_value) and self.type.dtype == new_value.dtype.name:
            if self.type.is_super(T.TensorType(self.type.dtype, new_value.shape)):
                # Nobody can write it.
                (CURRENT.pending or _taken[0].alone).put(self.container.storage, new_value)
                return
        set_value(self, to_host(new_value), borrow)

    def called(self: Any, *arguments: Any, **named: Any) -> Any:
        if isinstance(self.maker.linker, JAXLinker):
            return call(self, *arguments, **named)
        with in_host_memory(shared_places(self)):
            return call(self, *arguments, **named)

    SharedVariable.get_value, SharedVariable.set_value = get, set_
    Function.__call__ = called
