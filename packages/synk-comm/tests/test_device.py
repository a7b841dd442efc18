"""Device arrays of all kinds, resolved to pointers, without any GPU."""

from __future__ import annotations

import contextlib
import ctypes
import sys
import types

import numpy as np
import pytest

from synk_comm._backends.nccl import arrays
from synk_comm._backends.nccl.arrays import BFLOAT16, is_device_array, maker, resolve

HERE = 3


def where(pointer):
    assert pointer > 0
    return HERE


def found(x, stream=None, *, device=HERE, written=False):
    return resolve(x, "x", device, where, stream, written=written)


class Exposes:
    """An object with __cuda_array_interface__, over host memory."""

    def __init__(self, host, **changes):
        self.host = host
        self.__cuda_array_interface__ = {
            "shape": host.shape,
            "typestr": host.dtype.str,
            "data": (host.__array_interface__["data"][0], False),
            "version": 3,
            **changes,
        }


class Packs:
    """An object that speaks DLPack, over host memory said to lie on a device."""

    def __init__(self, host, kind=2, code=2, strides=None, lanes=1, offset=0):
        self.kind, self.asked = kind, []
        shape = (ctypes.c_int64 * host.ndim)(*host.shape)
        steps = None if strides is None else (ctypes.c_int64 * host.ndim)(*strides)
        self.tensor = make_tensor(host, kind, code, shape, steps, lanes, offset)
        self.keep = host, shape, steps

    def __dlpack_device__(self):
        return self.kind, HERE

    def __dlpack__(self, stream=None):
        self.asked.append(stream)
        new = ctypes.pythonapi.PyCapsule_New
        new.restype = ctypes.py_object
        new.argtypes = [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p]
        return new(ctypes.addressof(self.tensor), b"dltensor", None)


def make_tensor(host, kind, code, shape, steps, lanes, offset):
    """Lay out a DLManagedTensor by hand, from DLPack's header: 8-byte fields in order."""
    import struct

    address = host.__array_interface__["data"][0]
    dtype = code | host.dtype.itemsize * 8 << 8 | lanes << 16
    device = kind | HERE << 32
    shape_at = ctypes.addressof(shape)
    steps_at = 0 if steps is None else ctypes.addressof(steps)
    packed = struct.pack(
        "<QQiIQQQQQ", address, device, host.ndim, dtype, shape_at, steps_at, offset, 0, 0
    )
    return ctypes.create_string_buffer(packed)


def test_host_things_are_no_device_arrays():
    for x in (np.ones(3), np.float32(1), 1, 2.0, [1], None, "x", Packs(np.ones(3), kind=1)):
        assert not is_device_array(x)
    for x in (Exposes(np.ones(3)), Packs(np.ones(3)), Packs(np.ones(3), kind=13)):
        assert is_device_array(x)
    with pytest.raises(TypeError, match="expected a device array, got ndarray"):
        found(np.ones(3))
    with pytest.raises(TypeError, match="expected a device array, got Packs"):
        found(Packs(np.ones(3), kind=1))


@pytest.mark.parametrize("dtype", ["f4", "i1", "?", "c16", ">i2", "M8[ns]"])
def test_the_cuda_array_interface(dtype):
    host = np.zeros((2, 3), dtype)
    got = found(Exposes(host, stream=7))
    assert got.pointer == host.__array_interface__["data"][0]
    assert (got.shape, got.dtype, got.itemsize) == ((2, 3), host.dtype.str, host.itemsize)
    assert got.stream == 7
    assert (got.elements, got.nbytes) == (6, host.nbytes)
    assert [row.pointer - got.pointer for row in got.rows()] == [0, 3 * host.itemsize]
    assert found(Exposes(host, stream=7), written=True) == got


def test_structured_arrays_are_described_by_descr():
    dtype = np.dtype([("a", "i2"), ("b", "f8", (2,))], align=True)
    x = Exposes(np.zeros(2, dtype), descr=np.lib.format.dtype_to_descr(dtype))
    assert found(x).dtype == repr(np.lib.format.dtype_to_descr(dtype))


def test_the_interface_with_a_stream_an_empty_array_and_a_mask():
    assert found(Exposes(np.ones(2), stream=None)).stream is None
    empty = Exposes(np.ones((0, 2)), data=(0, False), strides=(8, 16))
    assert found(empty, device=5).nbytes == 0
    with pytest.raises(TypeError, match="masked"):
        found(Exposes(np.ones(2), mask=Exposes(np.ones(2, bool))))
    with pytest.raises(TypeError, match="cannot travel"):
        found(Exposes(np.ones(2), typestr="|O"))


def test_bfloat16_is_known_by_the_name_of_the_dtype():
    x = Exposes(np.zeros(2, "V2"))
    assert found(x).dtype == "|V2"
    x.dtype = types.SimpleNamespace(name="bfloat16")
    assert found(x).dtype == BFLOAT16
    x.dtype = "bfloat16"
    assert found(x).dtype == BFLOAT16


@pytest.mark.parametrize(
    "shape, strides, contiguous",
    [
        ((2, 3), (24, 8), True),
        ((2, 3), (8, 16), False),
        ((2, 3), (48, 8), False),
        ((1, 3), (999, 8), True),
        ((3, 1), (8, 999), True),
        ((0, 3), (1, 1), True),
        ((), (), True),
        ((3,), (-8,), False),
        ((3,), (0,), False),
        ((2, 3), None, True),
    ],
)
def test_contiguity_is_numpys(shape, strides, contiguous):
    def check(x):
        refused = pytest.raises(ValueError, match=r"x is not contiguous .* ascontiguousarray")
        with contextlib.nullcontext() if contiguous else refused:
            found(x)

    check(Exposes(np.ones(16), shape=shape, strides=strides))
    if strides is not None and 0 not in shape and min(strides, default=1) >= 0:
        like = np.lib.stride_tricks.as_strided(np.ones(500), shape, strides)
        assert like.flags.c_contiguous == contiguous
    packed = Packs(np.ones(shape), strides=None if strides is None else [s // 8 for s in strides])
    if 999 not in (strides or ()):
        check(packed)


def test_usable_is_on_the_right_device_and_writeable():
    host = np.ones(2)
    fixed = Exposes(host, data=(host.ctypes.data, True))
    found(fixed)
    with pytest.raises(ValueError, match="x must be writeable"):
        found(fixed, written=True)
    with pytest.raises(ValueError, match=r"x is on device 3, .* works on device 0"):
        found(fixed, device=0)
    with pytest.raises(ValueError, match=r"x is on device 3, .* works on device 0"):
        found(Packs(host), device=0)


@pytest.mark.parametrize(
    "code, dtype, text",
    [
        (0, "i4", "<i4"),
        (1, "u1", "|u1"),
        (2, "f8", "<f8"),
        (4, "u2", BFLOAT16),
        (5, "c8", "<c8"),
        (6, "?", "|b1"),
    ],
)
def test_dlpack(code, dtype, text):
    host = np.ones((2, 3), dtype)
    x = Packs(host, code=code, offset=0)
    got = found(x)
    assert got.pointer == host.__array_interface__["data"][0]
    assert (got.shape, got.dtype, got.itemsize) == ((2, 3), text, host.itemsize)
    assert got.stream == 1
    assert found(x, stream=99).stream == 99
    assert found(x, stream=0).stream == 1  # the default stream has two names
    assert x.asked == [1, 99, 1]  # the source made these streams wait for its own
    assert found(Packs(host, code=code, offset=8)).pointer == got.pointer + 8


def test_dlpack_elements_that_cannot_travel():
    with pytest.raises(TypeError, match="4 x 64 bits"):
        found(Packs(np.ones(2), lanes=4))
    with pytest.raises(TypeError, match="type 3"):
        found(Packs(np.ones(2), code=3))


class PygpuArray:
    def __init__(self, host, offset=0):
        self.host = host
        start = host.__array_interface__["data"][0]
        self.gpudata, self.offset, self.context = start + offset, offset, "the context"
        self.shape, self.dtype, self.strides = host.shape, host.dtype, host.strides
        self.size, self.itemsize = host.size, host.itemsize
        self.flags = {"C_CONTIGUOUS": host.flags.c_contiguous, "WRITEABLE": host.flags.writeable}


def test_pygpu(monkeypatch):
    host = np.ones((2, 3), "f4")
    x = PygpuArray(host, offset=8)
    assert is_device_array(x)
    got = found(x)
    assert got.pointer == host.__array_interface__["data"][0] + 8
    assert (got.shape, got.dtype, got.stream) == ((2, 3), "<f4", 0)
    assert found(x, written=True) == got
    with pytest.raises(ValueError, match="not contiguous"):
        found(PygpuArray(host.T))
    with pytest.raises(ValueError, match="on device 3"):
        found(x, device=1)
    assert found(PygpuArray(np.ones((0, 2))), device=1).nbytes == 0
    made = []
    fake = types.SimpleNamespace(empty=lambda shape, **options: made.append((shape, options)))
    monkeypatch.setitem(sys.modules, "pygpu", fake)
    maker(x)((4, 2))
    assert made == [((4, 2), {"dtype": np.dtype("f4"), "context": "the context"})]


def test_where_both_are_there_the_interface_is_taken_if_it_names_the_stream():
    """As CuPy's, not as PyTorch's: DLPack makes the call's stream wait for the source's."""

    class Both(Packs):
        def __init__(self, host, **changes):
            super().__init__(host)
            self.__cuda_array_interface__ = Exposes(host, **changes).__cuda_array_interface__

    host = np.ones(2)
    assert found(Both(host, stream=55)).stream == 55
    silent = Both(host)
    assert is_device_array(silent)
    assert found(silent, stream=99).stream == 99
    assert silent.asked == [99]


def test_nothing_is_imported_and_unknown_libraries_are_asked_for_out():
    before = set(sys.modules)
    with pytest.raises(TypeError, match="give out="):
        maker(Exposes(np.ones(2)))
    x = Exposes(np.ones(2))
    x.new_empty = lambda shape: shape
    assert maker(x)((2,)) == (2,)
    assert not {"torch", "cupy", "pygpu", "nccl"} & (set(sys.modules) - before)


def test_written_arrays_must_lie_apart():
    memory = found(Exposes(np.zeros(100, "u1")))

    def at(start, length):
        return memory._replace(pointer=memory.pointer + start, shape=(length,))

    rng = np.random.default_rng(0)
    refused = 0
    for _ in range(3000):
        reads = [at(*rng.integers(0, 12, 2)) for _ in range(rng.integers(0, 4))]
        writes = [at(*rng.integers(0, 12, 2)) for _ in range(rng.integers(0, 4))]
        if reads and rng.random() < 0.5:
            writes[:1] = reads[:1]
        in_place = bool(rng.random() < 0.5)
        bytes_ = [{*range(a.pointer, a.pointer + a.nbytes)} for a in writes]
        bad = any(one & other for n, one in enumerate(bytes_) for other in bytes_[:n])
        for n, read in enumerate(reads):
            span = {*range(read.pointer, read.pointer + read.nbytes)}
            for m, (write, other) in enumerate(zip(writes, bytes_)):
                same = in_place and n == m and (read.pointer, read.shape) == write[:2]
                bad = bad or (not same and bool(span & other))
        refused += bad
        if bad:
            with pytest.raises(ValueError, match="overlaps"):
                arrays.check_apart(reads, writes, in_place=in_place)
        else:
            arrays.check_apart(reads, writes, in_place=in_place)
    assert 500 < refused < 2500
