"""Devices as the core takes them, by Theano's back end: a stand-in for it, without a GPU."""

from __future__ import annotations

import subprocess
import sys
from types import ModuleType, SimpleNamespace

import numpy as np
import pytest
import theano

from synk_core import StartError
from synk_core._graph import values
from synk_core._graph.devices.assignment import device_in_use, take
from synk_core._graph.environment import worker_environment
from synk_theano._gpu import backend, device


class Array:
    def __init__(self, value, context):
        self.value, self.context = np.asarray(value), context
        self.shape, self.dtype, self.ndim = self.value.shape, self.value.dtype, self.value.ndim
        self.flags = {"C_CONTIGUOUS": self.value.flags.c_contiguous}


class BackEnd(ModuleType):
    """As theano.gpuarray, of which it has what the adapter uses."""

    class ContextNotDefined(ValueError):
        pass

    def __init__(self):
        super().__init__("theano.gpuarray")
        self.pygpu = self
        self.contexts = {}
        self.used = []
        self.type = ModuleType("theano.gpuarray.type")
        self.type.get_context = self.get_context
        self.type.list_contexts = lambda: list(self.contexts)
        self.filtered = []

        def filter_inplace(_, data, old, strict=False, allow_downcast=None):
            self.filtered.append(old)
            return data

        self.type.GpuArrayType = type("GpuArrayType", (), {"filter_inplace": filter_inplace})

        def init_dev(device, name=None):
            context = init_dev.devmap.setdefault(device, SimpleNamespace(device=device))
            self.contexts.setdefault(name, context)

        init_dev.devmap = {}
        self.init_dev = init_dev

    def use(self, device):
        self.used.append(device)
        self.init_dev(device)

    def get_context(self, name):
        if name not in self.contexts:
            raise self.ContextNotDefined(name)
        return self.contexts[name]


@pytest.fixture
def back_end(monkeypatch):
    made = BackEnd()
    pygpu = SimpleNamespace(
        empty=lambda shape, dtype, context: Array(np.empty(shape, dtype), context),
        ascontiguousarray=lambda a: Array(np.ascontiguousarray(a.value), a.context),
        concatenate=lambda parts, context: Array(np.concatenate([p.value for p in parts]), context),
    )
    monkeypatch.setitem(sys.modules, "pygpu", pygpu)
    monkeypatch.setitem(sys.modules, "pygpu.gpuarray", SimpleNamespace(GpuArray=Array))
    monkeypatch.setitem(sys.modules, "theano.gpuarray", made)
    monkeypatch.setitem(sys.modules, "theano.gpuarray.type", made.type)
    monkeypatch.setattr(theano, "gpuarray", made, raising=False)
    monkeypatch.setattr(backend.theano.config, "cxx", "g++")
    backend._keep_old_values.cache_clear()
    yield made
    backend._keep_old_values.cache_clear()


class SimpleCuda(SimpleNamespace):
    def __init__(self, name, *_):
        super().__init__(name=name, enter=lambda: None)


NAMES = {None: "opencl0:0", "dev0": "opencl0:0", "dev1": "opencl0:1"}


def test_the_devices_of_a_rank_are_taken_and_named(back_end):
    assert device_in_use() is None
    taken = take(NAMES, nccl=False)
    assert back_end.used == ["opencl0:0"]
    assert {n: c.device for n, c in back_end.contexts.items()} == NAMES
    assert taken.name == device_in_use() == "opencl0:0"
    assert back_end.get_context("dev1").device == "opencl0:1"
    take(NAMES, nccl=False)
    assert back_end.used == ["opencl0:0", "opencl0:0"]


@pytest.mark.parametrize(
    ("names", "said"),
    [
        ({None: "opencl0:1"}, "uses opencl0:0 already, and can use only one"),
        ({None: "opencl0:0", "dev1": "opencl0:2"}, "'dev1' means another device than opencl0:2"),
    ],
)
def test_a_device_and_a_name_that_are_in_use_are_kept(back_end, names, said):
    take(NAMES, nccl=False)
    with pytest.raises(StartError, match=said):
        take(names, nccl=False)


def test_a_device_that_is_known_as_cuda_alone_is_used_by_that_name(back_end, monkeypatch):
    back_end.init_dev("cuda")
    monkeypatch.setattr(backend.cuda, "Driver", lambda: None)
    monkeypatch.setattr(backend, "ordinal_of", lambda *_: 0)
    monkeypatch.setattr(backend, "set_matrix_products", lambda *_: None)
    monkeypatch.setattr(device, "CudaDevice", SimpleCuda)
    assert device_in_use() == "cuda0"
    assert take({None: "cuda0", "dev0": "cuda0"}, nccl=False).name == "cuda0"
    assert back_end.used == ["cuda"]
    assert back_end.get_context("dev0") is back_end.get_context(None)


def test_values_that_are_set_do_not_overwrite_the_old_ones(back_end):
    take({None: "opencl0:0"}, nccl=False)
    assert back_end.type.GpuArrayType().filter_inplace(1, "old") == 1
    assert back_end.filtered == [None]


def test_without_pygpu_it_says_so(back_end, monkeypatch):
    monkeypatch.setitem(sys.modules, "pygpu", None)
    with pytest.raises(StartError, match="needs pygpu, which cannot be imported"):
        take(NAMES, nccl=False)


def test_arrays_on_a_device(back_end):
    take({None: "opencl0:0"}, nccl=False)
    context, other = back_end.get_context(None), SimpleNamespace()
    array = Array(np.arange(6.0).reshape(2, 3).T, context)
    assert values.is_on_device(array)
    assert values.is_on_default_device(array)
    assert not values.is_on_default_device(Array([1.0], other))
    made = values.empty_like(array, (4, 1), "float32")
    assert (made.shape, made.dtype, made.context) == ((4, 1), np.float32, context)
    joined = values.concatenated([array, array])
    assert joined.context is context
    np.testing.assert_array_equal(joined.value, np.concatenate([array.value] * 2))
    assert values.in_c_order(array).flags["C_CONTIGUOUS"]


def test_workers_take_no_device_that_the_users_flags_name(monkeypatch):
    monkeypatch.setenv("THEANO_FLAGS", "device=cuda0,floatX=float32")
    monkeypatch.setenv("THEANO_GPU_IS_ALREADY_ACTIVE", "Yes")
    environment = worker_environment(2, on_device=True)
    assert environment["THEANO_GPU_IS_ALREADY_ACTIVE"] == ""
    code = "import theano; c = theano.config; print(c.device, c.floatX, repr(c.contexts))"
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "cpu float32 ''"
