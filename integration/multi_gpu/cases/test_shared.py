"""Collectives on shared variables: every dtype, on the device and on the host."""

from __future__ import annotations

import numpy as np
import pytest
import theano
import theano.tensor as T
from _lib import (
    FLOATS,
    INTEGERS,
    exact,
    on_all,
    ranks_have,
    same,
    shared,
    spread,
    still_there,
    values,
)

from synk_core import flat_updates
from synk_core._graph.digest import digest
from synk_core._graph.shared import value_of

ALL = [*FLOATS, *INTEGERS, "bool"]
NUMPY = {"sum": np.sum, "max": np.max, "min": np.min, "prod": np.prod, "avg": np.mean}


def expected(op, held):
    result = NUMPY[op](np.stack([exact(value) for value in held]), axis=0)
    return result if held[0].dtype.kind == "f" else result.astype(held[0].dtype)


def test_arrays_lie_on_the_device_after_fork_and_scalars_on_the_host(synk, device_set):
    """As Theano has it: what it does not want on a device is a scalar, or complex."""
    from theano.tensor.sharedvar import TensorSharedVariable

    for dtype in ALL:
        on_host = isinstance(theano.shared(np.zeros((2, 2), dtype)), TensorSharedVariable)
        assert on_host == (device_set.kind == "cpu"), dtype
    for value in (np.float32(1), np.int64(1), 1.5, np.zeros(2, "complex64")):
        assert "GpuArray" not in type(theano.shared(value)).__name__


@pytest.mark.parametrize("dtype", ALL)
def test_values_are_broadcast_set_and_read(synk, n, place, dtype):
    for shape in ((2, 3), (5,), (), (2, 1, 2, 3)):
        variable, held = spread(synk, n, values(dtype, shape), place)
        ranks_have(synk, n, variable, held)
        assert {str(got.dtype) for got in on_all(synk, n, variable)} == {dtype}
        synk.broadcast(variable)
        ranks_have(synk, n, variable, held[0])
        other = values(dtype, shape, seed=5)
        synk.broadcast(variable, other)
        ranks_have(synk, n, variable, other)
        synk.broadcast(variable, synk.data(held[-1]))
        ranks_have(synk, n, variable, held[-1])
        still_there(variable, place)


@pytest.mark.parametrize("dtype", ALL)
def test_rows_are_scattered_and_gathered(synk, n, place, dtype):
    variable = shared(values(dtype, (1, 3)), place)
    for count in (4 * n, 4 * n + 1, 2 * n - 1):
        value = values(dtype, (count, 3), seed=count)
        for source in (value, synk.data(value), value[::-1].copy()[::-1]):
            synk.scatter(variable, source)
            lengths = tuple(len(part) for part in np.array_split(value, n))
            assert synk.get_lengths(variable) == lengths
            assert synk.get_shapes([variable]) == (tuple((k, 3) for k in lengths),)
            gathered = synk.gather(variable, nd_up=0)
            assert str(gathered.dtype) == dtype
            np.testing.assert_array_equal(gathered, value)
    still_there(variable, place)


@pytest.mark.parametrize("dtype", ALL)
def test_values_of_other_shapes_on_each_rank_are_gathered_right(synk, n, place, dtype):
    variable = shared(values(dtype, (1, 2)), place)
    # Longest in the middle; the second rank's shorter than the first's.
    held = [values(dtype, (1 + (5 * r + 3) % 7, 2), seed=r) for r in range(n)]
    for rank, value in enumerate(held):
        synk.set_value(rank, variable, value)
    assert synk.get_shapes(variable) == tuple(value.shape for value in held)
    whole = np.concatenate(held)
    np.testing.assert_array_equal(synk.gather(variable, nd_up=0), whole)
    ranks_have(synk, n, variable, held)
    if n > 1:
        with pytest.raises(ValueError, match=r"\(4, 2\)"):
            synk.gather(variable)
        with pytest.raises(ValueError, match="do not fit together"):
            synk.all_reduce(variable, op="max")
    synk.all_gather(variable)
    ranks_have(synk, n, variable, whole)
    assert {str(got.dtype) for got in on_all(synk, n, variable)} == {dtype}
    still_there(variable, place)


@pytest.mark.parametrize("dtype", [*FLOATS, *INTEGERS])
def test_reductions_are_those_of_numpy(synk, n, place, dtype):
    ops = NUMPY if dtype in FLOATS else ["sum", "max", "min", "prod"]
    for shape in ((2, 3), (), (257,), (2, 1, 2, 3)):
        for op in ops:
            variable, held = spread(synk, n, values(dtype, shape), place)
            want = expected(op, held)
            same(synk.reduce(variable, op=op, in_place=False), want, dtype, op)
            ranks_have(synk, n, variable, held)
            assert synk.reduce(variable, op=op) is None
            same(variable.get_value(), want, dtype, op)
            ranks_have(synk, n, variable, [variable.get_value(), *held[1:]])
            synk.set_value(0, variable, held[0])
            assert synk.all_reduce(variable, op=op) is None
            ranks_have(synk, n, variable, want, dtype)
            ranks_have(synk, n, variable, variable.get_value())
            still_there(variable, place)


@pytest.mark.parametrize("dtype", FLOATS)
def test_weighted_averages(synk, n, place, dtype):
    variable, held = spread(synk, n, values(dtype, (3, 2)), place)
    weights = [rank + 1.0 for rank in range(n)]
    want = np.average([exact(value) for value in held], axis=0, weights=weights)
    synk.all_reduce(variable, weights=weights)
    ranks_have(synk, n, variable, want, dtype)
    if n > 1:
        # A rank of weight 0 gives nothing, whatever it holds, and gets the result.
        weights[0] = 0.0
        for rank, value in enumerate(held):
            synk.set_value(rank, variable, value if rank else np.full_like(value, np.nan))
        want = np.average([exact(value) for value in held[1:]], axis=0, weights=weights[1:])
        synk.all_reduce(variable, weights=weights)
        ranks_have(synk, n, variable, want, dtype)


def test_lists_of_variables_of_all_kinds_at_once(synk, n, device_set):
    places = ["host"] if device_set.kind == "cpu" else ["device", "host"]
    kinds = [("float32", (2, 3)), ("float64", (4,)), ("float16", (3, 1)), ("int32", (5,)),
             ("float32", (1, 2, 2)), ("uint8", (2, 2)), ("float32", ())]  # fmt: skip
    variables, helds = [], []
    for number, (dtype, shape) in enumerate(kinds):
        place = places[number % len(places)]
        variable, held = spread(synk, n, values(dtype, shape, number), place, f"v{number}")
        variables.append(variable)
        helds.append(held)
    for op in ("sum", "max"):
        for result, held in zip(synk.reduce(variables, op=op, in_place=False), helds):
            same(result, expected(op, held), str(held[0].dtype), op)
    for result, held in zip(synk.gather(variables), helds):
        np.testing.assert_array_equal(result, np.stack(held))
    synk.all_reduce(variables, op="sum")
    for variable, held in zip(variables, helds):
        ranks_have(synk, n, variable, expected("sum", held), str(held[0].dtype))
    synk.broadcast(variables, [held[-1] for held in helds])
    floats = [v for v in variables if v.dtype.startswith("float")]
    synk.all_reduce(floats, op="avg")
    for variable, held in zip(variables, helds):
        ranks_have(synk, n, variable, exact(held[-1]), str(held[0].dtype))
    with_rows = [v for v in variables if v.ndim and not v.broadcastable[0]]
    chosen = [held for v, held in zip(variables, helds) if v in with_rows]
    synk.set_value(0, with_rows, [held[0] for held in chosen])
    synk.all_gather(with_rows)
    for variable, held in zip(with_rows, chosen):
        ranks_have(synk, n, variable, np.concatenate([held[0]] + [held[-1]] * (n - 1)))


@pytest.mark.parametrize("layout", ["transposed", "every other", "fortran"])
def test_values_that_are_not_contiguous(synk, n, place, layout):
    base = values("float32", (4, 6))
    form = {
        "transposed": lambda a: a.T,
        "every other": lambda a: a[:, ::2],
        "fortran": lambda a: a,
    }[layout]
    x = T.matrix("x", dtype="float32")
    variable = shared(np.zeros((1, 1), "float32"), place)
    laid = np.asfortranarray(base) if layout == "fortran" else base
    synk.broadcast(variable, form(laid))
    ranks_have(synk, n, variable, form(base))
    variable.set_value(form(laid), borrow=True)
    synk.broadcast(variable)
    ranks_have(synk, n, variable, form(base))
    f = synk.function([], bcast_inputs=[x], updates=[(variable, form(x))])
    f(laid)
    np.testing.assert_array_equal(synk.gather(variable), np.stack([form(base)] * n))
    np.testing.assert_array_equal(synk.gather(variable, nd_up=0), np.concatenate([form(base)] * n))
    synk.all_reduce(variable, op="sum")
    ranks_have(synk, n, variable, n * exact(form(base)), "float32")
    f(laid)
    same(synk.reduce(variable, op="avg", in_place=False), exact(form(base)), "float32")
    synk.all_gather(variable)
    ranks_have(synk, n, variable, np.concatenate([form(base)] * n))
    total = synk.function([], (variable.sum(), "sum"))
    same(total(), n * n * exact(form(base)).sum())


@pytest.mark.parametrize("op", ["sum", "avg", "max"])
def test_values_that_are_parts_of_a_vector(synk, n, place, op):
    """As `flat_updates` leaves them: all but the first begin in the middle of their memory."""
    bases = [values("float32", shape) for shape in [(4, 8), (32,), (5, 3)]]
    variables = [shared(base, place) for base in bases]
    move = synk.function([], updates=flat_updates([(v, v + 1) for v in variables], least=2))
    read = synk.function([], [(v * 1, "gather") for v in variables])
    moved = [exact(base + 1) for base in bases]

    def parts():
        synk.broadcast(variables, bases)
        move()
        held = [v.get_value(borrow=True, return_internal_type=True) for v in variables]
        assert place == "host" or [array.offset for array in held] == [0, 128, 256]

    parts()
    for variable, want in zip(variables, moved):
        np.testing.assert_array_equal(synk.gather(variable), np.stack([want] * n))
    for got, want in zip(read(), moved):
        np.testing.assert_array_equal(got, np.concatenate([want] * n))
    synk.broadcast(variables)
    for variable, want in zip(variables, moved):
        ranks_have(synk, n, variable, want)
    parts()
    synk.all_reduce(variables, op=op)
    for variable, want in zip(variables, moved):
        ranks_have(synk, n, variable, want * (n if op == "sum" else 1), "float32")
    parts()
    for got, want in zip(synk.reduce(variables, op=op, in_place=False), moved):
        same(got, want * (n if op == "sum" else 1), "float32")


def test_large_values(synk, n, place):
    size = 3_000_017
    variable = shared(np.zeros(size, "float32"), place)
    base = (np.arange(size) % 251).astype("float32")
    for rank in range(n):
        synk.set_value(rank, variable, base + rank)
    synk.all_reduce(variable, op="avg")
    ranks_have(synk, n, variable, base.astype("float64") + (n - 1) / 2, "float32")
    synk.all_gather(variable)
    assert synk.get_lengths(variable) == (n * size,) * n


@pytest.mark.parametrize("dtype", ALL)
def test_digests_differ_by_one_element(synk, place, dtype):
    """They are computed where the values lie, in C order."""
    for shape in ((), (3,), (7, 5, 2), (300, 1001)):
        value = values(dtype, shape)
        variable = shared(value, place)
        first = digest(value_of(variable))
        for index in {(0,) * len(shape), tuple(length - 1 for length in shape)}:
            other = value.copy()
            other[index] = value[index] == 0
            for given, is_same in ((other, False), (value, True)):
                variable.set_value(given)
                assert (digest(value_of(variable)) == first) == is_same
    whole = values(dtype, (9,))[2:8].reshape(3, 2).T
    turned, other = (shared(np.ones((2, 3), dtype), place) for _ in range(2))
    turned.set_value(whole)
    other.set_value(np.ascontiguousarray(whole))
    assert digest(value_of(turned)) == digest(value_of(other))
