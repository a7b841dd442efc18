"""Any device array, of any library, as (pointer, shape, dtype, stream).

The only file that reads device pointers. It takes

* libgpuarray's (``pygpu.gpuarray.GpuArray``), as Theano's GPU variables hold them;
* every object with ``__cuda_array_interface__`` (CuPy, Numba, RMM, ...);
* every object with ``__dlpack__`` and ``__dlpack_device__`` that lies on a CUDA device (PyTorch).

Where an object has both, the interface is taken if it names the stream: DLPack makes the stream of
the call wait for the source's instead.

NCCL takes a pointer and a count, and would send the wrong elements of an array that is not in C
order, so that is checked here and never silently mended: a copy would receive nothing.
"""

from __future__ import annotations

import ctypes
import math
import sys
from functools import lru_cache
from typing import Any, Callable, NamedTuple, Tuple

import numpy as np

from synk_comm._core.calls import Kind, Shape, dtype_text

# NumPy 1 does not annotate it.
_FORMAT: Any = np.lib.format
BFLOAT16 = "bfloat16"
_DLPACK_CUDA, _DLPACK_MANAGED = 2, 13
_DLPACK_KINDS = {0: "i", 1: "u", 2: "f", 5: "c", 6: "b"}
_DLPACK_BFLOAT = 4
_LEGACY_STREAM = 1  # what DLPack and the CUDA array interface call the default stream


class DeviceArray(NamedTuple):
    """Where a device array lies, in C order.

    Attributes:
        pointer: of its first element; anything if it is empty.
        dtype: as ``_core.calls.dtype_text`` gives it, or ``"bfloat16"``.
        itemsize: bytes of an element.
        stream: CUDA stream on which its contents come about; None if the source does not say.
        keep: an object that must live as long, besides the array itself.
    """

    pointer: int
    shape: Shape
    dtype: str
    itemsize: int
    stream: int | None
    keep: Any = None

    @property
    def elements(self) -> int:
        return math.prod(self.shape)

    @property
    def nbytes(self) -> int:
        return self.elements * self.itemsize

    @property
    def kind(self) -> Kind:
        """dtype and shape, for the peers."""
        return self.dtype, self.shape

    def part(self, begin: int, shape: Shape) -> DeviceArray:
        """Return what lies from an element on, as an array of some shape."""
        return self._replace(pointer=self.pointer + begin * self.itemsize, shape=shape)

    def rows(self) -> list[DeviceArray]:
        """Return what lies along the first axis, one array each."""
        shape = self.shape[1:]
        return [self.part(row * math.prod(shape), shape) for row in range(self.shape[0])]


_Found = Tuple[DeviceArray, Any, bool, "int | None"]
"""An array; its strides in bytes, None if it is in C order; whether it may be written; its device
if the source names it."""


def is_device_array(x: Any) -> bool:
    """Return whether ``x`` lies on a CUDA device."""
    if isinstance(x, (np.ndarray, np.generic, int, float, complex)):
        return False
    if is_pygpu(x) or hasattr(x, "__cuda_array_interface__"):
        return True
    device = getattr(x, "__dlpack_device__", None)
    return device is not None and int(device()[0]) in (_DLPACK_CUDA, _DLPACK_MANAGED)


def resolve(
    x: Any,
    name: str,
    device: int,
    device_of: Callable[[int], int],
    stream: int | None = None,
    *,
    written: bool = False,
) -> DeviceArray:
    """Return where a device array lies that can be given to NCCL.

    Args:
        name: what errors call it.
        device: where it has to lie.
        device_of: returns the device of a pointer, for sources that do not name it.
        stream: where the array is going to be used; DLPack's sources make it wait for theirs.
        written: whether it is going to be written.

    Raises:
        TypeError: this is no device array, or not one that can travel.
        ValueError: it does not lie as it has to.
    """
    if is_pygpu(x):
        found = _from_pygpu(x)
    elif (interface := getattr(x, "__cuda_array_interface__", None)) is not None and (
        "stream" in interface or not hasattr(x, "__dlpack__")
    ):
        found = _from_interface(x, interface)
    elif hasattr(x, "__dlpack__") and is_device_array(x):
        found = _from_dlpack(x, stream or _LEGACY_STREAM)
    else:
        raise TypeError(
            f"expected a device array, got {type(x).__name__}; it must have "
            "__cuda_array_interface__ or __dlpack__, or be a pygpu array, and lie on a CUDA "
            "device. Arrays of one call are all on devices, or all in host memory"
        )
    array, strides, writeable, where = found
    if strides is not None and not _in_c_order(array.shape, strides, array.itemsize):
        raise ValueError(
            f"{name} is not contiguous in C order; give NCCL a copy, as by ascontiguousarray(x) "
            "(x.contiguous() of PyTorch)"
        )
    if where is None:
        where = device_of(array.pointer) if 0 not in array.shape else device
    if where != device:
        raise ValueError(
            f"{name} is on device {where}, but this communicator works on device {device}; "
            "make the array there, or the communicator with device="
        )
    if written and not writeable:
        raise ValueError(f"{name} must be writeable")
    return array


def _in_c_order(shape: Shape, strides: Any, itemsize: int) -> bool:
    expected = itemsize
    for length, stride in zip(reversed(shape), reversed(tuple(strides))):
        if length != 1 and stride != expected:
            return 0 in shape
        expected *= length
    return True


# -- the sources --------------------------------------------------------------------------


def is_pygpu(x: Any) -> bool:
    return hasattr(x, "gpudata") and hasattr(x, "context") and hasattr(x, "offset")


def pygpu_place(x: Any) -> tuple[Any, ...]:
    """Return what tells whether a pygpu array lies where it lay, in the same form."""
    return x.gpudata, x.shape, x.strides, x.typecode


def _from_pygpu(x: Any) -> _Found:
    # `gpudata` is the address of the first element: a view's `offset` is in it. libgpuarray's own
    # streams wait for the default stream, and that for them, so that work there is in order.
    dtype = dtype_text(np.dtype(x.dtype))
    array = DeviceArray(int(x.gpudata), tuple(x.shape), dtype, int(x.itemsize), stream=0)
    return array, x.strides, bool(x.flags["WRITEABLE"]), None


def _from_interface(x: Any, interface: dict[str, Any]) -> _Found:
    if interface.get("mask") is not None:
        raise TypeError("masked device arrays cannot travel; send values and mask apart")
    text, itemsize = _plain_dtype(interface["typestr"])
    if text[1] == "V" or itemsize == 2:
        text = _special_dtype(x, interface, text)
    pointer, readonly = interface["data"]
    stream = interface.get("stream")
    stream = None if stream is None else int(stream)
    array = DeviceArray(pointer, tuple(interface["shape"]), text, itemsize, stream)
    return array, interface.get("strides"), not readonly, None


@lru_cache(maxsize=64)
def _plain_dtype(typestr: str) -> tuple[str, int]:
    dtype = np.dtype(typestr)
    return dtype_text(dtype), dtype.itemsize


def _special_dtype(x: Any, interface: dict[str, Any], text: str) -> str:
    """Return the dtype where the type's text alone is not enough: bfloat16, or a structured one."""
    named = getattr(x, "dtype", None)
    if getattr(named, "name", named) == BFLOAT16:
        return BFLOAT16
    described = interface.get("descr")
    if text[1] == "V" and described and len(described[0]) > 1 and described[0][0]:
        return dtype_text(_FORMAT.descr_to_dtype(described))
    return text


class _Tensor(ctypes.Structure):
    """DLPack's DLTensor, with which a DLManagedTensor begins."""

    _fields_ = [
        ("data", ctypes.c_void_p),
        ("device_type", ctypes.c_int32),
        ("device", ctypes.c_int32),
        ("ndim", ctypes.c_int32),
        ("code", ctypes.c_uint8),
        ("bits", ctypes.c_uint8),
        ("lanes", ctypes.c_uint16),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
    ]


def _from_dlpack(x: Any, stream: int) -> _Found:
    capsule = x.__dlpack__(stream=stream)
    read = ctypes.pythonapi.PyCapsule_GetPointer
    read.restype, read.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]
    tensor = _Tensor.from_address(read(capsule, b"dltensor"))
    itemsize = tensor.bits // 8
    if tensor.lanes != 1 or tensor.bits % 8:
        raise TypeError(f"DLPack elements of {tensor.lanes} x {tensor.bits} bits cannot travel")
    if tensor.code == _DLPACK_BFLOAT:
        dtype = BFLOAT16
    elif tensor.code in _DLPACK_KINDS:
        dtype = dtype_text(np.dtype(f"{_DLPACK_KINDS[tensor.code]}{itemsize}"))
    else:
        raise TypeError(
            f"elements of DLPack's type {tensor.code} cannot travel; send them as uint8"
        )
    shape = tuple(tensor.shape[: tensor.ndim])
    strides = tensor.strides and [step * itemsize for step in tensor.strides[: tensor.ndim]]
    pointer = (tensor.data or 0) + tensor.byte_offset
    # The capsule is not consumed: it keeps the tensor, and frees it when it is dropped. The
    # producer has made the stream wait for its own.
    array = DeviceArray(pointer, shape, dtype, itemsize, stream, capsule)
    return array, strides or None, True, int(tensor.device)


# -- new arrays ---------------------------------------------------------------------------


def maker(like: Any) -> Callable[[Shape], Any]:
    """Return a function that makes arrays of some shape like another one, on the same device.

    Libraries take part by a method ``new_empty(shape)``, as PyTorch's tensors have one.

    Raises:
        TypeError: it is not known how.
    """
    if is_pygpu(like):
        empty = sys.modules["pygpu"].empty
        return lambda shape: empty(shape, dtype=like.dtype, context=like.context)
    if hasattr(like, "new_empty"):
        make: Callable[[Shape], Any] = like.new_empty
        return make
    raise TypeError(
        f"a result like {type(like).__name__} cannot be made here; "
        "give out=, a device array that receives it"
    )
