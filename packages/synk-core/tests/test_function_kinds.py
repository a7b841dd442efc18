"""Every kind of Theano function is replicated: as in serial on every rank, in slices as whole.

`test_flat` compares replicas with their originals bit by bit; here they are called as users do.
"""

from __future__ import annotations

import numpy as np
import pytest
import scipy.sparse
import theano
import theano.sparse
import theano.tensor as T
from theano.sandbox import rng_mrg
from theano.sandbox.rng_mrg import MRG_RandomStreams
from theano.tensor.shared_randomstreams import RandomStreams

from synk_core import Runtime
from synk_core._graph import random_streams

QUICK = {"mode": "FAST_COMPILE"}
X = np.random.RandomState(0).uniform(-1, 1, (7, 3))


@pytest.fixture
def x():
    return T.dmatrix("x")


def as_serial(pair, build, calls=2, **options):
    """Run ``build() -> (inputs, outputs with ops, updates)`` in parallel and serially.

    Its updates have to be averages over rows of gradients and the like: after each call the
    ranks' variables are averaged by their rows, and must be those of serial Theano on all rows.
    """
    inputs, outputs, updates = build()
    f = pair.function(inputs, outputs, updates=updates, **options)
    serial_inputs, serial_outputs, serial_updates = build()
    plain = [output for output, _ in serial_outputs]
    serial = theano.function(serial_inputs, plain, updates=serial_updates, **options)
    targets = [target for target, _ in updates if "float" in str(target.type)]
    serial_targets = [target for target, _ in serial_updates if "float" in str(target.type)]
    for num_slices in (1, 2):
        for step in range(calls):
            value = X * (step + 1)
            for result, expected in zip(f(value, num_slices=num_slices), serial(value)):
                np.testing.assert_allclose(result, expected, rtol=1e-11, atol=1e-13)
            if targets:
                pair.collectives.all_reduce(targets, weights=f.rows)
            for target, expected in zip(targets, serial_targets):
                for rank in range(pair.size):
                    held = pair.collectives.get_value(rank, target)
                    np.testing.assert_allclose(held, expected.get_value(), rtol=1e-11, atol=1e-13)


# Loops and branches


def test_scan_that_updates_shared_variables(pair, x):
    """The inner function's own updates are applied once a call; in slices, once as well."""
    n = theano.shared(np.asarray(0), "n")
    terms, updates = theano.scan(lambda row: (row.sum(), {n: n + 1}), x)
    f = pair.function([x], (terms, "gather"), updates=updates, **QUICK)
    np.testing.assert_allclose(f(X), X.sum(axis=1), rtol=1e-14)
    assert pair.collectives.gather(n).tolist() == [4, 3]


@pytest.mark.parametrize(
    "streams", [pytest.param(MRG_RandomStreams, marks=pytest.mark.nightly), RandomStreams]
)
def test_scan_that_draws_random_numbers(pair, x, streams):
    stream = streams(11)
    noisy, updates = theano.scan(lambda row: row + stream.uniform((3,)), x)
    f = pair.function([x], (noisy - x, "gather"), updates=updates, **QUICK)
    zeros = np.zeros((8, 3))
    first, second = f(zeros), f(zeros, num_slices=2)
    assert len(np.unique(np.concatenate([first, second]))) == 48
    assert ((first >= 0) & (first < 1)).all()


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
    """Functions that share a stream draw on from each other, on every rank."""
    stream = RandomStreams(9)
    draw = stream.uniform((2,))
    update = dict(stream.updates())
    outputs = [(draw, "gather")]
    f = pair.function([], outputs, updates=update, **QUICK)
    first = f()[0]
    g = pair.function([x], [*outputs, (x.sum(), "sum")], updates=update, **QUICK)
    drawn = [first, g(X)[0], f()[0], g(X, num_slices=1)[0]]
    with Runtime(2) as alone:
        again = RandomStreams(9)
        h = alone.function([], [(again.uniform((2,)), "gather")], **QUICK)
        for numbers in drawn:
            np.testing.assert_array_equal(h()[0], numbers)
    assert len(np.unique(drawn)) == 16


# Operations of other people's making


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


class Scale(theano.Op):
    """Multiplies by a number of its own, in place if told so; has a gradient."""

    __props__ = ("factor", "inplace")

    def __init__(self, factor, inplace=False):
        self.factor, self.inplace = factor, inplace
        if inplace:
            self.destroy_map = {0: [0]}

    def make_node(self, x):
        x = T.as_tensor_variable(x)
        return theano.Apply(self, [x], [x.type()])

    def perform(self, node, inputs, outputs):
        out = inputs[0] if self.inplace else inputs[0].copy()
        out *= self.factor
        outputs[0][0] = out

    def grad(self, inputs, gradients):
        return [Scale(self.factor)(gradients[0])]


def test_an_operation_that_works_in_place_spoils_no_input(pair, x):
    """Inputs lie in memory that the ranks share: they are copied before they are written to."""
    f = pair.function([x], (Scale(2.0, inplace=True)(x + 0), "gather"), accept_inplace=True)
    g = pair.function([x], [(T.exp(x), "gather"), (x.sort(axis=1), "gather")], mode="FAST_RUN")
    data = pair.data(X)
    for _ in range(2):
        np.testing.assert_array_equal(f(data), 2 * X)
        np.testing.assert_allclose(g(data, batch=[6, 0])[0], np.exp(X[[6, 0]]), rtol=1e-15)
        np.testing.assert_array_equal(data.data, X)


# What it asks for is no result over rows, and is told so.
@pytest.mark.filterwarnings("ignore:this function cannot be split")
def test_only_what_is_new_travels(monkeypatch):
    """What each round writes into shared memory, from outside: the sizes of what is allocated."""
    import synk_shm

    sizes = []
    original = synk_shm.empty

    def spy(shape, dtype=float, *args, **kwargs):
        sizes.append(int(np.prod(shape)) * np.dtype(dtype).itemsize)
        return original(shape, dtype, *args, **kwargs)

    with Runtime(2) as runtime:
        x, big = T.dvector("x"), theano.shared(np.zeros(400_000), "big")
        monkeypatch.setattr(synk_shm, "empty", spy)
        f = runtime.function([x], (x.sum() + big.sum(), "sum"), **QUICK)
        runtime.distribute()
        first = sum(sizes)
        assert first > big.get_value(borrow=True).nbytes, "the spy would see a large value"
        sizes.clear()
        runtime.distribute()
        assert f(np.ones(4)) == 4
        assert sum(sizes) < 10_000
        sizes.clear()
        small = theano.shared(np.ones(()), "small")
        g = runtime.function([x], (x.max() + big.max() + small, "max"), **QUICK)
        assert g(np.ones(4)) == 2
        assert f(np.ones(4), num_slices=2) == 4
        assert 0 < sum(sizes) < 60_000


# Linkers


@pytest.mark.parametrize(
    "linker",
    [
        "py",
        *(
            pytest.param(name, marks=pytest.mark.nightly)
            for name in ("cvm_nogc", "vm", "vm_nogc", "c|py", "c|py_nogc")
        ),
    ],
)
def test_linkers(pair, linker):
    def build():
        x, w = T.dmatrix("x"), theano.shared(np.full(3, 0.3), "w")
        cost = (x * w).mean()
        outputs = [(cost, "avg"), (x.max(axis=1), "gather"), (x.sum(), "sum")]
        return [x], outputs, [(w, w - 0.1 * T.grad(cost, w))]

    as_serial(pair, build, mode=theano.Mode(linker, "fast_run"))
    inputs, outputs, updates = build()
    f = pair.function(inputs, outputs, updates=updates, mode=theano.Mode(linker, "fast_run"))
    total, mean = f(X, output_subset=[2, 0])
    np.testing.assert_allclose([total, mean], [X.sum(), (X * 0.3).mean()], rtol=1e-12)
    assert not np.allclose(updates[0][0].get_value(), 0.3)


# Outputs


# What it asks for is no result over rows, and is told so.
@pytest.mark.filterwarnings("ignore:this function cannot be split")
def test_inputs_shared_variables_and_doubles_as_outputs(pair, x):
    s, c = theano.shared(np.arange(3.0), "s"), T.dscalar("c")
    total = x.sum()
    f = pair.function(
        [x],
        [(x, "gather"), (x, "gather"), (s, "sum"), s, (c, "max"), (total, "sum"), (total, "max")],
        bcast_inputs=[c],
        updates=[(s, s + 1)],
        **QUICK,
    )
    for step in range(2):
        first, again, total_s, mean_s, scalar, whole, largest = f(X, 4.0)
        np.testing.assert_array_equal(first, X)
        np.testing.assert_array_equal(again, X)
        np.testing.assert_array_equal(total_s, 2 * (np.arange(3.0) + step))
        np.testing.assert_array_equal(mean_s, np.arange(3.0) + step)
        assert scalar == 4
        np.testing.assert_allclose(whole, X.sum(), rtol=1e-14)
        np.testing.assert_allclose(largest, max(X[:4].sum(), X[4:].sum()), rtol=1e-14)
        # What came back is the caller's own.
        for result in (first, total_s, mean_s):
            result[...] = -99
    np.testing.assert_array_equal(pair.collectives.gather(s), [np.arange(3.0) + 2] * 2)


def test_results_are_the_callers_own_and_later_calls_leave_them_alone(runtime, x):
    s = theano.shared(np.zeros(3), "s")
    outputs = [(x, "gather"), (x.sum(axis=0), "sum"), x.mean(axis=0), (x * 1, None), (s, "max")]
    f = runtime.function([x], outputs, updates=[(s, s + x.max(axis=0))], **QUICK)
    value = runtime.data(X)
    kept = f(value)
    copies = [np.array(result) for result in kept]
    value[:] = 9
    f(value)
    f(value, batch=[0, 1, 2, 3], output_subset=[0, 1])
    for result, copy in zip(kept, copies):
        np.testing.assert_array_equal(result, copy)


@pytest.mark.parametrize(
    "dtype",
    ["int8", "float16", *(pytest.param(n, marks=pytest.mark.nightly) for n in ("uint8", "int64"))],
)
def test_narrow_outputs_keep_their_dtype(pair, dtype):
    v = T.TensorType(dtype, (False, False))("v")
    value = np.arange(14).reshape(7, 2).astype(dtype)
    names = ("max", "min", "prod", "sum")
    outputs = [(v, "gather"), *((getattr(v, name)(axis=0).astype(dtype), name) for name in names)]
    f = pair.function([v], outputs, **QUICK)
    with np.errstate(over="ignore"):
        expected = [
            value,
            *(
                getattr(value, name)(axis=0, dtype=dtype)
                if name in ("prod", "sum")
                else getattr(value, name)(axis=0)
                for name in names
            ),
        ]
    for num_slices in (1, 3):
        for result, wanted in zip(f(value, num_slices=num_slices), expected):
            assert result.dtype == dtype
            np.testing.assert_array_equal(result, wanted)


def test_truth_values_and_complex_numbers(pair, x):
    z = x + 1j * x[:, ::-1]
    f = pair.function(
        [x],
        [
            (T.gt(x, 0), "gather"),
            (T.gt(x, 0.5).any(), "max"),
            (T.gt(x, -2).all(), "min"),
            (z, "gather"),
            (z.sum(axis=0), "sum"),
            z.mean(axis=0),
        ],
        **QUICK,
    )
    value = X + 1j * X[:, ::-1]
    wanted = [X > 0, (X > 0.5).any(), True, value, value.sum(axis=0), value.mean(axis=0)]
    for num_slices in (1, 2):
        for result, expected in zip(f(X, num_slices=num_slices), wanted):
            np.testing.assert_allclose(result, expected, rtol=1e-13)
            assert np.asarray(result).dtype == np.asarray(expected).dtype


def test_outputs_of_no_to_four_dimensions(pair):
    v = T.dtensor3("v")
    value = np.random.RandomState(1).uniform(-1, 1, (9, 2, 3))
    outer = v.dimshuffle(0, 1, 2, "x") * v.dimshuffle(0, 1, "x", 2)
    wide = value[..., None] * value[:, :, None]
    f = pair.function(
        [v],
        [
            v.mean(),
            (v.sum(), "sum"),
            (outer, "gather"),
            (outer.max(axis=0), "max"),
            outer.mean(axis=0),
            (outer.dimshuffle(1, 0, 2, 3).sum(axis=(0, 1)), "sum"),
        ],
        **QUICK,
    )
    wanted = [value.mean(), value.sum(), wide, wide.max(0), wide.mean(0), wide.sum(axis=(0, 1))]
    for num_slices in (1, 4):
        for result, expected in zip(f(value, num_slices=num_slices), wanted):
            assert np.shape(result) == np.shape(expected)
            np.testing.assert_allclose(result, expected, rtol=1e-12)
