"""Functions that are called without Theano's wrapper give what they give with it."""

from __future__ import annotations

import numpy as np
import pytest

from synk_core._graph.fast_call import trusting
from synk_core.engine import machine_of
from synk_testing.engine import IS_THEANO, STREAMS, T, engine, theano_only

x = T.dvector("x")

NIGHTLY = [pytest.param(name, marks=pytest.mark.nightly) for name in ("vm", "cvm_nogc", "c|py")]
MODES = pytest.mark.parametrize("linker", ["cvm", "py", *NIGHTLY])


DESCRIBED = r"Apply node that caused the error|HINT: Set PyTensor"


def mode(linker):
    return engine.compile.mode.Mode(linker=linker, optimizer="fast_run")


def twins(linker, make):
    functions = []
    for _ in range(2):
        x, s = T.dvector("x"), engine.shared(np.arange(3.0), "s")
        outputs, updates = make(x, s)
        functions.append((engine.function([x], outputs, updates=updates, mode=mode(linker)), s))
    return functions


@MODES
def test_results_and_updates_are_the_wrappers(linker):
    (plain, s), (other, t) = twins(linker, lambda x, s: ([x.sum(), x * 2 + s, s], [(s, s * x + 1)]))
    given = np.array([3.0, -1.0, 2.0])
    call = trusting(other, [given])
    for _ in range(3):
        expected, got = plain(given), call(given)
        assert type(got) is list
        assert len(got) == 3
        for one, two in zip(expected, got):
            np.testing.assert_array_equal(one, two)
        np.testing.assert_array_equal(s.get_value(), t.get_value())
        assert other.input_storage[0].storage[0] is None
        if getattr(machine_of(other), "allow_gc", False):
            assert other.output_storage[0].storage[0] is None


@MODES
def test_errors_name_the_operation_and_leave_the_updated_variable(linker):
    (plain, _), (function, s) = twins(linker, lambda x, s: ([x + s], [(s, s + x)]))
    call = trusting(function, [np.ones(3)])
    with pytest.raises(ValueError, match=DESCRIBED) as expected:
        plain(np.ones(2))
    with pytest.raises(ValueError, match=DESCRIBED) as got:
        call(np.ones(2))
    assert str(got.value).splitlines()[0] == str(expected.value).splitlines()[0]
    np.testing.assert_array_equal(s.get_value(), np.arange(3.0))
    np.testing.assert_array_equal(call(np.ones(3))[0], [1.0, 2.0, 3.0])


def test_unfit_or_unaligned_arrays_go_through_the_wrapper():
    function = engine.function([x], [x * 2], mode=mode("py"))
    call = trusting(function, [np.ones(3, np.float32)])
    assert call is function
    np.testing.assert_array_equal(call(np.ones(3, np.float32))[0], [2.0] * 3)
    crooked = np.frombuffer(bytearray(25), np.float64, count=3, offset=1)
    assert not crooked.flags.aligned
    with pytest.raises(TypeError, match="not aligned"):
        trusting(function, [crooked])(crooked)


@theano_only("inputs with values")
def test_defaults_that_come_back_are_put_back():
    y = engine.In(T.dscalar("y"), value=5.0, name="y")
    function = engine.function([x, y], [x.sum() + y.variable])
    call = trusting(function, [np.ones(2)])
    assert call(np.ones(2), np.asarray(1.0)) == [3.0]
    assert function(np.ones(2)) == [7.0]
    assert call(np.ones(2)) == [7.0]


def test_one_output_that_is_no_list_is_returned_as_the_wrapper_does():
    function = engine.function([x], x.sum())
    assert trusting(function, [np.ones(2)])(np.ones(2)) == 2.0
    if not IS_THEANO:
        return
    named = engine.function([x], {"total": x.sum()})
    assert trusting(named, [np.ones(2)])(np.ones(2)) == {"total": 2.0}


def test_random_streams_go_on():
    drawn = lambda: engine.function([x], [x + STREAMS["numpy"](7).uniform(size=(3,))])  # noqa: E731
    plain, call = drawn(), trusting(drawn(), [np.zeros(3)])
    first, second = call(np.zeros(3))[0], call(np.zeros(3))[0]
    np.testing.assert_array_equal([first, second], [plain(np.zeros(3))[0] for _ in range(2)])
    assert (first != second).any()
