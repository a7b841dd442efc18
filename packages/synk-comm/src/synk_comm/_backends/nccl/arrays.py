"""Device arrays of any library, as (pointer, shape, dtype, stream).

These are libgpuarray's (pygpu), and objects with ``__cuda_array_interface__`` (CuPy, Numba) or
DLPack (PyTorch). An object with both gives the interface if that names the stream; DLPack makes the
stream of the call wait for the source's instead.
"""

from __future__ import annotations

import ctypes
import math
import struct
import sys
from collections.abc import Sequence
from functools import lru_cache
from itertools import zip_longest
from typing import Any, Callable, NamedTuple, Tuple

import numpy as np

from synk_comm._core.calls import FORMAT, Kind, Shape, dtype_text

BFLOAT16 = "bfloat16"
_DLPACK_CUDA, _DLPACK_MANAGED = 2, 13
_DLPACK_KINDS = {0: "i", 1: "u", 2: "f", 5: "c", 6: "b"}
_DLPACK_BFLOAT = 4
_TENSOR = struct.Struct("=QiiiBBHQQQ")
"""DLPack's DLTensor, with which a DLManagedTensor begins: data, type and number of the device,
ndim, type, bits and lanes of an element, addresses of shape and strides, offset."""
_LEGACY_STREAM = 1  # the default stream in DLPack and the CUDA array interface


class DeviceArray(NamedTuple):
    """The place of a device array in C order."""

    pointer: int  # of its first element; anything if it is empty
    shape: Shape
    dtype: str  # as ``_core.calls.dtype_text`` returns it, or "bfloat16"
    itemsize: int
    stream: int | None  # that computes its contents; None if the source does not name it
    keep: Any = None  # an object that must live as long, besides the array itself

    @property
    def elements(self) -> int:
        return math.prod(self.shape)

    @property
    def nbytes(self) -> int:
        return self.elements * self.itemsize

    @property
    def kind(self) -> Kind:
        return self.dtype, self.shape

    def part(self, begin: int, shape: Shape) -> DeviceArray:
        """Return the array of some shape that begins at an element."""
        return self._replace(pointer=self.pointer + begin * self.itemsize, shape=shape)

    def rows(self) -> list[DeviceArray]:
        """Return the arrays along the first axis."""
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
    """Return the place of a device array that NCCL can take; no copy, which would receive nothing.

    ``device_of`` returns the device of a pointer, for sources that do not name it. DLPack's sources
    make the ``stream`` of the call wait for theirs.
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


def is_pygpu(x: Any) -> bool:
    return hasattr(x, "gpudata") and hasattr(x, "context") and hasattr(x, "offset")


def pygpu_place(x: Any) -> tuple[Any, ...]:
    """Return a value that changes if a pygpu array moves, or changes its form."""
    return x.gpudata, x.shape, x.strides, x.typecode


def _from_pygpu(x: Any) -> _Found:
    # `gpudata` is the address of the first element, also of a view. libgpuarray's own streams wait
    # for the default stream, and that for them.
    dtype = dtype_text(np.dtype(x.dtype))
    array = DeviceArray(int(x.gpudata), tuple(x.shape), dtype, int(x.itemsize), stream=0)
    return array, x.strides, bool(x.flags["WRITEABLE"]), None


def _from_interface(x: Any, interface: dict[str, Any]) -> _Found:
    if interface.get("mask") is not None:
        raise TypeError("masked device arrays cannot travel; send values and mask apart")
    text, itemsize = _plain_dtype(interface["typestr"])
    if text[1] == "V" or itemsize == 2:
        text = _special_dtype(x, interface, text)
    (pointer, readonly), stream = interface["data"], interface.get("stream")
    stream = None if stream is None else int(stream)
    array = DeviceArray(pointer, tuple(interface["shape"]), text, itemsize, stream)
    return array, interface.get("strides"), not readonly, None


@lru_cache(maxsize=64)
def _plain_dtype(typestr: str) -> tuple[str, int]:
    dtype = np.dtype(typestr)
    return dtype_text(dtype), dtype.itemsize


def _special_dtype(x: Any, interface: dict[str, Any], text: str) -> str:
    """Return the dtype that the type's text does not describe: bfloat16, or a structured one."""
    named = getattr(x, "dtype", None)
    if getattr(named, "name", named) == BFLOAT16:
        return BFLOAT16
    described = interface.get("descr")
    if text[1] == "V" and described and len(described[0]) > 1 and described[0][0]:
        return dtype_text(FORMAT.descr_to_dtype(described))
    return text


def _from_dlpack(x: Any, stream: int) -> _Found:
    capsule = x.__dlpack__(stream=stream)
    read = ctypes.pythonapi.PyCapsule_GetPointer
    read.restype, read.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]
    tensor = _TENSOR.unpack(ctypes.string_at(read(capsule, b"dltensor"), _TENSOR.size))
    data, _, device, ndim, code, bits, lanes, shape_at, strides_at, offset = tensor
    itemsize, numbers = bits // 8, ctypes.c_int64 * ndim
    if lanes != 1 or bits % 8:
        raise TypeError(f"DLPack elements of {lanes} x {bits} bits cannot travel")
    if code == _DLPACK_BFLOAT:
        dtype = BFLOAT16
    elif code in _DLPACK_KINDS:
        dtype = dtype_text(np.dtype(f"{_DLPACK_KINDS[code]}{itemsize}"))
    else:
        raise TypeError(f"elements of DLPack's type {code} cannot travel; send them as uint8")
    shape = tuple(numbers.from_address(shape_at))
    strides = strides_at and [step * itemsize for step in numbers.from_address(strides_at)]
    # The capsule is not consumed: it keeps the tensor. The producer has made the stream wait.
    array = DeviceArray(data + offset, shape, dtype, itemsize, stream, capsule)
    return array, strides or None, True, device


def maker(like: Any) -> Callable[[Shape], Any]:
    """Return a function that makes arrays of a shape like another one, on the same device.

    An array of any library makes them by its method ``new_empty(shape)``, as PyTorch's tensors;
    TypeError if it has none.
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


def check_apart(
    reads: Sequence[DeviceArray | None],
    writes: Sequence[DeviceArray | None],
    *,
    in_place: bool = True,
) -> None:
    """Raise ValueError if an array to be written overlaps another array of the call.

    ``in_place``: an array may be read and written if it stands at the same place of both lists.
    """
    spans: list[tuple[int, int, bool]] = []
    for read, write in zip_longest(reads, writes):
        if in_place and read and write and (read.pointer, read.kind) == (write.pointer, write.kind):
            read = None
        spans.extend(
            (array.pointer, array.pointer + array.nbytes, array is write)
            for array in (read, write)
            if array is not None
        )
    last_end = last_written = 0
    for start, end, written in sorted(span for span in spans if span[0] < span[1]):
        if start < last_written or (written and start < last_end):
            raise ValueError(
                "out overlaps an array that is read, or itself; NCCL can only work in place if "
                "both are the same memory, from beginning to end"
            )
        last_end = max(last_end, end)
        last_written = max(last_written, end) if written else last_written


def check_like(given: Sequence[DeviceArray], outs: Sequence[DeviceArray]) -> None:
    """Raise ValueError unless each out can receive the result for the array given."""
    if len(given) != len(outs):
        raise ValueError(f"out must be a list like x, of {len(given)} arrays, got {len(outs)}")
    for x, out in zip(given, outs):
        if x.kind != out.kind:
            raise ValueError(
                f"out must be like x, {x.dtype} {x.shape}, got {out.dtype} {out.shape}"
            )
