"""Which rank gets which device, and what is locked and copied: with stand-ins for CUDA's driver."""

from __future__ import annotations

import gc
import os
import subprocess
import sys

import numpy as np
import pytest

from synk_comm import cuda
from synk_core import InputTypeError, InputValueError, Runtime, StartError
from synk_core._graph.devices import assignment, host_memory
from synk_core._graph.devices.device import Gpu


@pytest.fixture
def gpus(monkeypatch):
    """Say how many GPUs there are, why none can be used, and which one this process holds."""

    monkeypatch.delenv(assignment.USE_GPU, raising=False)

    def tell(count, problem="", held=None):
        monkeypatch.setattr(assignment, "usable_gpus", lambda: (count, problem))
        monkeypatch.setattr(assignment, "device_in_use", lambda: held)

    tell(2)
    return tell


def test_all_gpus_are_taken_if_there_are_any(gpus):
    ranks = assignment.choose(None, None, 0, None)
    assert ranks.devices == ("cuda0", "cuda1")
    assert ranks.lines == ("Synkhronos attempting to use 2 of 2 detected GPUs...",)
    assert ranks.noun == "2 GPUs"
    assert ranks.distinct_gpus
    gpus(4)
    ranks = assignment.choose(1, True, 0, None)
    assert (ranks.devices, ranks.noun) == (("cuda0",), "1 GPU")
    assert "1 of 4 detected GPUs" in ranks.lines[0]


def test_cpu_processes_if_there_are_none_or_they_are_asked_for(gpus):
    cores = len(os.sched_getaffinity(0))
    assert assignment.choose(None, False, 0, None).size == cores
    gpus(0, "no GPU is visible")
    ranks = assignment.choose(3, None, 2, None)
    assert (ranks.devices, ranks.noun) == ((), "3 CPU processes")
    assert len(ranks.lines) == 1


def test_the_environment_says_what_is_meant_if_the_program_does_not(gpus, monkeypatch):
    monkeypatch.setenv(assignment.USE_GPU, "0")
    assert assignment.choose(2, None, 0, None).devices == ()
    assert assignment.choose(2, True, 0, None).devices == ("cuda0", "cuda1")
    assert assignment.choose(None, None, 0, ["cuda1"]).devices == ("cuda1",)
    monkeypatch.setenv(assignment.USE_GPU, "1")
    gpus(0, "no GPU is visible")
    with pytest.raises(StartError, match="no GPU is visible"):
        assignment.choose(2, None, 0, None)
    monkeypatch.setenv(assignment.USE_GPU, "maybe")
    with pytest.raises(InputValueError, match="got 'maybe', expected 0 or 1"):
        assignment.choose(2, None, 0, None)


def test_gpus_that_cannot_be_used_are_mentioned_or_refused(gpus):
    gpus(2, "Theano's GPU back end needs pygpu, which cannot be imported (gone)")
    ranks = assignment.choose(2, None, 0, None)
    assert ranks.devices == ()
    assert "pygpu" in ranks.lines[0]
    assert "doctor" in ranks.lines[0]
    with pytest.raises(StartError, match=r"use_gpu=True: .*pygpu.*synkhronos doctor"):
        assignment.choose(2, True, 0, None)


def test_the_device_in_use_stays_the_masters(gpus):
    gpus(4, held="cuda2")
    ranks = assignment.choose(3, None, 1, None)
    assert ranks.devices == ("cuda0", "cuda2", "cuda1")
    assert "uses cuda2 already" in ranks.lines[1]
    assert assignment.choose(2, None, 0, None).devices == ("cuda2", "cuda1")
    gpus(4, held="cuda1")
    assert assignment.choose(2, None, 1, None).lines[1:] == ()


def test_cpu_processes_are_refused_where_variables_lie_on_a_device(gpus):
    gpus(2, held="cuda0")
    with pytest.raises(StartError, match=r"uses cuda0 already.*devices=\['cuda0'"):
        assignment.choose(2, False, 0, None)


def test_bad_arguments(gpus):
    for arguments, error, text in (
        ((3, None, 0, None), InputValueError, "n_parallel: got 3, expected an int from 1 to 2"),
        ((0, None, 0, None), InputValueError, "n_parallel"),
        ((10**30, False, 0, None), InputValueError, "n_parallel: .* from 1 to 1024"),
        ((2, None, 2, None), InputValueError, "master_rank: got 2"),
        ((None, None, 0, "cuda0"), InputTypeError, "expected a list of names"),
        ((None, None, 0, []), InputTypeError, "expected a list of names"),
        ((None, None, 0, [0, 1]), InputTypeError, "expected a list of names"),
        ((None, None, 0, 5), InputTypeError, "expected a list of names"),
        ((None, None, 0, [("cuda0", "cuda1"), 5]), InputTypeError, "of groups of names"),
        ((None, None, 0, [("cuda0",), ()]), InputTypeError, "of groups of names"),
        ((None, None, 0, [("cuda0", 1)]), InputTypeError, "of groups of names"),
        ((None, None, 0, [("cuda0", "cpu")]), InputValueError, "expected a name such as 'cuda0'"),
        ((None, None, 0, ["cuda"]), InputValueError, "expected a name such as 'cuda0'"),
        ((None, None, 0, ["opencl"]), InputValueError, "expected a name such as 'cuda0'"),
        ((None, None, 0, ["cpu"]), InputValueError, "use_gpu=False"),
        ((3, None, 0, ["cuda0"]), InputValueError, "give devices alone"),
        ((None, False, 0, ["cuda0"]), InputValueError, "give devices alone"),
        ((None, None, 1, ["cuda0"]), InputValueError, "master_rank: got 1"),
    ):
        with pytest.raises(error, match=text):
            assignment.choose(*arguments)


def test_several_devices_for_each_rank(gpus, monkeypatch):
    ranks = assignment.choose(None, None, 1, [("cuda0", "cuda1"), ["cuda2", "cuda3"], "cuda4"])
    assert (ranks.size, ranks.devices) == (3, ("cuda0", "cuda2", "cuda4"))
    assert ranks.distinct_gpus
    assert ranks.noun == "5 GPUs"
    assert ranks.lines == (
        "Synkhronos attempting to use cuda0 with cuda1, cuda2 with cuda3, cuda4...",
    )
    assert ranks.contexts(1) == {None: "cuda2", "dev0": "cuda2", "dev1": "cuda3"}
    assert ranks.contexts(2) == {None: "cuda4", "dev0": "cuda4"}

    monkeypatch.setattr(assignment.DEVICES, "named_in_options", lambda: ["dev0", "other"])
    assert ranks.contexts(2) == {None: "cuda4", "dev0": "cuda4", "other": "cuda4"}
    ranks = assignment.choose(None, None, 0, ["cuda1", "cuda0"])
    assert ranks.contexts(0) == {None: "cuda1", "dev0": "cuda1", "other": "cuda1"}
    assert assignment.choose(2, False, 0, None).contexts(1) == {}


def test_named_devices(gpus):
    ranks = assignment.choose(None, None, 1, ["cuda1", "cuda0"])
    assert ranks.devices == ("cuda1", "cuda0")
    assert ranks.distinct_gpus
    assert not assignment.choose(None, None, 0, ["cuda0", "cuda0"]).distinct_gpus
    other = assignment.choose(None, None, 0, ["opencl0:0"] * 2)
    assert other.noun == "2 devices"
    assert not other.distinct_gpus


def test_nccl_is_taken_where_it_can_be(gpus, monkeypatch):
    pair = assignment.choose(None, None, 0, None)
    shared = assignment.choose(None, None, 0, ["cuda0", "cuda0"])
    alone = assignment.choose(1, None, 0, None)
    monkeypatch.setattr("synk_comm.why_no_nccl", lambda: "", raising=False)
    assert assignment.choose_nccl(pair, None) == (True, ())
    assert assignment.choose_nccl(pair, False) == (False, ())
    assert assignment.choose_nccl(alone, None) == (False, ())
    assert assignment.choose_nccl(alone, True) == (False, ())
    taken, (line,) = assignment.choose_nccl(shared, None)
    assert not taken
    assert "NCCL needs a GPU for each rank" in line
    with pytest.raises(StartError, match="nccl=True: NCCL needs a GPU for each rank"):
        assignment.choose_nccl(shared, True)
    monkeypatch.setattr("synk_comm.why_no_nccl", lambda: "nccl4py is missing", raising=False)
    assert "nccl4py is missing" in assignment.choose_nccl(pair, None)[1][0]
    with pytest.raises(StartError, match="no GPUs"):
        assignment.choose_nccl(assignment.choose(2, False, 0, None), True)


def test_without_gpus_they_cannot_be_demanded():
    if not assignment.usable_gpus()[1]:
        pytest.skip("there are GPUs that can be used")
    with pytest.raises(StartError, match="use_gpu=True"):
        Runtime(2, use_gpu=True)
    with pytest.raises(StartError, match="device cuda7"):
        Runtime(devices=["cuda7"])


def test_a_device_that_the_master_cannot_take_ends_its_start(monkeypatch):
    """With that error, and none of what a half-made runtime lacks."""

    def refuse(*_):
        raise StartError("planted")

    monkeypatch.setattr("synk_core._master.controller.take", refuse)
    with pytest.raises(StartError, match="planted"):
        Runtime(1, use_gpu=False)


STREAM = 11


class FakeDriver:
    """Enough of CUDA's driver for one device; copies happen when they are told to."""

    def __init__(self):
        self.locked, self.copies, self.done, self.refuse = {}, [], True, False

    def entered(self, device):
        assert device == 3
        import contextlib

        return contextlib.nullcontext()

    def lock_pages(self, address, nbytes):
        if self.refuse:
            raise cuda.CudaError("already locked")
        assert address not in self.locked
        self.locked[address] = nbytes

    def unlock_pages(self, address):
        del self.locked[address]

    def event(self):
        return 17

    def record(self, event, stream):
        assert (event, stream) == (17, STREAM)
        self.done = False

    def has_happened(self, event):
        was, self.done = self.done, True
        return was

    def upload_on(self, stream, pointer, address, nbytes):
        assert stream == STREAM
        self.copies.append((pointer, address, nbytes))


def test_pages_are_locked_once_and_for_as_long_as_the_array_lives():
    driver = FakeDriver()
    pages = host_memory.LockedPages(driver, 3, STREAM)
    whole = np.zeros(100_000)
    address = whole.__array_interface__["data"][0]
    pages.lock(whole[10:20])
    pages.lock(whole)
    pages.lock(whole[:500])
    assert driver.locked == {address: whole.nbytes}
    assert pages.copy(whole[5:9], 1234)
    assert driver.copies == [(1234, address + 40, 32)]
    assert not pages.copy(np.zeros(10), 1234)
    pages.settle()
    assert driver.done
    del whole
    gc.collect()
    assert driver.locked == {}


def test_results_that_are_on_no_device_start_no_copies():
    driver = FakeDriver()
    downloads = host_memory.Downloads(driver, 3, STREAM, np.zeros(1000, np.uint8))
    values = [np.ones(3), None, 2.5]
    assert downloads.start(values) == values
    assert driver.done
    assert not downloads.under_way


def test_what_cannot_be_locked_is_copied_the_other_way():
    driver = FakeDriver()
    driver.refuse = True
    pages = host_memory.LockedPages(driver, 3, STREAM)
    array = np.zeros(100_000)
    pages.lock(array)
    assert not pages.copy(array, 1)
    assert driver.copies == []


def test_arrays_in_too_large_a_memory_are_not_locked_and_a_refusal_is_not_for_ever(monkeypatch):
    driver = FakeDriver()
    pages = host_memory.LockedPages(driver, 3, STREAM)
    monkeypatch.setattr(host_memory, "LARGEST_LOCK", 100_000)
    large = np.zeros(100_000)
    pages.lock(large[:100])
    assert driver.locked == {}
    small = [np.zeros(10_000), np.zeros(12_000)]
    pages.lock(small[0])
    driver.refuse = True
    pages.lock(small[1])
    driver.refuse = False
    pages.lock(small[1])
    assert len(driver.locked) == 1
    del small[0]
    gc.collect()
    pages.lock(small[0])
    assert list(driver.locked.values()) == [12_000 * 8]


def test_numbers_are_sent_early_only_if_they_are_results(monkeypatch):
    """Those of a slice are added up in place, after they would have been sent."""
    device, sent = Gpu("opencl0:0", None, nccl=False), []
    monkeypatch.setattr(device, "send", sent.append)
    device._send_early([1.0])
    assert not sent
    device.sends_early = True
    device._send_early([1.0])
    assert sent == [[1.0]]


def test_outputs_that_are_no_arrays_are_the_masters_own():
    from synk_core._rank.outputs import collect_on_device

    assert collect_on_device(None, 0, [None], [[1, 2]], 1.0) == ([[1, 2]], ())


def test_workers_take_no_device_that_the_users_flags_name(monkeypatch):
    from synk_core._graph.environment import worker_environment

    monkeypatch.setenv("THEANO_FLAGS", "device=cuda0,floatX=float32")
    monkeypatch.setenv("THEANO_GPU_IS_ALREADY_ACTIVE", "Yes")
    environment = worker_environment(2, on_device=True)
    assert "THEANO_GPU_IS_ALREADY_ACTIVE" not in environment
    code = "import theano; c = theano.config; print(c.device, c.floatX, repr(c.contexts))"
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True
    )
    assert done.stdout.split() == ["cpu", "float32", "''"]


def test_workers_do_not_tell_once_more_of_a_gpu_that_is_not_there():
    code = (
        "import sys; sys.modules['pygpu'] = None\n"
        "from synk_core._graph.environment import worker_environment\n"
        "print(worker_environment(2)['THEANO_FLAGS'])"
    )
    for device, told in (("cuda", True), ("cpu", False)):
        environment = {**os.environ, "THEANO_FLAGS": f"device={device},floatX=float32"}
        done = subprocess.run(
            [sys.executable, "-c", code],
            env=environment,
            capture_output=True,
            text=True,
            check=True,
        )
        assert ("device=cpu,force_device=True" in done.stdout) == told
        assert done.stdout.startswith(f"device={device},floatX=float32")


class Stand:
    """A device array that lies in host memory, so many bytes behind the beginning of its buffer."""

    def __init__(self, value, offset=0):
        self.values = np.ascontiguousarray(value)
        self.dtype, self.shape = self.values.dtype, self.values.shape
        self.size, self.itemsize = self.values.size, self.values.itemsize
        self.flags, self.offset = {"C_CONTIGUOUS": True}, offset
        self.gpudata = self.values.__array_interface__["data"][0]


def test_small_results_are_downloaded_at_once_and_large_ones_fetched(monkeypatch):
    import ctypes

    driver = FakeDriver()
    ordered = []
    driver.download_on = lambda *order: ordered.append(order)
    monkeypatch.setattr(host_memory, "is_on_default_device", lambda value: isinstance(value, Stand))
    downloads = host_memory.Downloads(driver, 3, STREAM, np.zeros(64, np.uint8))
    small = [Stand(np.float32(1.5)), Stand(np.arange(3.0), offset=8), Stand(np.zeros((0, 2)))]
    host, large = np.arange(4), Stand(np.arange(100))
    started = downloads.start([small[0], host, large, small[1], small[2]])
    assert started[1] is host
    assert started[2] is large
    assert started[4] is small[2]
    assert downloads.under_way
    again = downloads.start([small[1], host])
    assert again[0] is started[3]  # once is enough
    assert again[1] is host
    for stream, address, pointer, nbytes in ordered:
        assert stream == STREAM
        ctypes.memmove(address, pointer, nbytes)
    assert not driver.done
    downloads.wait()
    assert driver.done
    assert not downloads.under_way
    np.testing.assert_array_equal(started[0].room, np.float32(1.5))
    np.testing.assert_array_equal(started[3].room, np.arange(3.0))
    assert started[0].room.dtype == np.float32
    assert len(ordered) == 2
    held = downloads.start([small[0]])[0]
    assert held is not started[0]
    assert len(ordered) == 3
    downloads.drop()  # an order that failed, or a rank whose results nobody asks for
    assert not downloads.under_way
    new = downloads.start([small[0]])[0]
    assert new is not held
    assert new.room.ctypes.data == held.room.ctypes.data
