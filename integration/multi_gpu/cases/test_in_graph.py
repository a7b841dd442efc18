"""Reductions inside of graphs, batch normalization over all ranks, and timelines, on devices."""

from __future__ import annotations

import numpy as np
import pytest
import theano
import theano.tensor as T
from _lib import exact, on_all, same, shared, spread, values

from synkhronos import in_graph


def test_reductions_inside_of_a_graph_and_their_gradients(synk, n, place):
    """Centred rows: their mean square and its gradient are those of all rows together."""
    x = T.fmatrix("x")
    w, _ = spread(synk, n, values("float32", (3,)), place, "w")
    synk.broadcast(w)
    g = shared(np.zeros(3, "float32"), place, "g")
    z = x * w
    total = in_graph.all_reduce(z.sum(axis=0), "sum")
    mean = in_graph.all_reduce(z.mean(axis=0), "avg")
    cost = T.sqr(z - mean).sum(axis=1).mean()
    f = synk.function(
        [x], [cost, (total, None)], updates=[(g, T.grad(cost, w), "avg")], name="centred"
    )
    weights = exact(w.get_value())
    for count in (4 * n, 3 * n + 1, 1):
        rows = values("float32", (count, 3), seed=count)
        got, summed = f(rows)
        synk.all_reduce(g, "avg", weights=f)
        z_all = exact(rows) * weights
        centred = z_all - z_all.mean(axis=0)
        same(got, (centred**2).sum(axis=1).mean(), "float32")
        same(summed, z_all.sum(axis=0), "float32")
        gradient = 2 * (centred * exact(rows)).mean(axis=0)
        for held in on_all(synk, n, g):
            assert np.abs(held - gradient).max() < 1e-4


def test_batch_normalization_over_all_ranks(synk, n, device_set):
    """Of uneven batches: outputs, gradients and running averages are those over all rows."""
    if device_set.kind == "opencl":
        pytest.skip("Theano's variance has no kernel there")
    lasagne = pytest.importorskip("lasagne")
    from synkhronos.extensions.lasagne import SyncBatchNormLayer

    x = T.fmatrix("x")
    g = shared(np.zeros((2, 4), "float32"), "host" if device_set.kind == "cpu" else "device", "g")
    with theano.change_flags(floatX="float32"):
        layer = SyncBatchNormLayer(lasagne.layers.InputLayer((None, 4), x), alpha=0.5)
        y = lasagne.layers.get_output(layer)
        cost = T.sqr(y - 0.25).sum(axis=1).mean()
        gradient = T.stack(T.grad(cost, [layer.gamma, layer.beta]))
    f = synk.function([x], [cost, (y, "gather")], updates=[(g, gradient)], name="normalized")
    mean, inv_std = np.zeros(4), np.ones(4)
    for count in (8 * n, 5 * n + 1, 7):
        rows = values("float32", (count, 4), seed=count)
        got, normal = f(rows)
        synk.all_reduce(g, "avg", weights=f)
        own = exact(rows)
        scale = 1 / np.sqrt(own.var(axis=0) + 1e-4)
        expected = (own - own.mean(axis=0)) * scale
        assert np.abs(normal - expected).max() < 1e-4
        same(got, ((expected - 0.25) ** 2).sum(axis=1).mean(), "float32")
        off = expected - 0.25
        wanted = 2 * np.stack([(off * expected).mean(axis=0), off.mean(axis=0)])
        mean, inv_std = (mean + own.mean(axis=0)) / 2, (inv_std + scale) / 2
        for held in on_all(synk, n, g):
            assert np.abs(held - wanted).max() < 1e-4
        for variable, want in ((layer.mean, mean), (layer.inv_std, inv_std)):
            for held in on_all(synk, n, variable):
                assert np.abs(held - want).max() < 1e-4
