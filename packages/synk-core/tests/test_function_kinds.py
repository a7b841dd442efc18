"""Kinds of Theano functions that users replicate: loops, streams, sparse values, odd outputs.

`test_flat` compares replicas with their originals bit by bit; here they are called as users do.
"""

from __future__ import annotations

import numpy as np
import pytest
import scipy.sparse
import theano
import theano.sparse
import theano.tensor as T
from _ops import FAST
from theano.sandbox import rng_mrg
from theano.sandbox.rng_mrg import MRG_RandomStreams
from theano.tensor import raw_random
from theano.tensor.shared_randomstreams import RandomStreams

from synk_core._graph import random_streams

X = np.random.RandomState(0).uniform(-1, 1, (7, 3))


@pytest.fixture
def x():
    return T.dmatrix("x")


# Loops and branches


def test_scan_that_updates_shared_variables(pair, x):
    """The inner function's own updates are applied once a call; in slices, once as well."""
    n = theano.shared(np.asarray(0), "n")
    terms, updates = theano.scan(lambda row: (row.sum(), {n: n + 1}), x)
    f = pair.function([x], (terms, "gather"), updates=updates, **FAST)
    np.testing.assert_allclose(f(X), X.sum(axis=1), rtol=1e-14)
    assert pair.collectives.gather(n).tolist() == [4, 3]


# Random numbers


def test_other_ranks_streams_are_as_far_apart_as_theanos(monkeypatch):
    for count in (0, 1, 2, 37):
        state = np.arange(6 * count, dtype="int32").reshape(count, 6) + 1
        serial = MRG_RandomStreams(1)
        with monkeypatch.context() as without:
            # It compiles a function, one process after the other.
            without.setattr(rng_mrg, "multMatVect", None)
            seeded = random_streams.reseed(state, rank=2)
        assert (seeded.dtype, seeded.shape) == (state.dtype, state.shape)
        assert not count or (seeded[0] != state[0]).all()
        if count:
            serial.rstate = seeded[0]
            expected = serial.get_substream_rstates(count, "float64")
            np.testing.assert_array_equal(seeded, np.asarray(expected))


# What it asks for is no result over rows, and is told so.
@pytest.mark.filterwarnings("ignore:this function cannot be split")
def test_one_random_state_goes_on_over_functions_and_rounds(pair, x):
    """Functions that share a stream draw on from each other; the master's numbers are Theano's."""

    def drawn():
        stream = RandomStreams(9)
        return stream.uniform((2,)), dict(stream.updates())

    draw, updates = drawn()
    f = pair.function([], [(draw, "gather")], updates=updates, **FAST)
    first = f()[0]
    g = pair.function([x], [(draw, "gather"), (x.sum(), "sum")], updates=updates, **FAST)
    numbers = np.array([first, g(X)[0], f()[0], g(X, num_slices=1)[0]])
    serial = theano.function([], drawn()[0])
    np.testing.assert_array_equal(numbers[:, :2], [serial() for _ in numbers])
    assert len(np.unique(numbers)) == 16
    own = theano.shared(np.random.RandomState(3))  # no stream's, and not marked as one
    state, draw = raw_random.uniform(own, (2,))
    f = pair.function([], [(draw, "gather")], updates=[(own, state)], **FAST)
    assert len(np.unique(f()[0])) == 4


def test_sparse_constants_and_sparse_variables(pair, x):
    matrix = scipy.sparse.random(3, 5, 0.5, "csr", random_state=1)
    constant = theano.sparse.as_sparse_variable(matrix)
    dense = T.as_tensor_variable(matrix.toarray())
    rows = theano.sparse.structured_dot(theano.sparse.csr_from_dense(x), dense)
    f = pair.function(
        [x], [(theano.sparse.dot(x, constant), "gather"), (rows, "gather")], mode="FAST_RUN"
    )
    for result in f(X, num_slices=2):
        np.testing.assert_allclose(result, X @ matrix.toarray(), rtol=1e-12, atol=1e-15)


# Outputs


# What it asks for is no result over rows, and is told so.
@pytest.mark.filterwarnings("ignore:this function cannot be split")
def test_inputs_variables_and_doubles_as_outputs_are_the_callers_own(pair, x):
    s, c, total = theano.shared(np.arange(3.0), "s"), T.dscalar("c"), x.sum()
    outputs = [(x, "gather"), (x, "gather"), (s, "sum"), s, (c, "max"), (total, "sum")]
    outputs += [(total, "max"), (x * 1, None)]
    f = pair.function([x], outputs, bcast_inputs=[c], updates=[(s, s + 1)], **FAST)
    data, kept = pair.data(X), []
    largest = max(X[:4].sum(), X[4:].sum())
    for step in range(2):
        held = np.arange(3.0) + step
        wanted = [X, X, 2 * held, held, 4, X.sum(), largest, X[:4]]
        kept.append((f(data, 4.0), wanted))
    last = f(data, 4.0)
    for result in (last[0], last[2], last[3]):
        result[...] = -99
    np.testing.assert_array_equal(f(data, 4.0, output_subset=[3])[0], np.arange(3.0) + 3)
    data[:] = 9
    f(data, 4.0)
    for results, wanted in kept:
        for result, expected in zip(results, wanted):
            np.testing.assert_allclose(result, expected, rtol=1e-14)
    np.testing.assert_array_equal(pair.collectives.gather(s), [np.arange(3.0) + 5] * 2)
