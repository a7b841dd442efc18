"""Verdicts on whether outputs are exact on any split of the rows, each proved by numbers."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import pytest
from _check_cases import CASES, OPS, c, is_exact, loss, q, scattered, v, values_of, w, x, y

from synk_core._graph.rowwise.check import Verdicts, check_spec, warn_of_wrong
from synk_core._graph.rowwise.walk import FAILED
from synk_core._graph.spec import make_spec
from synk_core.exceptions import DecompositionWarning
from synk_core.in_graph import all_reduce
from synk_testing.engine import IS_THEANO, STREAMS, T, change_flags, engine


def _verdict(output: Any, op: Any) -> Any:
    spec = make_spec(scattered, [(output, op)], bcast_inputs=[c], sliceable_shareds=[q])
    return check_spec(spec)[0]


@pytest.mark.parametrize("case", CASES, ids=[case.text for case in CASES])
def test_verdicts_are_right_and_agree_with_numbers_on_every_op(case):
    verdict = _verdict(case.output, case.op)
    assert verdict.verdict == case.verdict, verdict.reason
    assert case.says in verdict.reason
    # Convolutions exist in C only.
    whole, parts = values_of(case.output, in_c="conv2d" in case.text or "maps" in case.text)
    for op in ("max", "min", "gather") if case.output.dtype == "bool" else OPS:
        if op == "avg" and not case.output.dtype.startswith("float"):
            continue
        verdict = _verdict(case.output, op)
        assert FAILED not in verdict.reason
        if verdict.verdict != "unknown":
            expected = "exact" if is_exact(whole, parts, op) else "wrong"
            assert verdict.verdict == expected, (op, verdict.reason)


def test_givens_sliceables_and_inputs_without_rows():
    r, s, row = T.dmatrix("r"), T.dmatrix("s"), T.drow("row")
    centred, squares = x - x.mean(axis=0), (T.sqr(r).sum(), "sum")
    both, declared = [(r, T.tanh(x)), (s, r - r.mean(axis=0))], engine.In(x, borrow=True)
    of_q, total, spread = (T.sqr(q).mean(), "avg"), (x.sum(), "sum"), (x.std(), None)
    for inputs, output, more, expected, says in (
        ([x], squares, {"givens": {r: x}}, "exact", ""),
        ([x], squares, {"givens": {r: q}, "sliceable_shareds": [q]}, "exact", ""),
        ([x], squares, {"givens": {r: w}}, "wrong", ""),
        ([x], squares, {"givens": {r: centred}}, "wrong", ""),
        ([x], (s.mean(), "avg"), {"givens": both}, "wrong", ""),
        ([x], (T.sqr(centred).mean(), "avg"), {"givens": [(centred, T.sqr(x))]}, "exact", ""),
        ([x], of_q, {}, "exact", "does not depend on the rows"),
        ([x], (q, "gather"), {}, "wrong", ""),
        ([], of_q, {"sliceable_shareds": [q]}, "exact", "a mean over rows"),
        ([v], total, {"bcast_inputs": [x]}, "wrong", "once for each rank"),
        ([x], spread, {}, "exact", ""),
        ([declared], total, {}, "exact", ""),
        ([row], (row.sum(), "sum"), {}, "unknown", ""),
    ):
        (verdict,) = check_spec(make_spec(inputs, [output], **more))
        assert verdict.verdict == expected, (inputs, output, more, verdict.reason)
        assert says in verdict.reason
    verdicts = check_spec(make_spec([], [(x.std(), op) for op in OPS], bcast_inputs=[x]))
    assert [verdict.verdict for verdict in verdicts] == ["exact"] * len(OPS)


def test_draws_for_each_row_are_row_wise_and_do_not_hide_a_mixed_result():
    for name, streams in STREAMS.items():
        srng = streams(3)
        dropped = x * T.cast(srng.uniform(size=x.shape) < 0.5, "float64")
        noisy = x + srng.normal(size=x.shape)
        outputs = [T.tanh(dropped.dot(w)).mean(), (dropped, "gather"), noisy.mean(axis=0)]
        *verdicts, mixed = check_spec(make_spec([x], [*outputs, dropped.std(axis=0)]))
        # MRG's normal draws are made of uniform ones of another shape.
        known = verdicts[:2] if name == "mrg" else verdicts
        assert all(verdict.verdict == "exact" for verdict in known)
        assert all("in distribution" in verdict.reason for verdict in known)
        assert all(verdict.verdict == "unknown" for verdict in verdicts[len(known) :])
        assert mixed.verdict == "wrong"


def test_updates_from_a_ranks_own_rows():
    g, count, old = (engine.shared(np.zeros(shape)) for shape in ((3, 3), (), (3,)))
    gradient = T.grad(loss, w)
    for target, value, expected in (
        (w, w - 0.1 * gradient, "exact"),
        (g, 0.9 * g + gradient, "exact"),
        (count, count + x.sum() - v.sum(), "exact"),
        (count, count + x.shape[0], "exact"),
        (old, T.maximum(old, x.max(axis=0)), "unknown"),
        (g, 0.9 * g + T.sqr(gradient), "wrong"),
        (count, 0.9 * count + x.sum(), "wrong"),
        (old, x.std(axis=0), "wrong"),
        (old, T.sort(x, axis=0)[0], "unknown"),
    ):
        (verdict,) = check_spec(make_spec([x, y, v], updates=[(target, value)])).updates
        assert (verdict.verdict, verdict.differs) == (expected, True), verdict.reason
        # The whole batch on each rank: all have the same.
        whole = make_spec([], updates=[(target, value)], bcast_inputs=[x, y, v])
        (verdict,) = check_spec(whole).updates
        assert (verdict.verdict, verdict.differs) == ("exact", False)
    plain, squares = (w, w - gradient), (g, g + T.sqr(gradient))
    with pytest.warns(DecompositionWarning, match="update.*\n.*make_train_function"):
        warn_of_wrong(make_spec([x, y], loss, updates=[plain, squares]))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warn_of_wrong(make_spec([x, y], loss, updates=[plain]))


def test_updates_that_are_reduced_in_the_graph_are_the_same_on_all_ranks():
    squares = all_reduce(T.grad(loss, w), "avg") ** 2
    for update, *expected in (((w, squares), "exact", False), ((w, w + 1, "sum"), "unknown", True)):
        (verdict,) = check_spec(make_spec([x, y], updates=[update])).updates
        assert [verdict.verdict, verdict.differs] == expected, verdict.reason
    srng = STREAMS["numpy"](1)
    output = srng.normal(size=(3,)).sum() + x.mean()
    assert check_spec(make_spec([x], [output], updates=srng.updates())).updates == []


def test_a_report_names_the_node_its_line_and_the_cure():
    with change_flags(**{"traceback.limit" if IS_THEANO else "traceback__limit": 8}):
        spread = x.std(axis=0)
    verdicts = check_spec(make_spec([x], [spread, x.mean(), (x.mean(), "sum")]))
    report = str(verdicts)
    assert [verdict.verdict for verdict in verdicts] == ["wrong", "exact", "wrong"]
    assert ("{sub} at" if IS_THEANO else "Sub at") + " test_check.py:" in report
    assert "exact    [1] mean, op 'avg'" in report
    assert report.count("To be exact") + report.count("to be exact") == 2
    assert str(Verdicts()) == "no outputs: nothing to check"


class Own(engine.Op if IS_THEANO else engine.graph.op.Op):
    """A user's operation: nobody knows what it does."""

    __props__ = ()

    def make_node(self, given):
        apply = engine.Apply if IS_THEANO else engine.graph.basic.Apply
        return apply(self, [given], [given.type()])

    def perform(self, node, inputs, outputs):
        outputs[0][0] = inputs[0] * 2


class OwnSoftmax(T.nnet.nnet.Softmax if IS_THEANO else T.special.Softmax):
    """Derived from an operation of the engine: it may do anything all the same."""


def test_operations_of_users_are_unknown_if_they_take_rows():
    derived = OwnSoftmax(**({} if IS_THEANO else {"axis": (1,)}))(x)
    outputs = [(Own()(x).sum(), "sum"), (derived, "gather"), Own()(w).sum() + x.mean()]
    verdicts = check_spec(make_spec([x], outputs))
    assert [verdict.verdict for verdict in verdicts] == ["unknown", "unknown", "exact"]
    assert "Own" in verdicts[0].reason


def test_a_graph_deeper_than_the_recursion_limit():
    value = x
    for _ in range(800):
        value = T.tanh(value) + 1
    verdicts = check_spec(make_spec([x], [value.mean(), (value.std(), "avg")]))
    assert [verdict.verdict for verdict in verdicts] == ["exact", "wrong"]
