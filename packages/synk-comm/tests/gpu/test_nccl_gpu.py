"""The same rules on real devices, in fresh processes, with the arrays of every library here."""

from __future__ import annotations

import importlib.util
import os
import signal
import time

import numpy as np
import pytest
from _cuda_array import CudaArray
from _every_call import compare

from synk_comm import CommTimeout, JoinError, MismatchError, PeerLost
from synk_comm._backends.nccl.communicator import nccl
from synk_comm._backends.nccl.link import MissingLibrary, load_binding
from synk_comm.cuda import CudaError, Driver
from synk_comm.testing import run_ranks


def devices():
    try:
        load_binding()
        return Driver().device_count(), "no CUDA device is visible"
    except (CudaError, MissingLibrary) as exc:
        return 0, str(exc)


COUNT, REASON = devices()
pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not COUNT, reason=REASON)]
KINDS = ["plain"] + [
    name for name in ("torch", "pygpu") if importlib.util.find_spec(name) is not None
]


class Library:
    """How a library of device arrays makes an array, and reads one."""

    def __init__(self, name, device):
        self.name, self.device = name, device
        if name == "torch":
            import torch

            torch.cuda.set_device(device)
            self.put = lambda values: torch.from_numpy(np.array(values)).to(f"cuda:{device}")
            self.get = lambda x: x.cpu().numpy()
        elif name == "pygpu":
            import pygpu

            context = pygpu.init(f"cuda{device}")
            self.put = lambda values: pygpu.array(np.asarray(values), context=context)
            self.get = np.asarray
        else:
            driver = Driver()
            self.put = lambda values: CudaArray.of(driver, np.asarray(values), device)
            self.get = lambda x: x.host()


def every_rule(host, name):
    """Every call, by what the host's way gives; and what libraries do before and after it."""
    size, rank = host.size, host.rank
    library = Library(name, rank)
    put, get = library.put, library.get
    with nccl(host, device=rank) as comm:
        dtypes = ["f4", "f8", "f2", "i4", "i8", "u1", "i1", "?"]
        compare(comm, put, get, dtypes if name == "pygpu" else [*dtypes, "c8"])
        large = np.random.default_rng(rank).standard_normal((2, 300_001)).astype("f4")
        for op, weight in (("sum", None), ("max", None), ("avg", 1.0 + rank)):
            got = get(comm.all_reduce(put(large), op, weight=weight))
            expected = comm.all_reduce(large, op, weight=weight)
            np.testing.assert_allclose(got, expected, rtol=1e-5, atol=1e-5)
            assert len(set(comm.all_gather_object(got.tobytes()))) == 1
        xs = [put(np.full(3 + n, rank, "f4")) for n in range(50)]
        for n, got in enumerate(comm.all_reduce(xs, "max")):
            np.testing.assert_array_equal(get(got), np.full(3 + n, size - 1, "f4"))
        if size > 1:
            x = put(np.ones(4 + rank % 2, "f4"))
            with pytest.raises(MismatchError, match="different shapes"):
                comm.all_reduce(x)
            with pytest.raises(MismatchError):
                comm.all_reduce(np.ones(4) if rank else x)
        np.testing.assert_array_equal(comm.all_reduce(np.ones(3)), np.full(3, float(size)))
        # Work that comes after on the library's own stream sees the results, without a wait.
        if name == "torch":
            import torch

            x = torch.ones(1 << 24, device=f"cuda:{rank}")
            for _ in range(20):
                x = comm.all_reduce(x, "avg") + 1
            np.testing.assert_allclose(get(x)[:: 1 << 20], 21.0)
            x = torch.ones(8, dtype=torch.bfloat16, device=f"cuda:{rank}")
            assert comm.all_reduce(x).float().tolist() == [float(size)] * 8
        if name == "pygpu":
            import pygpu
            from pygpu._array import ndgpuarray

            x = put(np.ones(1 << 22, "f4"))
            x = pygpu.array(x, context=x.context, cls=ndgpuarray)
            for _ in range(20):
                comm.all_reduce(x, "avg", out=x)
                x += np.float32(1)
            np.testing.assert_allclose(get(x)[:: 1 << 18], 21.0)
        comm.synchronize(30)


@pytest.mark.parametrize("size", [n for n in (1, 2, 4) if n <= COUNT] or [1])
@pytest.mark.parametrize("name", KINDS)
def test_every_rule(size, name):
    run_ranks(size, every_rule, name, timeout_s=120)


def of_other_libraries(host):
    """PyTorch on a stream of its own, which is named; CuPy, whose arrays name theirs."""
    found = []
    if importlib.util.find_spec("torch") is not None:
        import torch

        torch.cuda.set_device(host.rank)
        stream = torch.cuda.Stream()
        with torch.cuda.stream(stream), nccl(host.split(0), stream=stream.cuda_stream) as comm:
            x = torch.ones(1 << 24, device=f"cuda:{host.rank}")
            for _ in range(20):
                x = comm.all_reduce(x, "avg") + 1
            found.append(float(x[0].cpu()))
    if importlib.util.find_spec("cupy") is not None:
        import cupy

        with cupy.cuda.Device(host.rank), cupy.cuda.Stream(non_blocking=True):
            with nccl(host.split(0), device=host.rank) as comm:
                x = cupy.ones(1 << 24)
                for _ in range(20):
                    comm.all_reduce(x, "avg", out=x)
                    x += 1
                found.append(float(x[0]))
    return found


@pytest.mark.skipif(COUNT < 2, reason="needs two devices")
def test_streams_of_other_libraries():
    for found in run_ranks(2, of_other_libraries, timeout_s=120):
        assert set(found) <= {21.0}


def devices_by_turns(host):
    with nccl(host) as comm:
        return comm.device


@pytest.mark.skipif(COUNT < 2, reason="needs two devices")
def test_ranks_take_devices_by_turns():
    assert run_ranks(2, devices_by_turns, timeout_s=60) == [0, 1]


def one_device_for_two(host):
    with pytest.raises(JoinError, match="would both use"):
        nccl(host, device=0)
    return True


def test_two_ranks_on_one_device_are_refused():
    assert run_ranks(2, one_device_for_two, timeout_s=60) == [True, True]


def die_under_way(host):
    comm = nccl(host, device=host.rank)
    x = Library("plain", comm.device).put(np.ones(1 << 20, "f4"))
    comm.all_reduce(x, out=x)
    comm.synchronize()
    if comm.rank == 1:
        comm._link.run = lambda *_: os.kill(os.getpid(), signal.SIGKILL)
    comm.all_reduce(x, out=x)  # the GPU of rank 0 now waits for ever
    began = time.monotonic()
    with pytest.raises(PeerLost, match="rank 1"):
        comm.synchronize(60)
    took = time.monotonic() - began
    with pytest.raises(PeerLost):
        comm.all_reduce(x)
    comm.close()
    return took


@pytest.mark.skipif(COUNT < 2, reason="needs two devices")
def test_a_peer_killed_under_way_is_noticed_and_the_gpu_freed():
    first, second = run_ranks(2, die_under_way, timeout_s=60, check=False)
    assert second.exitcode == -signal.SIGKILL
    assert first.failure == ""
    assert first.value < 5
    assert first.exitcode == 0


def never_comes(host, warm):
    comm = nccl(host, device=host.rank)
    x = Library("plain", comm.device).put(np.ones(1 << 20, "f4"))
    if warm:  # the ranks' first call connects them, and waits for all inside NCCL
        comm.all_reduce(x)
        comm.synchronize()
    if comm.rank == 1:
        comm._link.run = lambda *_: None
        comm.all_reduce(x)
        time.sleep(3)
        return True
    if warm:
        pending = comm.all_reduce(x)  # kept: CUDA would wait for the kernel to free it
        with pytest.raises(CommTimeout, match="synchronize"):
            comm.synchronize(0.5)
        assert pending is not None
    else:
        with pytest.raises(CommTimeout, match="a call of NCCL"):
            comm.all_reduce(x, timeout_s=0.5)
    return True


@pytest.mark.skipif(COUNT < 2, reason="needs two devices")
@pytest.mark.parametrize("warm", [True, False])
def test_waits_for_a_rank_that_never_comes_are_bounded(warm):
    assert run_ranks(2, never_comes, warm, timeout_s=60) == [True, True]


def split_in_two(host):
    with nccl(host, device=host.rank) as comm, comm.split(comm.rank % 2, -comm.rank) as half:
        x = Library("plain", comm.device).put(np.full(3, comm.rank, "f4"))
        half.all_reduce(x, out=x)
        half.synchronize()
        return half.size, half.rank, x.host()[0]


def messages(host):
    with nccl(host, device=host.rank) as comm:
        library = Library("plain", comm.device)
        x = library.put(np.full(1 << 20, comm.rank, "f4"))
        if comm.rank == 0:
            comm.send(x, 1, tag=3)
            comm.recv(1, out=x)
        else:
            with pytest.raises(MismatchError, match="is for"):
                comm.recv(0, tag=3, out=library.put(np.zeros(2)))
            comm.send(x, 0)
        comm.synchronize()
        return float(x.host()[0])


@pytest.mark.skipif(COUNT < 2, reason="needs two devices")
def test_messages_between_two():
    assert run_ranks(2, messages, timeout_s=60) == [1.0, 1.0]


@pytest.mark.skipif(COUNT < 2, reason="needs two devices")
def test_split():
    assert run_ranks(2, split_in_two, timeout_s=60) == [(1, 0, 0.0), (1, 0, 1.0)]
