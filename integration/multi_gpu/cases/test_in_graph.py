"""Reductions inside of graphs, on devices."""

from __future__ import annotations

import numpy as np
import theano.tensor as T
from _lib import exact, on_all, same, shared, spread, values

from synkhronos import in_graph


def test_reductions_inside_of_a_graph_and_their_gradients(synk, n, place):
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
