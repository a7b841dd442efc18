"""What `function()` takes, and what it refuses."""

from __future__ import annotations

from collections import OrderedDict

import numpy as np
import pytest
import theano
import theano.tensor as T

from synk_theano._graph.spec import make_spec
from synk_theano.exceptions import OpError, SpecError


@pytest.fixture
def x():
    return T.matrix("x")


@pytest.fixture
def counter():
    return theano.shared(np.asarray(0), name="counter")


@pytest.fixture
def weight():
    return theano.shared(np.zeros(3), name="weight")


def test_outputs_in_all_forms(x):
    mean, total = x.mean(), x.sum()
    assert make_spec([x]).returns == "none"
    assert make_spec([x], mean).output_ops == ("avg",)
    assert make_spec([x], (mean, "max")).returns == "single"
    assert make_spec([x], (mean, None)).output_ops == (None,)
    spec = make_spec([x], [mean, (total, "c_sum"), (total, "gather")])
    assert (spec.returns, spec.output_ops) == ("list", ("avg", "sum", "gather"))
    assert make_spec([x], (mean, total)).returns == "list"


def test_updates_in_all_forms(x, weight, counter):
    pairs = make_spec([x], updates=[(weight, weight + 1), (counter, counter + 1)]).updates
    assert [op for _, _, op in pairs] == ["avg", "last"]
    assert make_spec([x], updates=[(weight, weight + 1, "sum")]).updates[0][2] == "sum"
    mapping = OrderedDict([(weight, weight + 1)])
    assert make_spec([x], updates=mapping).updates[0][0] is weight
    assert make_spec([x], updates={counter: counter + 1}).updates[0][0] is counter


@pytest.mark.parametrize("op", ["mean", "AVG", "c_", ""])
def test_unknown_ops_are_refused(x, op):
    with pytest.raises(OpError, match="expected one of 'avg', 'sum'"):
        make_spec([x], [(x.mean(), op)])


def test_averages_of_integers_are_refused(x, counter):
    with pytest.raises(TypeError, match="an average of integers is no integer"):
        make_spec([x], T.cast(x.sum(), "int64"))
    with pytest.raises(SpecError, match="cast the variable"):
        make_spec([x], updates=[(counter, counter + 1, "avg")])
    with pytest.raises(SpecError, match="bool"):
        make_spec([x], (T.gt(x, 0).any(), "sum"))
    make_spec([x], (T.cast(x.sum(), "int64"), "sum"))


def test_wrong_forms_are_refused(x, weight):
    mean = x.mean()
    with pytest.raises(SpecError, match="expected a list or tuple"):
        make_spec(x, mean)
    with pytest.raises(SpecError, match="implicit inputs"):
        make_spec([weight], mean)
    with pytest.raises(SpecError, match="expected a Theano variable"):
        make_spec([3.0], mean)
    with pytest.raises(SpecError, match="bcast_inputs"):
        make_spec([T.scalar("a")], mean)
    with pytest.raises(SpecError, match="expected a Theano variable"):
        make_spec([x], [3])
    with pytest.raises(SpecError, match=r"of type dict, .* give list\(d.values\(\)\)"):
        make_spec([x], {"mean": mean})
    with pytest.raises(SpecError, match=r"keyword argument 'update'; did you mean updates="):
        make_spec([x], mean, update=[])
    with pytest.raises(SpecError, match=r"argument 'bogus', expected one of .*'sliceable_shareds'"):
        make_spec([x], mean, bogus=1)
    with pytest.raises(SpecError, match="expected a Theano shared variable"):
        make_spec([x], updates=[(x, x)])
    with pytest.raises(SpecError, match="shared variable, new value"):
        make_spec([x], updates=[(weight,)])
    with pytest.raises(SpecError, match="replacement"):
        make_spec([x], givens=[(x,)])
    with pytest.raises(SpecError, match="value or an update"):
        make_spec([theano.In(x, value=np.zeros((2, 2)))], mean)
    with pytest.raises(SpecError, match="same memory"):
        make_spec([theano.In(x, mutable=True)], mean)


def test_sliceables_that_cannot_be_sliced_are_refused(x, weight, counter):
    with pytest.raises(SpecError, match="shared variable"):
        make_spec([x], x.mean(), sliceable_shareds=[x])
    with pytest.raises(SpecError, match="no rows"):
        make_spec([x], x.mean(), sliceable_shareds=[counter])
    with pytest.raises(SpecError, match="replaced in givens"):
        make_spec([x], x.mean(), givens=[(weight, weight * 2)], sliceable_shareds=[weight])
    with pytest.raises(SpecError, match="updated"):
        make_spec([x], updates=[(weight, weight * 2)], sliceable_shareds=[weight])
