"""Device arrays through NCCL: everything up to NCCL itself, against NumPy."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time

import numpy as np
import pytest
from _cuda_array import CudaArray
from _every_call import MOVED, REDUCED, compare
from _fake_nccl import FakeNccl, open_group
from contract.tools import data

from synk_comm import (
    AbortedError,
    ClosedError,
    CommError,
    CommTimeout,
    JoinError,
    MismatchError,
    PeerDeclined,
    PeerLost,
)
from synk_comm._backends.nccl.communicator import MissingLibrary, NcclError, nccl
from synk_comm._backends.nccl.link import Link, load_binding
from synk_comm._system.liveness import Identity, identity
from synk_comm.cuda import CudaError, Driver
from synk_comm.testing import in_threads, thread_group


class Ranks:
    def __init__(self, size, **options):
        self.size = size
        self.fake, self.comms = open_group(size, **options)

    def put(self, comm, values, **options):
        return CudaArray.of(self.fake.gpus, values, comm.device, **options)

    def run(self, function):
        return in_threads(self.comms, function)

    def close(self):
        self.run(lambda comm: comm.synchronize())
        self.run(lambda comm: comm.close())
        assert self.fake.mistakes == []
        assert self.fake.gpus.pending() == 0


@pytest.fixture(params=[1, 3])
def ranks(request):
    group = Ranks(request.param)
    yield group
    group.close()


@pytest.fixture
def pair():
    group = Ranks(2)
    yield group
    group.close()


def read(comm, array):
    comm.synchronize()
    return array.host()


def test_every_call_gives_the_results_of_host_arrays(ranks):
    dtypes = ["i1", "u1", "i4", "u4", "i8", "u8", "f2", "f4", "f8", "c8", "c16", *MOVED]

    def run(comm):
        put = lambda values: ranks.put(comm, values)  # noqa: E731
        compare(comm, put, lambda array: read(comm, array), dtypes)

    ranks.run(run)


def test_bfloat16(ranks):
    bits = np.array([0x3F80, 0x4040, 0xC000], "u2")  # 1, 3, -2

    def run(comm):
        x = ranks.put(comm, bits, dtype="bfloat16")
        mine = x if comm.rank == ranks.size - 1 else None
        out = x.new_empty((3,))
        results = [comm.all_reduce(x), comm.all_reduce(x, "avg"), comm.broadcast(x)]
        results += [comm.all_reduce(mine, op, out=x.new_empty((3,))) for op in REDUCED["i"]]
        results.append(comm.all_reduce(mine, "avg", weight=3.0, out=out))
        return [read(comm, one) for one in results]

    sums = (bits.astype("u4") << 16).view("f4") * ranks.size
    for results in ranks.run(run):
        np.testing.assert_array_equal((results[0].astype("u4") << 16).view("f4"), sums)
        for same in results[1:]:
            np.testing.assert_array_equal(same, bits)


BOUNDS = [(7, 10), (3, 7), (0, 3)]


@pytest.mark.parametrize(("op", "dtype"), [("sum", "c8"), ("avg", "f8"), ("max", "i4")])
def test_an_array_is_reduced_part_by_part(ranks, op, dtype):
    parts = [data(rank, (10,), dtype) for rank in range(ranks.size)]

    def run(comm):
        out = ranks.put(comm, parts[comm.rank])
        kept = ranks.put(comm, parts[comm.rank])
        whole = comm.all_reduce(kept, op, weight=comm.rank + 1 if op == "avg" else None)
        weight = comm.rank + 1 if op == "avg" else None
        reduction = comm.partitioned_all_reduce(out, op, bounds=BOUNDS, weight=weight)
        for _ in range(comm.rank):
            reduction.ready()
        reduction.wait()
        reduction.wait()
        return read(comm, out), whole.host()

    for got, expected in ranks.run(run):
        np.testing.assert_array_equal(got, expected)


def test_parts_are_read_from_elsewhere(ranks):
    parts = [data(rank, (10,), "f8") for rank in range(ranks.size)]

    def run(comm):
        out = ranks.put(comm, np.full(10, np.nan))
        reduction = comm.partitioned_all_reduce(out, bounds=BOUNDS)
        for begin, end in BOUNDS:
            # Nobody else holds it, but it is read later.
            reduction.ready(ranks.put(comm, parts[comm.rank][begin:end]))
        with pytest.raises(IndexError):
            reduction.ready()
        reduction.wait()
        return read(comm, out)

    for got in ranks.run(run):
        np.testing.assert_array_equal(got, sum(parts))


def test_a_part_that_is_computed_after_a_call_is_not_read_before(pair):
    def run(comm):
        gpus, out_bytes = pair.fake.gpus, 80
        out = pair.put(comm, np.zeros(10))
        held = [False]
        reduction = comm.partitioned_all_reduce(out, bounds=BOUNDS)
        gpus.enqueue(comm.device, 0, lambda: held[0])
        source = pair.put(comm, np.arange(10.0) + comm.rank)
        to, from_ = (a.__cuda_array_interface__["data"][0] for a in (out, source))
        with gpus.entered(comm.device):
            gpus.copy_on(0, to, from_, out_bytes)
        for _ in BOUNDS:
            reduction.ready()
        assert not gpus.view(to, out_bytes, comm.device).any()
        with gpus.changed:
            held[0] = True
            gpus.progress()
        reduction.wait()
        return read(comm, out)

    for got in pair.run(run):
        np.testing.assert_array_equal(got, 2 * np.arange(10.0) + 1)


def test_parts_that_differ_are_a_mismatch_and_a_decline_leaves_them(pair):
    def run(comm):
        out = pair.put(comm, np.zeros(10))
        bounds = BOUNDS if comm.rank else [(0, 10)]
        with pytest.raises(MismatchError, match="different numbers of arrays"):
            comm.partitioned_all_reduce(out, bounds=bounds)
        with pytest.raises(MismatchError, match="different shapes"):
            comm.partitioned_all_reduce(out, bounds=[(0, 4 + comm.rank), (4 + comm.rank, 10)])
        if comm.rank:
            comm.decline("no parts")
        else:
            with pytest.raises(PeerDeclined, match="no parts"):
                comm.partitioned_all_reduce(out, bounds=BOUNDS)
        for bounds in ([], [(0, 4)], [(0, 4), (4, 4), (4, 10)], [(0, 6), (5, 10)], [(0, 11)]):
            with pytest.raises(ValueError, match="bounds must be begin and end"):
                comm.partitioned_all_reduce(out, bounds=bounds)
        with pytest.raises(ValueError, match="weight must be positive"):
            comm.partitioned_all_reduce(out, "avg", weight=0, bounds=BOUNDS)
        reduction = comm.partitioned_all_reduce(out, bounds=BOUNDS)
        with pytest.raises(ValueError, match="out must be like x"):
            reduction.ready(pair.put(comm, np.zeros(9)))
        reduction.wait()

    pair.run(run)
    assert not [call for _, call in pair.fake.calls if call.elements == 10]


def test_a_rank_that_fails_amid_its_parts_ends_the_group_for_all():
    def run(comm, fake, _):
        out = CudaArray.of(fake.gpus, np.zeros(10), comm.device)
        reduction = comm.partitioned_all_reduce(out, bounds=BOUNDS)
        reduction.ready()
        if comm.rank:
            fake.fail(1, 3)
            with pytest.raises(NcclError):
                reduction.ready()
            with pytest.raises(AbortedError):
                reduction.wait()
        else:
            reduction.wait()
            with pytest.raises(CommError):
                comm.synchronize(10)
        comm.close()

    broken_group(run)


def test_a_block_is_reduced_to_where_it_lies(pair):
    def run(comm):
        x = pair.put(comm, np.arange(12.0).reshape(4, 3))
        where = {"memory": x._memory, "offset": comm.rank * 48}
        comm.reduce_scatter(x, out=CudaArray(pair.fake.gpus, (2, 3), "<f8", comm.device, **where))
        return read(comm, x)[2 * comm.rank, 0]

    assert pair.run(run) == [0.0, 12.0]


def test_messages_between_two(pair):
    def run(comm):
        x = pair.put(comm, np.full(5, comm.rank, "f4"))
        if comm.rank == 0:
            comm.send(x, 1, tag=3)
            comm.recv(1, out=x)
            comm.send(pair.put(comm, np.zeros((0, 2))), 1)
            comm.send(np.arange(3), 1)
            comm.isend(np.arange(4), 1).wait()
            assert comm.iall_reduce(np.arange(4)).wait().tolist() == [0, 2, 4, 6]
        else:
            with pytest.raises(MismatchError, match="message is lost"):
                comm.recv(0, tag=3, out=pair.put(comm, np.zeros(2)))
            comm.send(x, 0)
            empty = pair.put(comm, np.zeros((0, 2)))
            assert comm.recv(0, out=empty) is empty
            assert comm.recv(0).tolist() == [0, 1, 2]
            assert comm.irecv(0).wait().tolist() == [0, 1, 2, 3]
            assert comm.iall_reduce(np.arange(4)).wait().tolist() == [0, 2, 4, 6]
            with pytest.raises(CommTimeout):
                comm.recv(0, out=x, timeout_s=0.1)
        return read(comm, comm.all_reduce(x)).tolist()

    assert pair.run(run) == [[2.0] * 5] * 2


def test_splits_have_links_of_their_own(pair):
    def run(comm):
        alone = comm.split(None if comm.rank else 1, 0)
        assert (alone is None) == bool(comm.rank)
        if alone is not None:
            alone.close()
        with comm.split(0, -comm.rank) as turned:
            x = pair.put(comm, np.full(2, comm.rank))
            rows = [read(turned, row).tolist() for row in turned.all_gather(x)]
            turned.barrier()
            return turned.rank, turned.device, rows

    rows = [[1, 1], [0, 0]]
    assert pair.run(run) == [(1, 0, rows), (0, 1, rows)]


def test_a_split_whose_link_fails_blames_a_rank_by_its_old_number(monkeypatch):
    group = Ranks(3)
    start = Link._start

    def failing(self, deadline):
        if self._host.size == 2 and self._host.rank == 1:
            raise RuntimeError("out of luck")
        start(self, deadline)

    def run(comm):
        if comm.rank == 1:
            comm.split(1).close()
        else:
            error = RuntimeError if comm.rank == 2 else AbortedError
            with pytest.raises(error, match="out of luck") as caught:
                comm.split(0)
            if comm.rank == 0:
                assert caught.value.rank == 2
                assert "by rank 2" in str(caught.value)
        return float(comm.all_reduce(1.0))

    monkeypatch.setattr(Link, "_start", failing)
    assert group.run(run) == [3.0] * 3
    group.close()


def test_mismatches_are_raised_everywhere_and_nothing_reaches_nccl(pair):
    def run(comm):
        odd = comm.rank == 1
        put = lambda values: pair.put(comm, values)  # noqa: E731
        x, host = put(np.ones(4, "f4")), np.ones(4, "f4")
        block = put(np.zeros((2, 4), "f4"))
        small, row = put(np.zeros((2, 3), "f4")), put(np.zeros(4, "f4"))
        calls = [
            lambda: comm.all_reduce(put(np.ones(5, "f4")) if odd else x),
            lambda: comm.all_reduce(x, "max" if odd else "sum"),
            lambda: comm.all_reduce([x, x] if odd else x),
            lambda: comm.all_reduce(host if odd else x),
            lambda: comm.all_reduce(None) if odd else comm.all_reduce(x),
            lambda: comm.reduce(x, root=int(odd)),
            lambda: comm.broadcast(put(np.zeros(3, "f4")) if odd else x),
            lambda: comm.reduce_scatter([x, x] if odd else block),
            lambda: comm.all_gather(put(np.zeros((1, 4), "f4")) if odd else x),
            lambda: comm.all_gather(x, out=small if odd else block),
            lambda: comm.all_gather(x, out=[row, None] if odd else block),
            lambda: comm.gather(x, 0) if odd else comm.gather(x, 0, out=small),
            lambda: comm.scatter(None if odd else [x, x], 0, out=small if odd else None),
            lambda: comm.all_to_all([x, x], out=small if odd else None),
            lambda: comm.all_to_all(block if odd else put(np.zeros((2, 4)))),
        ]
        for number, call in enumerate(calls):
            with pytest.raises(MismatchError) as caught:
                call()
            assert list(caught.value.calls) == [0, 1], number
            assert caught.value.calls[0] != caught.value.calls[1], number
            assert "rank 1:" in str(caught.value)
        assert read(comm, x).tolist() == [1.0] * 4

    pair.run(run)
    assert pair.fake.calls == []
    sums = pair.run(lambda comm: read(comm, comm.all_reduce(pair.put(comm, np.ones(2)))).tolist())
    assert sums == [[2.0, 2.0]] * 2


def test_bad_arguments_are_refused_here_and_peers_hear_nothing(pair):
    gpus = pair.fake.gpus

    def run(comm):
        put = lambda values, **options: pair.put(comm, values, **options)  # noqa: E731
        x, one = put(np.ones((2, 3))), put(np.ones(6, "f4"))
        strided = CudaArray(gpus, (3, 2), "<f8", comm.device, memory=x._memory, strides=(8, 24))
        elsewhere = CudaArray.of(gpus, np.ones((2, 3)), 1 - comm.device)
        fixed = put(np.ones((2, 3)), readonly=True)
        shifted = CudaArray(gpus, (3,), "<f8", comm.device, memory=x._memory, offset=8)
        begin = CudaArray(gpus, (3,), "<f8", comm.device, memory=x._memory)
        row = CudaArray(gpus, (1, 3), "<f8", comm.device, memory=x._memory, offset=8)
        other = CudaArray.of(gpus, np.ones((2, 3)), comm.device, stream=77)
        third = CudaArray.of(gpus, np.ones((2, 3)), comm.device, stream=78)
        plain = type("Plain", (), {"__cuda_array_interface__": x.__cuda_array_interface__})()
        bad = [
            (ValueError, "ascontiguousarray", lambda: comm.all_reduce(strided)),
            (ValueError, f"on device {1 - comm.device}", lambda: comm.all_reduce(elsewhere)),
            (ValueError, "writeable", lambda: comm.all_reduce(x, out=fixed)),
            (ValueError, "writeable", lambda: comm.broadcast(fixed, 1 - comm.rank)),
            (ValueError, "out must be like x", lambda: comm.all_reduce(x, out=one)),
            (ValueError, "out must be a list", lambda: comm.all_reduce([x, x], out=[x])),
            (ValueError, "overlaps", lambda: comm.all_reduce(begin, out=shifted)),
            (ValueError, "different CUDA streams", lambda: comm.all_reduce(other, out=third)),
            (TypeError, "device array", lambda: comm.all_reduce(x, out=np.zeros((2, 3)))),
            (TypeError, "device array", lambda: comm.all_reduce([x, np.ones(2)])),
            (TypeError, "int8, uint8", lambda: comm.all_reduce(put(np.ones(2, "i2")))),
            (TypeError, "complex", lambda: comm.all_reduce(put(np.ones(2, "c8")), "max")),
            (TypeError, "average", lambda: comm.all_reduce(put(np.ones(2, "i4")), "avg")),
            (TypeError, "numeric", lambda: comm.all_reduce(put(np.array(["a"])))),
            (TypeError, "out=", lambda: comm.all_reduce(plain)),
            (ValueError, "first axis", lambda: comm.reduce_scatter(put(np.ones(3)))),
            (ValueError, "weight must be", lambda: comm.reduce_scatter(x, "avg", weight=0)),
            (ValueError, "overlaps", lambda: comm.reduce_scatter(x, out=row)),
            (ValueError, "list of 2", lambda: comm.all_to_all([x])),
            (ValueError, "first axis of length 2", lambda: comm.all_to_all(one)),
            (ValueError, "in place", lambda: comm.all_to_all(x, out=x)),
            (ValueError, "overlaps", lambda: comm.all_reduce([x, x], out=[x, x])),
            (ValueError, "only the root", lambda: comm.scatter([x, x], 1 - comm.rank)),
            (ValueError, "either a list", lambda: comm.all_gather([x], out=[x, x])),
            (ValueError, "own rank", lambda: comm.send(x, comm.rank)),
            (TypeError, "use send", lambda: comm.isend(x, 1 - comm.rank)),
            (TypeError, "use recv", lambda: comm.irecv(1 - comm.rank, out=x)),
            (TypeError, "use all_reduce", lambda: comm.iall_reduce(x)),
        ]
        for kind, text, call in bad:
            with pytest.raises(kind, match=text):
                call()
        comm.barrier()

    pair.run(run)
    assert pair.fake.calls == []


def test_streams():
    fake, comms = open_group(2)
    arrays = [CudaArray.of(fake.gpus, np.ones(2), rank, stream=1000 + rank) for rank in range(2)]
    in_threads(comms, lambda comm: comm.all_reduce(arrays[comm.rank], out=arrays[comm.rank]))
    in_threads(comms, lambda comm: (comm.synchronize(), comm.close()))
    assert sorted(fake.gpus._streams) == [(0, 1000), (1, 1001)]
    fake, comms = open_group(2, stream=5)
    arrays = [CudaArray.of(fake.gpus, np.ones(2), rank, stream=7) for rank in range(2)]
    in_threads(comms, lambda comm: comm.all_reduce(arrays[comm.rank]))
    in_threads(comms, lambda comm: (comm.synchronize(), comm.close()))
    assert sorted(fake.gpus._streams) == [(0, 5), (1, 5)]


def broken_group(function, size=2):
    """Run, with an array of ones, on a group that is not in order afterwards."""
    fake, comms = open_group(size)
    ones = [CudaArray.of(fake.gpus, np.ones(2), comm.device) for comm in comms]
    try:
        in_threads(comms, lambda comm: function(comm, fake, ones[comm.rank]))
    finally:
        for comm in comms:
            comm.close()
    return fake


def test_a_call_returns_before_it_has_happened_and_synchronize_is_bounded():
    def run(comm, fake, x):
        if comm.rank:
            comm._link.run = lambda calls, stream, deadline: None  # it is stuck somewhere
        comm.all_reduce(x, out=x)
        if comm.rank == 0:
            assert fake.gpus.pending() == 1
            with pytest.raises(CommTimeout, match="synchronize"):
                comm.synchronize(0.2)
        comm_ended(comm, x)

    fake = broken_group(run)
    assert 0 in fake.aborted
    assert fake.gpus.pending() == 0


def comm_ended(comm, x):
    deadline = time.monotonic() + 10
    while comm.ended() is None and time.monotonic() < deadline:
        time.sleep(0.01)
    for _ in range(2):
        with pytest.raises(AbortedError):
            comm.all_reduce(x)
    assert "aborted" in repr(comm)


def test_a_peer_that_fails_half_way_frees_ranks_that_wait_for_the_gpu():
    def run(comm, fake, x):
        if comm.rank:

            def fail(calls, stream, deadline):
                raise KeyboardInterrupt

            comm._link.run = fail
            with pytest.raises(KeyboardInterrupt):
                comm.all_reduce(x)
        else:
            comm.all_reduce(x)
            with pytest.raises(AbortedError, match="KeyboardInterrupt"):
                comm.synchronize(10)
        comm_ended(comm, x)

    assert sorted(broken_group(run).aborted) == [0, 1]


def test_a_call_that_never_returns_from_nccl_is_stopped_in_time():
    def run(comm, fake, x):
        comm.barrier()
        if comm.rank == 0:
            fake.stuck.add(0)
            began = time.monotonic()
            with pytest.raises(CommTimeout, match="a call of NCCL"):
                comm.all_reduce(x, timeout_s=0.3)
            assert time.monotonic() - began < 5
        else:
            comm.all_reduce(x)
            with pytest.raises(AbortedError, match="CommTimeout"):
                comm.synchronize(10)
        comm_ended(comm, x)

    assert sorted(broken_group(run).aborted) == [0, 1]


@pytest.mark.parametrize("asked", [True, False])
def test_a_dead_process_is_noticed_while_the_gpu_waits_for_it(asked):
    """A library may wait for the GPU by itself, and ask this communicator nothing."""
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)

    def run(comm, fake, x):
        if comm.rank:
            comm._link.run = lambda calls, stream, deadline: None
            comm.all_reduce(x)
            time.sleep(0.2)
            child.kill()
            return
        comm._link._pidfds.add(1, Identity(child.pid, 0, identity().namespace))
        comm.all_reduce(x)
        deadline = time.monotonic() + 10
        while not asked and fake.gpus.pending() and time.monotonic() < deadline:
            time.sleep(0.01)
        assert asked or not fake.gpus.pending()
        with pytest.raises(PeerLost, match="rank 1") as caught:
            comm.synchronize(10)
        assert caught.value.rank == 1
        assert "lost rank 1" in repr(comm)
        with pytest.raises(PeerLost):
            comm.all_reduce(x)

    try:
        assert 0 in broken_group(run).aborted
    finally:
        child.kill()
        child.wait()
        child.stdin.close()


def pointer_of(array):
    return array.__cuda_array_interface__["data"][0]


def wait_for_work(fake, patience_s=10.0):
    """Wait for the GPU as another library does."""
    deadline = time.monotonic() + patience_s
    while fake.gpus.pending():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_another_library_enqueues_reductions_in_its_own_thread(ranks):
    ops = ["sum", "prod", "max"]
    kinds = [("<f8", (3, 2)), ("<f8", (0,)), ("<f8", ())]
    values = [[data(rank, shape, "f8") for _, shape in kinds] for rank in range(ranks.size)]

    def run(comm):
        given = [ranks.put(comm, value) for value in values[comm.rank]]
        outs = [ranks.put(comm, np.zeros_like(value)) for value in values[comm.rank]]
        pointers = [list(map(pointer_of, arrays)) for arrays in (given, outs)]
        reduce = comm.prepared_all_reduce(ops, kinds)
        for stream in (7, 8):
            thread = threading.Thread(target=reduce, args=(*pointers, stream))
            thread.start()
            thread.join()
        with comm.awaiting_work():
            wait_for_work(ranks.fake)
        with pytest.raises(ZeroDivisionError), comm.awaiting_work():
            1 / 0  # noqa: B018 - the caller's own error leaves the group as it is
        for bad, error in ((("sum", "<i2"), TypeError), (("avg", "<f8"), ValueError)):
            with pytest.raises(error):
                comm.prepared_all_reduce([bad[0]], [(bad[1], (1,))])
        return [out.host() for out in outs]

    wanted = [f(v, axis=0) for f, v in zip((np.sum, np.prod, np.max), zip(*values))]
    for results in ranks.run(run):
        for result, value in zip(results, wanted):
            np.testing.assert_allclose(result, value)


@pytest.mark.parametrize("lost", [True, False])
def test_a_wait_of_another_library_ends_if_a_rank_is_lost_or_late(lost):
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)

    def run(comm, fake, x):
        if comm.rank:
            time.sleep(0.3)
            if lost:
                child.kill()
            return
        comm._link._pidfds.add(1, Identity(child.pid, 0, identity().namespace))
        reduce = comm.prepared_all_reduce(["sum"], [("<f8", (2,))])
        reduce([pointer_of(x)], [pointer_of(x)], 5)
        began = time.monotonic()
        with pytest.raises(PeerLost if lost else CommTimeout), comm.awaiting_work(0.5):
            wait_for_work(fake)
        assert time.monotonic() - began < 5
        reduce([pointer_of(x)], [pointer_of(x)], 5)  # of no effect
        assert fake.gpus.pending() == 0

    try:
        assert 0 in broken_group(run).aborted
    finally:
        child.kill()
        child.wait()
        child.stdin.close()


def test_synchronize_waits_for_an_event_alone():
    asked = []

    def run(comm, fake, x):
        comm.all_reduce(x)
        if comm.rank == 0:
            comm._link.driver.has_happened = lambda event: asked.append(event) or len(asked) > 2
            comm.synchronize(10, event=77)
            assert asked == [77] * 3
        comm.synchronize(10)
        comm.barrier()
        comm.close()

    broken_group(run)


@pytest.mark.parametrize("event", [None, 77])
def test_an_interrupt_ends_a_wait_for_the_gpu_and_not_the_group(event):
    def run(comm, fake, x):
        comm.all_reduce(x, out=x)
        if comm.rank == 0:
            wait = comm._link._wait

            def strike(_over, _deadline):
                raise KeyboardInterrupt

            comm._link._wait = strike
            with pytest.raises(KeyboardInterrupt):
                comm.synchronize(10, event=event)
            comm._link._wait = wait
        comm.all_reduce(x, out=x)
        comm.synchronize(10)
        assert x.host().tolist() == [4.0, 4.0]
        comm.barrier()
        comm.close()

    assert not broken_group(run).aborted


def test_an_error_of_nccl_ends_the_group():
    def run(comm, fake, x):
        comm.barrier()
        if comm.rank:
            fake.fail(1, 6)
            with pytest.raises(NcclError, match=r"remote error.*last error of rank 1"):
                comm.all_reduce(x)
        else:
            comm.all_reduce(x)
        comm_ended(comm, x)

    broken_group(run)


def test_a_closed_peer_is_lost_and_a_closed_communicator_closed():
    def run(comm, fake, x):
        comm.all_reduce(x)
        comm.synchronize()
        comm.barrier()
        if comm.rank:
            comm.close()
            comm.close()
            with pytest.raises(ClosedError):
                comm.all_reduce(x)
            assert "closed" in repr(comm)
        else:
            with pytest.raises(PeerLost, match="closed"):
                comm.all_reduce(x)

    fake = broken_group(run)
    assert fake.destroyed == [1]


class PygpuLike(CudaArray):
    """As libgpuarray's, in which some communicators look less closely the second time."""

    offset = typecode = 0
    context = None
    itemsize = 8
    flags = {"WRITEABLE": True}  # noqa: RUF012 - never changed

    @property
    def gpudata(self):
        return self._memory.pointer

    @property
    def strides(self):
        return tuple(8 * int(np.prod(self.shape[k + 1 :])) for k in range(len(self.shape)))

    @strides.setter
    def strides(self, _):
        pass

    def fill(self, value):
        host = np.full(self.shape, float(value))
        with self._driver.entered(self.device):
            address = host.__array_interface__["data"][0]
            self._driver.upload_on(0, self.gpudata, address, host.nbytes)


def test_a_repeated_all_reduce_reads_the_arrays_anew(pair):
    def run(comm):
        x, out = (PygpuLike.of(pair.fake.gpus, np.ones((2, 3)), comm.device) for _ in range(2))
        for turn in range(1, 5):
            x.fill(turn + comm.rank)
            for op, weight, right in (
                ("sum", None, 2 * turn + 1),
                ("avg", None, turn + 0.5),
                ("avg", 1.0 + comm.rank, turn + 2 / 3),
                ("max", None, turn + 1),
            ):
                assert comm.all_reduce(x, op, weight=weight, out=out) is out
                np.testing.assert_allclose(read(comm, out), right)
        assert len(comm._steps.repeated) == 1
        # The one that is there now may have the address of one that is gone.
        for turn in range(20):
            x = PygpuLike.of(pair.fake.gpus, np.full(2 + turn, comm.rank), comm.device)
            comm.all_reduce(x, out=x)
            np.testing.assert_array_equal(read(comm, x), np.ones(2 + turn))

    pair.run(run)


def test_a_repeated_average_uses_the_others_weights(pair):
    def run(comm):
        x, out = (PygpuLike.of(pair.fake.gpus, np.ones(3), comm.device) for _ in range(2))
        x.fill(comm.rank)
        for theirs in (2.0, 2.0, 2.0, 6.0, 6.0, 2.0, 2.0):
            comm.all_reduce(x, "avg", weight=theirs if comm.rank else 2.0, out=out)
            np.testing.assert_allclose(read(comm, out), theirs / (2 + theirs))

    pair.run(run)


def test_a_repeated_call_beside_another_one_is_a_mismatch(pair):
    def run(comm):
        x, y = (PygpuLike.of(pair.fake.gpus, np.ones(3), comm.device) for _ in range(2))
        for _ in range(3):
            comm.all_reduce(x, "max", out=y)
        with pytest.raises(MismatchError):
            comm.all_reduce(x, "min" if comm.rank else "max", out=y)
        comm.all_reduce(x, "max", out=y)

    pair.run(run)


EXIT = """
import ctypes, os, sys, threading, time
from _fake_nccl import FakeNccl, open_group

# As a library that takes itself apart at the exit.
ctypes.CDLL(None).on_exit(ctypes.CDLL(None).abort, None)
fake, kind, entered = FakeNccl(2), sys.argv[1], threading.Event()

def stay(*_):
    entered.set()
    threading.Event().wait()

def linger(handle):
    entered.set()
    time.sleep(0.3)
    os.write(1, b"left NCCL, ")

fake.comm_abort = linger if kind == "returns late" else stay
_, comms = open_group(2, fake)
comms[0].abort("given up")
assert entered.wait(20)
print("said", end="")
sys.exit(3)
"""


@pytest.mark.parametrize(
    ("kind", "status", "said"),
    [("stays", 3, b"said"), ("returns late", -signal.SIGABRT, b"left NCCL, said")],
)
def test_a_thread_that_stays_inside_nccl_spoils_no_exit(kind, status, said):
    """The process waits for it a while, and then ends without taking libraries apart under it."""
    done = subprocess.run(
        [sys.executable, "-c", EXIT, kind],
        cwd=os.path.dirname(__file__),
        capture_output=True,
        timeout=60,
        check=False,
    )
    assert (done.returncode, done.stdout) == (status, said), done.stderr


def start(size, make, devices=None):
    """Return what each rank's start raised, and leave nothing open."""
    fake = FakeNccl(devices or size)
    hosts = thread_group(size, timeout_s=20)

    def run(host):
        try:
            comm = nccl(host, **make(host.rank, fake))
        except Exception as exc:
            with pytest.raises(ClosedError):
                host.barrier()
            return exc
        comm.close()
        return None

    return in_threads(hosts, run)


def test_devices_are_dealt_in_turn_or_asked_for():
    fake, comms = open_group(3)
    assert [comm.device for comm in comms] == [0, 1, 2]
    assert "nccl on device 1 beside shm, open" in repr(comms[1])
    assert comms[0].backend == "nccl"
    assert comms[0].why.startswith("nccl over ")
    in_threads(comms, lambda comm: comm.close())
    fake = FakeNccl(2)

    def run(host):
        with fake.gpus.entered(1 - host.rank):  # as a library does that has a context
            return nccl(host, binding=fake, driver=fake.gpus)

    comms = in_threads(thread_group(2, timeout_s=20), run)
    assert [comm.device for comm in comms] == [1, 0]
    in_threads(comms, lambda comm: comm.close())


def test_two_ranks_on_one_device_are_refused_everywhere():
    for devices, chosen in ((1, None), (2, 1)):

        def make(rank, fake, chosen=chosen):
            return {"binding": fake, "driver": fake.gpus, "device": chosen}

        errors = start(2, make, devices)
        for error in errors:
            assert isinstance(error, JoinError)
            assert "ranks 0 and 1 would both use" in str(error)


def test_a_rank_without_libraries_says_so_to_all():
    def make(rank, fake):
        return {"binding": fake, "driver": fake.gpus} if rank else {}

    first, second = start(2, make)
    assert isinstance(first, ImportError)
    assert "pip install" in str(first)
    assert isinstance(second, JoinError)
    assert "rank 0: MissingLibrary" in str(second)


def test_a_start_that_never_ends_is_given_up_in_time():
    def make(rank, fake):
        fake.deaf.update((0, 1))
        return {"binding": fake, "driver": fake.gpus, "timeout_s": 0.5}

    began = time.monotonic()
    errors = start(2, make)
    assert time.monotonic() - began < 10
    assert all(isinstance(error, (CommTimeout, AbortedError)) for error in errors), errors
    assert any(isinstance(error, CommTimeout) for error in errors)
    assert "starting NCCL" in str(errors)


def test_only_this_packages_communicators_can_be_wrapped():
    with pytest.raises(TypeError, match="zmq or mpi"):
        nccl(object())


def test_a_missing_library_is_an_error_with_its_cure(monkeypatch):
    monkeypatch.setitem(sys.modules, "nccl.bindings.nccl", None)
    with pytest.raises(MissingLibrary, match="pip install"):
        load_binding()
    with pytest.raises(CudaError, match="no NVIDIA driver"):
        Driver("libcuda-that-is-not-there.so")
