"""Verdicts on whether outputs are exact on any split of the rows, and the proof of each by numbers.

Every graph of the table is also computed by the plain engine, on all rows and on uneven parts, and
the parts are put together by NumPy: "exact" has to mean equal, and "wrong" different.
"""

from __future__ import annotations

import contextlib
import os
import warnings
from collections import Counter
from typing import Any

import numpy as np
import pytest
from _check_cases import (
    CASES,
    FLOAT,
    OPS,
    SUB,
    b,
    c,
    combined,
    has_convolutions,
    is_exact,
    kinds_of,
    loss,
    mask,
    q,
    scattered,
    u,
    v,
    values_of,
    w,
    x,
    y,
    z,
    zero,
)

from synk_core._graph.rowwise.check import check_spec, describe, warn_of_wrong
from synk_core._graph.rowwise.walk import FAILED
from synk_core._graph.spec import make_spec
from synk_core.exceptions import DecompositionWarning
from synk_core.in_graph import all_reduce
from synk_testing.engine import IS_THEANO, STREAMS, T, change_flags, engine

if IS_THEANO:
    from _check_cases_theano import CASES as OWN_CASES
else:
    from _check_cases_pytensor import CASES as OWN_CASES

ALL = os.environ.get("SYNK_TESTS") == "all"
CASES = [*CASES, *OWN_CASES]


def _verdict(output: Any, op: Any) -> Any:
    spec = make_spec(scattered, [(output, op)], bcast_inputs=[c], sliceable_shareds=[q])
    (verdict,) = check_spec(spec)
    return verdict


def test_verdicts_are_right():
    for case in CASES:
        verdict = _verdict(case.output, case.op)
        assert verdict.verdict == case.verdict, (case.name, verdict.reason)
        assert case.says in verdict.reason, case.name


# ---- the proof ----------------------------------------------------------------------------------


def _proved_by_day():
    """For each operation the first case with it; convolutions exist in C only, which is slow."""
    chosen, seen = [], set()
    for case in CASES:
        kinds = kinds_of(case.output)
        if kinds - seen and (case.name == "filtered images" or not has_convolutions(case.output)):
            seen |= kinds
            chosen.append(case)
    return chosen


BY_DAY = _proved_by_day()


def ops_of(output: Any) -> Any:
    """The ops that may be declared for an output."""
    if output.dtype == "bool":
        return "max", "min", "gather"
    return OPS if output.dtype.startswith("float") else OPS[1:]


@pytest.mark.parametrize(
    "case",
    [
        pytest.param(case, id=case.name, marks=[pytest.mark.nightly] * (case not in BY_DAY))
        for case in CASES
    ],
)
def test_verdicts_on_every_op_agree_with_numbers(case):
    whole, parts = values_of(case.output)
    for op in ops_of(case.output):
        verdict = _verdict(case.output, op)
        assert FAILED not in verdict.reason
        if verdict.verdict != "unknown":
            expected = "exact" if is_exact(whole, parts, op) else "wrong"
            assert verdict.verdict == expected, (op, verdict.reason)


LEAVES = [x, v, z, w, b, c, q, zero, mask]
LEAVES += [case.output for case in CASES if not has_convolutions(case.output)]
ACTS = [T.add, T.sub, T.mul, T.dot, T.maximum, T.minimum]
ACTS += [lambda one, other: T.switch(T.gt(one, 0), one, other)]
ACTS += [lambda one, other: T.concatenate([one, other]), lambda one, other: one[other]]
ACTS += [
    lambda one, _other, act=act: act(one)
    for act in (
        *(T.tanh, abs, T.neg, T.ceil, T.transpose, lambda a: T.cumsum(a, axis=0)),
        *(lambda a: a.sum(axis=0), lambda a: a.mean(axis=0), lambda a: a.max(axis=0)),
        *(lambda a: a.min(axis=-1), lambda a: a.sum(), lambda a: a.mean(), lambda a: a.std(axis=0)),
        *(lambda a: a[::-1], lambda a: a[zero:], lambda a: a[:, :2], lambda a: a[0]),
        *(lambda a: a / x.shape[0], lambda a: a * v.shape[0], lambda a: T.inc_subtensor(a[0], 1)),
        *(T.zeros_like, lambda a: T.grad(a.sum(), x), lambda a: T.grad(a.mean(), w)),
    )
]


def draw_graph(rng: Any) -> Any:
    """A few operations of the variables and of the table's graphs."""
    made = [LEAVES[rng.randint(len(LEAVES))] for _ in range(2)]
    for _ in range(rng.randint(2, 8)):
        act = ACTS[rng.randint(len(ACTS))]
        one, other = made[-1], made[rng.randint(len(made))]
        with contextlib.suppress(Exception):  # it does not fit
            made.append(act(one, other))
    return made[-1]


@pytest.mark.parametrize("seed", range(5 if ALL else 1))
def test_random_graphs_are_never_called_exact_when_they_are_not(seed):
    rng, counts = np.random.RandomState(seed), Counter()
    for _ in range(200 if ALL else 60):
        graph = draw_graph(rng)
        try:
            whole, parts = values_of(graph)
        except AssertionError:
            continue  # not even the whole can be computed
        for op in ops_of(graph):
            verdict = _verdict(graph, op)
            counts[verdict.verdict] += 1
            assert FAILED not in verdict.reason, verdict.reason
            # A call that raises gives no wrong number.
            if verdict.verdict == "exact" and combined(parts, op) is not None:
                assert is_exact(whole, parts, op, 1e-6), (op, verdict.reason, graph)
    assert min(counts[verdict] for verdict in ("exact", "wrong", "unknown")) > 10, counts


# ---- what belongs to a function besides its outputs ---------------------------------------------


def test_givens_sliceables_and_inputs_without_rows():
    r, s, row = T.dmatrix("r"), T.dmatrix("s"), T.drow("row")
    centred, squares = x - x.mean(axis=0), (T.sqr(r).sum(), "sum")
    both, declared = [(r, T.tanh(x)), (s, r - r.mean(axis=0))], engine.In(x, borrow=True)
    of_q, total, spread = (T.sqr(q).mean(), "avg"), (x.sum(), "sum"), (x.std(), None)
    for inputs, output, more, expected, says in (
        ([x], squares, {"givens": {r: x}}, "exact", ""),
        ([x], squares, {"givens": {r: q}, "sliceable_shareds": [q]}, "exact", ""),
        ([x], squares, {"givens": {r: u}}, "wrong", ""),
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


# ---- random streams -----------------------------------------------------------------------------


def test_draws_for_each_row_are_row_wise_and_do_not_hide_a_mixed_result():
    for streams in STREAMS.values():
        srng = streams(3)
        dropped = x * T.cast(srng.uniform(size=x.shape) < 0.5, FLOAT)
        noisy = x + srng.normal(size=x.shape)
        outputs = [T.tanh(dropped.dot(w)).mean(), (dropped, "gather"), noisy.mean(axis=0)]
        *verdicts, mixed = check_spec(make_spec([x], [*outputs, dropped.std(axis=0)]))
        assert [verdict.verdict for verdict in verdicts] == ["exact"] * 3
        assert all("in distribution" in verdict.reason for verdict in verdicts)
        assert mixed.verdict == "wrong"


# ---- updates ------------------------------------------------------------------------------------


def test_updates_from_a_ranks_own_rows():
    g, count, old = (engine.shared(np.zeros(shape)) for shape in ((3, 3), (), (3,)))
    gradient = T.grad(loss, w)
    for target, value, expected in (
        (w, w - 0.1 * gradient, "exact"),
        (g, 0.9 * g + gradient, "exact"),
        (count, count + x.sum() - v.sum(), "exact"),
        (count, count + x.shape[0], "exact"),
        (old, T.maximum(old, x.max(axis=0)), "exact"),
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
    for value, expected in ((squares, ("exact", False)), (w + 1, ("unknown", True))):
        given = [(w, value, "sum")] if value is not squares else [(w, value)]
        (verdict,) = check_spec(make_spec([x, y], updates=given)).updates
        assert (verdict.verdict, verdict.differs) == expected, verdict.reason
    srng = STREAMS["numpy"](1)
    output = srng.normal(size=(3,)).sum() + x.mean()
    assert check_spec(make_spec([x], [output], updates=srng.updates())).updates == []


# ---- reports, users' operations, big graphs -----------------------------------------------------


def test_a_report_names_the_node_its_line_and_the_cure():
    with change_flags(**{"traceback.limit" if IS_THEANO else "traceback__limit": 8}):
        spread = x.std(axis=0)
    verdicts = check_spec(make_spec([x], [spread, x.mean(), (x.mean(), "sum")]))
    report = describe(verdicts)
    assert [verdict.verdict for verdict in verdicts] == ["wrong", "exact", "wrong"]
    assert f"{SUB} at test_check.py:" in report
    assert "exact    [1] mean, op 'avg'" in report
    assert report.count("To be exact") + report.count("to be exact") == 2
    assert describe([]) == "no outputs: nothing to check"


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


def test_what_users_define_is_unknown_where_rows_meet_it():
    derived = OwnSoftmax(**({} if IS_THEANO else {"axis": (1,)}))(x)
    outputs = [(Own()(x).sum(), "sum"), (derived, "gather"), Own()(w).sum() + x.mean()]
    verdicts = check_spec(make_spec([x], outputs))
    assert [verdict.verdict for verdict in verdicts] == ["unknown", "unknown", "exact"]
    assert "Own" in verdicts[0].reason


def test_a_graph_deeper_than_the_recursion_limit():
    value = x
    for _ in range(800):
        value = T.tanh(value) + 1
    outputs = [value.mean(), (value.std(), "avg")]
    verdicts = check_spec(make_spec([x], outputs))
    assert [verdict.verdict for verdict in verdicts] == ["exact", "wrong"]
