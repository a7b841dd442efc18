"""What `function()` takes, and what it refuses."""

from __future__ import annotations

import numpy as np
import pytest

from synk_core._graph.spec import make_spec
from synk_core.engine import TITLE
from synk_core.exceptions import OpError, SpecError
from synk_testing.engine import T, engine

LAYER = type("DenseLayer", (), {"get_output_for": None})()
x, counter = T.matrix("x"), engine.shared(np.asarray(0), name="counter")
weight = engine.shared(np.zeros(3), name="weight")


def test_outputs_in_all_forms():
    mean, total = x.mean(), x.sum()
    assert make_spec([x]).returns == "none"
    assert make_spec([x], mean).output_ops == ("avg",)
    assert make_spec([x], (mean, "max")).returns == "single"
    assert make_spec([x], (mean, None)).output_ops == (None,)
    spec = make_spec([x], [mean, (total, "c_sum"), (total, "gather")])
    assert (spec.returns, spec.output_ops) == ("list", ("avg", "sum", "gather"))
    assert make_spec([x], (mean, total)).returns == "list"


def test_updates_in_all_forms():
    pairs = make_spec([x], updates=[(weight, weight + 1), (counter, counter + 1)]).updates
    assert [op for _, _, op in pairs] == ["avg", "last"]
    assert make_spec([x], updates=[(weight, weight + 1, "sum")]).updates[0][2] == "sum"
    ((target, new, _),) = make_spec([x], updates={counter: 2}).updates
    assert (target, new.type) == (counter, counter.type)


def test_unknown_ops_are_refused():
    for op in ("mean", "AVG", "c_", ""):
        with pytest.raises(OpError, match="expected one of 'avg', 'sum'"):
            make_spec([x], [(x.mean(), op)])


def test_averages_of_integers_are_refused():
    total = T.cast(x.sum(), "int64")
    for words, outputs, updates in (
        ("an average of integers is no integer", total, []),
        ("cast the variable", None, [(counter, counter + 1, "avg")]),
        ("bool", (T.gt(x, 0).any(), "sum"), []),
    ):
        with pytest.raises(SpecError, match=words) as caught:
            make_spec([x], outputs, updates=updates)
        assert isinstance(caught.value, TypeError)
    make_spec([x], (total, "sum"))


def test_wrong_forms_are_refused():
    mean = x.mean()
    stateful = engine.In(x, update=x + 1)
    for words, inputs, outputs, options in (
        ("expected a list or tuple", x, mean, {}),
        ("implicit inputs", [weight], mean, {}),
        (f"expected a {TITLE} variable", [3.0], mean, {}),
        ("bcast_inputs", [T.scalar("a")], mean, {}),
        (f"expected a {TITLE} variable", [x], [3], {}),
        (r"of type dict, .* give list\(d.values\(\)\)", [x], {"mean": mean}, {}),
        (r"layer's output is lasagne\.layers\.get_output\(", [x], LAYER, {}),
        ("keyword argument 'update'; did you mean updates=", [x], mean, {"update": []}),
        ("argument 'bogus', expected one of .*'sliceable_shareds'", [x], mean, {"bogus": 1}),
        (f"expected a {TITLE} shared variable", [x], None, {"updates": [(x, x)]}),
        ("shared variable, new value", [x], None, {"updates": [(weight,)]}),
        ("replacement", [x], None, {"givens": [(x,)]}),
        ("value or an update", [stateful], mean, {}),
        ("same memory", [engine.In(x, mutable=True)], mean, {}),
    ):
        with pytest.raises(SpecError, match=words):
            make_spec(inputs, outputs, **options)


def test_sliceables_that_cannot_be_sliced_are_refused():
    for words, variable, options in (
        ("shared variable", x, {}),
        ("no rows", counter, {}),
        ("replaced in givens", weight, {"givens": [(weight, weight * 2)]}),
        ("updated", weight, {"updates": [(weight, weight * 2)]}),
    ):
        with pytest.raises(SpecError, match=words):
            make_spec([x], x.mean(), sliceable_shareds=[variable], **options)
