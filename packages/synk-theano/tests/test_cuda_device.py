"""The device of a rank: with stand-ins for CUDA's driver and pygpu, whose memory is the host's."""

from __future__ import annotations

import contextlib
import ctypes
import gc
import sys
from types import ModuleType, SimpleNamespace
from typing import Any, NamedTuple

import numpy as np
import pytest

import synk_comm
from synk_comm import cuda
from synk_core._graph.devices.pages import LARGEST_LOCK
from synk_theano._gpu import arrays, device
from synk_theano._gpu.copies import Download, Upload

CONTEXT = object()


class Array:
    def __init__(self, held, context=CONTEXT):
        self.held, self.context = held, context
        self.shape, self.dtype, self.ndim, self.size = held.shape, held.dtype, held.ndim, held.size
        self.itemsize, self.flags = held.itemsize, {"C_CONTIGUOUS": held.flags.c_contiguous}
        self.gpudata = held.__array_interface__["data"][0]
        self.written = 0

    def write(self, array):
        self.held[...] = array
        self.written += 1

    def __getitem__(self, place):
        return Array(self.held[place])

    def __setitem__(self, place, value):
        self.held[place] = value.held

    def __array__(self, dtype=None, copy=None):
        return self.held


class Driver:
    """As CUDA's for device 3: copies happen at once, in this order; events when asked twice."""

    def __init__(self):
        self.did, self.current, self.numbers = [], 0, iter(range(1, 100))
        self.locked, self.refuses, self.asked = {}, False, False

    def entered(self, ordinal):
        assert ordinal == 3
        return contextlib.nullcontext()

    def current_device(self):
        return self.current

    def make_current(self, ordinal):
        self.current = ordinal

    def event(self):
        return next(self.numbers)

    stream = event

    def record(self, event, stream):
        self.did.append(("record", event))

    def wait_for(self, stream, event):
        self.did.append(("wait for", event))

    def has_happened(self, event):
        self.asked = not self.asked
        if not self.asked:
            self.did.append(("awaited", event))
        return not self.asked

    def lock_pages(self, address, nbytes):
        if self.refuses:
            raise cuda.CudaError("already locked")
        assert address not in self.locked
        self.locked[address] = nbytes
        self.did.append("lock")

    def unlock_pages(self, address):
        del self.locked[address]

    def copy_on(self, stream, target, source, nbytes):
        ctypes.memmove(target, source, nbytes)
        self.did.append("copy")

    upload_on = download_on = copy_on


@pytest.fixture
def made(monkeypatch):
    driver = Driver()
    monkeypatch.setattr(device.cuda, "Driver", lambda: driver)
    monkeypatch.setattr(arrays, "stream", lambda context: 0)
    pygpu = SimpleNamespace(empty=lambda shape, dtype, context: Array(np.empty(shape, dtype)))
    monkeypatch.setitem(sys.modules, "pygpu", pygpu)
    monkeypatch.setitem(sys.modules, "pygpu.gpuarray", SimpleNamespace(GpuArray=Array))
    types = ModuleType("theano.gpuarray.type")
    types.get_context = lambda _name: CONTEXT
    monkeypatch.setitem(sys.modules, "theano.gpuarray.type", types)
    return device.CudaDevice("cuda3", CONTEXT, True, "never", "tf32"), driver


def test_it_is_made_the_threads_and_replays_nothing_if_the_policy_is_never(made):
    cuda_device, driver = made
    cuda_device.begin()
    assert driver.current == 3
    assert (cuda_device.name, cuda_device.precision, cuda_device.is_gpu) == ("cuda3", "tf32", True)
    assert cuda_device.launcher(None, "f") is None


def test_pages_are_locked_once_and_for_as_long_as_the_array_lives(made):
    (cuda_device, driver), pages = made, made[0]._pages
    whole, there = np.arange(100_000.0), np.zeros(4)
    for part in (whole[10:20], whole, whole[:500]):
        pages.lock(part)
    assert driver.locked == {whole.ctypes.data: whole.nbytes}
    assert pages.copy(whole[5:9], there.ctypes.data)
    assert there.tolist() == [5, 6, 7, 8]
    assert not pages.copy(np.zeros(4), there.ctypes.data)
    cuda_device.settle()
    assert driver.did[-1][0] == "awaited"
    del whole, part
    gc.collect()
    assert driver.locked == {}


def test_unlocked_arrays_are_copied_the_other_way(made, monkeypatch):
    driver, pages = made[1], made[0]._pages
    monkeypatch.setattr("synk_core._graph.devices.pages.LARGEST_LOCK", 100_000)
    large, small = np.zeros(100_000), np.zeros(12_000)
    pages.lock(large[:100])
    driver.refuses = True
    pages.lock(small)
    assert not pages.copy(small, 1)
    assert (driver.locked, driver.did) == ({}, [])
    driver.refuses = False
    other = np.zeros(10_000)
    pages.lock(other)
    del other
    gc.collect()
    pages.lock(small)
    assert list(driver.locked.values()) == [small.nbytes]


def test_the_device_copies_locked_pages_and_the_host_other_arrays(made):
    cuda_device, driver = made
    rows = cuda_device.buffer((100, 100), "float64")
    rows[...] = np.arange(10000.0).reshape(100, 100)
    few, foreign = cuda_device.buffer((3,), "int64"), np.arange(3, dtype=">i8")
    few[...] = 5
    assert driver.did == ["lock"]
    for array, written in ((rows, 0), (rows[2:5], 0), (few, 1), (foreign, 1), (rows.T, 1)):
        brought = cuda_device.bring(array)
        assert (brought.written, brought.dtype.isnative) == (written, True)
        np.testing.assert_array_equal(brought.held, array)
    cuda_device.settle()
    assert driver.did[-1][0] == "awaited"
    count = len(driver.did)
    cuda_device.settle()
    assert len(driver.did) == count
    assert cuda_device.lock(rows)
    assert not cuda_device.lock(np.lib.stride_tricks.as_strided(few, (LARGEST_LOCK,), (0,)))


def test_uploads_go_to_buffers_that_are_kept(made):
    cuda_device, driver = made
    uploads, rows = cuda_device.uploads, cuda_device.buffer((100, 100), "float64")
    places = [(7, 0, 1), (7, 0, 2)]
    where = set()
    for turn in (0, 1, 0, 1):
        uploads.wait(places[turn : turn + 1])
        rows[...] = turn
        upload = uploads.start(places[turn], rows[: 90 + turn])
        assert (type(upload), upload.shape) == (Upload, (90 + turn, 100))
        brought = cuda_device.bring(upload)
        assert ("wait for", upload.buffer.copied) in driver.did
        np.testing.assert_array_equal(brought.held, rows[: 90 + turn])
        cuda_device.settle()
        buffer = upload.buffer
        assert driver.did[-2:] == [("record", buffer.used), ("awaited", buffer.copied)]
        where.add(brought.gpudata)
    assert len(where) == 2
    uploads.forget(7)
    assert not cuda_device._pages.uploads
    other = np.ones(5)  # its pages are not locked
    assert uploads.start(places[0], other) is other
    cuda_device._pages.lock(number := np.array(2.5))
    assert uploads.start(places[0], number).shape == ()


class Result(NamedTuple):
    values: Any


def test_small_results_are_sent_early_and_fetched_with_the_others(made):
    cuda_device, _ = made
    small, large = Array(np.array(2.5)), Array(np.arange(50_000.0))
    results = [None, Result([small, large, np.ones(2)]), [small]]
    cuda_device.begin()
    (sent,) = cuda_device.send([small])
    assert isinstance(sent, Download)
    assert cuda_device.send([small, large]) == [sent, large]
    results[1].values[0] = sent
    nothing, (values,), (again,) = cuda_device.fetch(results)
    assert nothing is None
    for got, wanted in zip([*values, again], [2.5, np.arange(50_000.0), np.ones(2), 2.5]):
        assert type(got) is np.ndarray
        np.testing.assert_array_equal(got, wanted)
    assert cuda_device.fetch([None]) == [None]
    (sent,) = cuda_device.send([small])
    cuda_device.begin()  # what an order that failed has sent is dropped
    assert not cuda_device._downloads.under_way


def test_nccl_takes_device_arrays_and_notices_deaths_in_waits(made, monkeypatch):
    cuda_device, _ = made
    waits = []
    nccl = SimpleNamespace(synchronize=lambda event=None: waits.append(event))
    monkeypatch.setattr(synk_comm, "nccl", lambda comm, device, stream: nccl, raising=False)
    here, elsewhere = Array(np.ones(3)), Array(np.ones(3), object())
    host, others = SimpleNamespace(size=1), SimpleNamespace(size=2)
    assert cuda_device.connect(host) is host
    assert not cuda_device.takes([here])
    assert cuda_device.connect(others) is nccl
    assert cuda_device.takes_collectives
    assert cuda_device.takes([here], reducible=True)
    assert not cuda_device.takes([here, elsewhere])
    assert not cuda_device.takes([np.ones(3)])
    counts = Array(np.ones(3, np.int16))
    assert cuda_device.takes([counts])
    assert not cuda_device.takes([counts], reducible=True)
    cuda_device.fetch([here])
    assert waits == [None]
    cuda_device.send([here])
    cuda_device.fetch([None])
    assert waits == [None, cuda_device._downloads.event]


def test_parts_are_copied_on_the_device(made):
    cuda_device, _ = made
    vector, part = Array(np.zeros(6)), Array(np.array([1.0, 2.0]))
    cuda_device._copy_part(vector, 1, part)
    cuda_device._copy_part(vector, 3, Array(np.arange(4.0)[::2]))
    assert vector.held.tolist() == [0, 1, 2, 0, 2, 0]
