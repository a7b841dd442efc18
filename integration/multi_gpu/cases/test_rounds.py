"""Verification, check(), random streams, and functions off the device."""

from __future__ import annotations

import sys

import cloudpickle
import numpy as np
import pytest
import theano.tensor as T
from _lib import cross_entropy, exact, on_all, same, shared, values
from theano.compile.ops import as_op
from theano.sandbox.rng_mrg import MRG_RandomStreams
from theano.tensor.shared_randomstreams import RandomStreams

# Workers cannot import the tests' modules.
cloudpickle.register_pickle_by_value(sys.modules[__name__])


@as_op([T.fmatrix], [T.fmatrix])
def only_on_the_host(array):
    return np.sort(array, axis=1)


def test_operations_that_only_the_host_has(synk, device_set, place):
    """A user's own, between operations of the device; integers; a sort."""
    x, i = T.fmatrix("x"), T.ivector("i")
    s = shared(np.full((1, 3), 2, "float32"), place)
    on_host = only_on_the_host(x * s.sum(axis=0))
    # Theano's for a device is written in CUDA alone.
    cumsum = T.cumsum(x, axis=1) if device_set.kind != "opencl" else x
    f = synk.function(
        [x, i],
        [(T.tanh(on_host), "gather"), (T.sort(x, axis=1), "gather"), ((i * i).sum(), "sum"),
         (x.argmax(axis=1), "gather"), (cumsum, "gather")],
    )  # fmt: skip
    rows, labels = values("float32", (9, 3)), values("int32", (9,))
    results = f(rows, labels)
    same(results[0], np.tanh(np.sort(2 * exact(rows), axis=1)), "float32")
    np.testing.assert_array_equal(results[1], np.sort(rows, axis=1))
    assert results[2] == (labels**2).sum()
    np.testing.assert_array_equal(results[3], rows.argmax(axis=1))
    if device_set.kind != "opencl":
        same(results[4], np.cumsum(exact(rows), axis=1), "float32")


def test_verify_finds_a_training_step_right(synk, n, device_set, place):
    x, y = T.fmatrix("x"), T.ivector("y")
    w = shared(values("float32", (3, 4)), place, "w")
    g = shared(np.zeros((3, 4), "float32"), place, "g")
    count = shared(np.int32(0), "host", "count")
    p = T.nnet.softmax(x.dot(w))
    loss = cross_entropy(device_set, p, y, 4)
    f = synk.function(
        [x, y],
        [loss, (p, "gather"), (x.max(axis=0), "max"), (T.neq(p.argmax(axis=1), y).sum(), "sum"),
         ((x * x).sum(axis=0), "sum")],
        updates=[(g, T.grad(loss, w)), (count, count + 1)],
        name="step",
    )  # fmt: skip
    rows = values("float32", (3 * n + 1, 3))
    labels = np.arange(len(rows), dtype="int32") % 4
    before = [on_all(synk, n, variable) for variable in (w, g, count)]
    report = f.verify(rows, labels)
    assert report.ok, str(report)
    for batch in ([3, 0, 0], slice(None, None, 2)):
        report = f.verify(synk.data(rows), labels, batch=batch)
        assert report.ok, str(report)
    for variable, held in zip((w, g, count), before):
        for got, want in zip(on_all(synk, n, variable), held):
            np.testing.assert_array_equal(got, want)


def test_check_follows_the_graph_through_transfers(synk, place):
    """Values that go to the device and back are the same values."""
    x = T.matrix("x", dtype="float32")
    w = shared(values("float32", (3, 2)), place)
    resident = shared(values("float32", (1, 3)), place, "resident")
    h = T.tanh(x.dot(w))
    f = synk.function(
        [x],
        [h.mean(), (h.sum(axis=0), "sum"), (h, "gather"), (h.max(), "max"),
         (T.nnet.softmax(h), "gather")],
    )  # fmt: skip
    assert [verdict.verdict for verdict in synk.check(f)] == ["exact"] * 5
    g = synk.function([], (T.sqr(resident).mean(), "avg"), sliceable_shareds=[resident])
    assert [verdict.verdict for verdict in synk.check(g)] == ["exact"]
    if place == "device":
        from theano.gpuarray.basic_ops import as_gpuarray_variable, host_from_gpu

        there = as_gpuarray_variable(x, None)
        k = synk.function([x], [host_from_gpu(there).mean(axis=0), (there.sum(axis=0), "sum")])
        assert [verdict.verdict for verdict in synk.check(k)] == ["exact"] * 2


@pytest.mark.parametrize("streams", [RandomStreams, MRG_RandomStreams])
def test_random_numbers_differ_by_rank_and_go_on(synk, n, streams):
    stream = streams(7)
    x = T.matrix("x", dtype="float32")
    noise = stream.uniform(size=x.shape, dtype="float32")
    f = synk.function([x], [(x * 0 + noise, "gather"), ((x * 0 + noise) ** 2).mean()])
    rows = np.zeros((6 * n, 50), "float32")
    seen = []
    for num_slices in (1, 2):
        for _ in range(2):
            drawn, mean = f(rows, num_slices=num_slices)
            assert drawn.shape == rows.shape
            assert 0 < drawn.min() < 0.1 < 0.9 < drawn.max() < 1
            assert abs(mean - 1 / 3) < 0.1
            seen += [part.tobytes() for part in np.array_split(drawn, 2 * n)]
    assert len(set(seen)) == len(seen), "no two draws are the same"
