"""Rows that are copied to the device while it computes what comes before."""

from __future__ import annotations

import numpy as np
import pytest
import theano
import theano.tensor as T
from _lib import ranks_have, same, shared, values

from synkhronos.extensions import updates
from synkhronos.extensions.train import make_train_function

ROWS, FEATURES = 300, 3000  # large enough for locked pages


def functions(synk, place):
    """A function of rows, its update that comes much later on the device, and both in NumPy."""
    x, y = T.fmatrix("x"), T.ivector("y")
    total = shared(np.zeros(FEATURES, "float32"), place, "total")
    # The device is not done with it when the host is.
    work = x
    for _ in range(30):
        work = T.tanh(T.dot(T.dot(work, work.T), work) * np.float32(1e-4))
    f = synk.function(
        [x, y],
        [(x.sum(axis=1), "gather"), (y * 2, "gather"), (work.sum() * 0 + x.sum(), "sum")],
        updates=[(total, total + x.sum(axis=0), "sum")],
    )
    return f, total


@pytest.mark.parametrize("form", ["Data", "arrays"])
def test_each_call_gets_its_own_rows(synk, n, place, form):
    f, total = functions(synk, place)
    data, labels = values("float32", (ROWS, FEATURES)), np.arange(ROWS, dtype="int32")
    given = (synk.data(data), synk.data(labels)) if form == "Data" else (data, labels)
    random, expected = np.random.RandomState(3), np.zeros(FEATURES)
    rows = [random.permutation(ROWS)[: random.choice([64, 64, 64, 40, 96])] for _ in range(24)]
    rows[5], rows[11] = np.arange(10, 90), np.arange(200, 50, -3)
    batches = [*rows[:5], slice(10, 90), *rows[6:11], slice(200, 50, -3), *rows[12:]]
    calls = [f.delayed(*given, batch=batch) for batch in batches]
    for i, call in enumerate(calls):
        acts = [call, *([calls[i + 1].prefetch()] if i + 1 < len(calls) else [])]
        if i == 17:  # another call in between
            same(f(*given, batch=rows[0])[0], data[rows[0]].sum(axis=1))
            expected += data[rows[0]].sum(axis=0)
        sums, doubled, whole = synk.step(*acts)[0]
        same(sums, data[rows[i]].sum(axis=1), what=f"call {i}")
        np.testing.assert_array_equal(doubled, labels[rows[i]] * 2)
        same(whole, data[rows[i]].sum(dtype="float64"))
        expected += data[rows[i]].sum(axis=0)
    synk.all_reduce(total, op="sum")
    ranks_have(synk, n, total, expected, "float32")


@pytest.mark.parametrize("form", ["rows", "arrays"])
def test_training_steps_are_those_of_calls(synk, n, form):
    x, y = T.fmatrix("x"), T.ivector("y")
    data, labels = values("float32", (ROWS, FEATURES)), np.arange(ROWS, dtype="int32") % 3
    trained = []
    for ahead in (False, True):
        w = theano.shared(np.zeros((FEATURES, 3), "float32"), name="w")
        right = T.eq(y.dimshuffle(0, "x"), np.arange(3, dtype="int32"))
        loss = T.sqr(T.dot(x, w) - right).mean()
        train = make_train_function(loss, [w], [x, y], updates.momentum, learning_rate=1e-4)
        random = np.random.RandomState(3)
        rows = [random.permutation(ROWS)[:size] for size in (64,) * 12 + (30, 64)]
        if not ahead:
            losses = [train(data, labels, batch=batch) for batch in rows]
        elif form == "rows":
            losses = list(train.steps(synk.data(data), synk.data(labels), rows))
        else:
            losses = list(train.steps((data[batch], labels[batch]) for batch in rows))
        ranks_have(synk, n, w, synk.get_value(0, w), "float32")
        trained.append((losses, synk.get_value(0, w)))
    same(np.array(trained[1][0]), np.array(trained[0][0]))
    same(trained[1][1], trained[0][1])
