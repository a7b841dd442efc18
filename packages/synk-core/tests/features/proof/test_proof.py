"""Proofs: what is not what one process would compute is found, before anything has changed."""

from __future__ import annotations

import signal
import sys
import threading
import time
import types
import warnings

import numpy as np
import pytest
import scipy.sparse
from _ops import FAST

from synk_core import ProofWarning, Runtime, SynkError, VerifyError, WorkerFailed, in_graph
from synk_core._features.proof.comparing import PreparedProof
from synk_core._features.proof.report import measure
from synk_core.engine import TITLE, Assert
from synk_core.exceptions import InputTypeError, InputValueError, NotExact
from synk_testing.engine import STREAMS, T, as_op, engine, softmax

x = T.matrix("x")


def rows(count, columns=3, dtype="float64", seed=0):
    return np.random.RandomState(seed).uniform(-1, 1, (count, columns)).astype(dtype)


def values_of(runtime, f):
    """Every rank's arrays, as bytes with their form."""
    arrays = [v for v in f.get_shared() if isinstance(v.get_value(borrow=True), np.ndarray)]
    if not arrays:
        return []
    fetched = [runtime.collectives.get_value(rank, arrays) for rank in range(runtime.size)]
    return [(a.dtype, a.shape, a.tobytes()) for ranks in fetched for a in ranks]


def check(runtime, f, *args, **kwargs):
    before, rows_before = values_of(runtime, f), f.rows
    report = f.verify(*args, **kwargs)
    assert values_of(runtime, f) == before
    assert f.rows == rows_before
    return report


def right(runtime, f, *args, **kwargs):
    report = check(runtime, f, *args, **kwargs)
    assert report.ok, str(report)
    return report


def reasons(report):
    return {c.what: c.reason for c in report.comparisons if c.reason}


def wrong(report):
    return {c.what.partition(" (")[0] for c in report.wrong}


@as_op([T.dmatrix], [T.dmatrix])
def opaque(values):
    """The check does not know how this depends on rows."""
    return values.copy()


def for_few_rows(error):
    @as_op([T.dmatrix], [T.dmatrix])
    def few(values):
        if len(values) > 4:
            raise error
        return values

    return few


def spread(z):
    return T.sort(z.dot(z.T), axis=1)[:, -1]


def unlike(runtime, **options):
    """A function of rows that need each other, which stores a gradient."""
    w = engine.shared(np.ones(3), name="w")
    g = engine.shared(np.zeros(3), name="g")
    loss = spread(x * w).mean()
    f = runtime.function(
        [x], loss, updates=[(g, T.grad(loss, w))], name="unlike", **options, **FAST
    )
    return f, w, g


def test_a_call_that_one_process_would_not_make_raises_and_changes_nothing(trio):
    f, _, g = unlike(trio)
    u = engine.shared(np.zeros(3), name="u")
    before = trio.function([], updates=[(u, u + 1)])
    for call in (lambda: f(rows(7)), lambda: trio.step(before, f.delayed(rows(7)))):
        with pytest.raises(NotExact, match="call 1 of 'unlike' on 3 ranks with") as caught:
            call()
        assert wrong(caught.value.report) == {"output 0", "update of g"}
        assert "in one process" in str(caught.value)
        assert f.rows is None
        assert not np.any(trio.collectives.gather([g, u]))
    # One rank has all rows, so this is right; and the next call is due, whatever its number.
    for call in (1, 2):
        assert np.isfinite(f(rows(1)))
        with pytest.raises(NotExact, match=f"call {call + 1} of"):
            f(rows(7))


@pytest.mark.feature("stats")
def test_calls_1_2_4_8_are_proved_unless_known_to_be_exact(pair):
    s = engine.shared(np.zeros(3), name="s")
    open_one = pair.function([x], (opaque(x) * s).sum(axis=1).mean())
    proved = []
    for _ in range(9):
        open_one(rows(4))
        proved.append(open_one.proof.call)
    assert proved == [1, 2, 2, 4, 4, 4, 4, 8, 8]
    with pytest.raises(InputValueError, match="proof_every: got 0"):
        Runtime(2, proof_every=0)
    with Runtime(2, proof_every=3) as runtime:
        f = runtime.function([x], (opaque(x) * s).sum(axis=1).mean())
        assert [(f(rows(4)), f.proof.call)[1] for _ in range(9)] == [1, 2, 2, 4, 4, 4, 7, 7, 7]
    known = pair.function([x], x.mean(), **FAST)
    known(rows(4))
    assert known.proof is None
    with Runtime(1) as alone:
        f, _, _ = unlike(alone)
        assert np.isfinite(f(rows(7)))
        assert f.proof is None
    assert pair.stats()[open_one.label].proof == "call 8"


def test_warnings_in_place_of_errors_or_nothing(pair):
    f, _, g = unlike(pair, proof="warn")
    with pytest.warns(ProofWarning, match="call 1 of function 'unlike'") as caught:
        f(rows(5))
    assert {one.filename for one in caught} == {__file__}
    assert np.any(g.get_value())
    silent, _, _ = unlike(pair, proof=False)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        f(rows(5))  # each difference is said once
        silent(rows(5))
    assert not f.proof.ok
    with pytest.raises(InputValueError, match="proof: got 'perhaps'"):
        Runtime(2, proof="perhaps")


def test_draws_are_proved_with_fixed_values_and_streams_continue(pair):
    stream = [*STREAMS.values()][-1](seed=6)
    mask = stream.uniform(size=x.shape) < 0.7
    noise = engine.shared(np.zeros(()), name="noise")
    outputs = [(opaque(x * mask), "gather"), (x.sum(), "sum")]
    updates = [(noise, STREAMS["numpy"](seed=5).normal(size=(1,)).sum())]
    fine = pair.function([x], outputs, updates=updates, **FAST)
    other = [*STREAMS.values()][-1](seed=6)
    plain = engine.function([x], x * (other.uniform(size=x.shape) < 0.7))
    for _ in range(3):
        np.testing.assert_array_equal(fine(rows(4))[0][:2], plain(rows(4)[:2]))
        assert fine.proof.ok
        assert fine.proof.worst is not None
        report = right(pair, fine, rows(4))  # which takes what is drawn as it comes
        for what in ("output 0", "update of noise"):
            assert reasons(report)[what] == "it draws random numbers"
        assert [c.what for c in report.comparisons if c.difference] == ["output 1"] * 3
    bad = pair.function([x], spread(x * mask).mean(), name="bad", **FAST)
    with pytest.raises(NotExact, match="'bad'"):
        bad(rows(6))


def test_all_rows_in_pieces_where_they_do_not_fit_into_memory(pair):
    hungry = for_few_rows(MemoryError("no room"))
    s = engine.shared(np.ones(()), name="s")
    updates = [(s, s + hungry(x).sum())]
    f = pair.function([x], [(hungry(x).sum(axis=0), "sum"), (hungry(x), "gather")], updates=updates)
    f(rows(8))
    assert (f.proof.ok, f.proof.how) == (True, "5 pieces")
    assert len([c for c in f.proof.comparisons if c.difference]) == 3
    bad = pair.function([x], spread(hungry(x)).mean(), **FAST)
    with pytest.raises(NotExact, match="in 5 pieces"):
        bad(rows(8))


def test_updates_whose_shapes_no_collective_combines_are_not_compared(pair):
    hungry = for_few_rows(MemoryError("no room"))
    wide, long = (engine.shared(np.zeros((0, 0)), name=name) for name in ("wide", "long"))
    f = pair.function([x], updates=[(wide, hungry(x).T), (long, hungry(x))], **FAST)
    for count, how in ((3, "whole"), (8, "5 pieces")):
        report = f.verify(rows(count), num_slices=1)
        assert (report.ok, report.how) == (True, how), str(report)
        reason = reasons(report)["update of wide"]
        assert report.notes == (f"update of wide is not proved: {reason}",)
        assert [c.op for c in report.comparisons if c.difference] == ["gather"]
    f(rows(8))
    assert f.proof.notes == report.notes


def test_flags_that_no_collective_combines(pair):
    b = engine.shared(np.zeros(3, bool), name="b")
    spread_out = T.gt(opaque(x).max(axis=0) - opaque(x).min(axis=0), 1.5)
    f = pair.function([x], updates=[(b, spread_out, "max")], **FAST)
    with pytest.raises(NotExact, match="update of b"):
        f(np.diag([2.0, 2, 2])[[0, 1, 2, 2]] - 1)


def test_a_value_that_ranks_reduce_is_not_the_value_of_one_process(pair):
    w, g = engine.shared(np.ones((2, 3)), name="w"), engine.shared(np.zeros(3), name="g")
    new = in_graph.all_gather(w).sum(axis=0) + 0 * x.sum(axis=0)
    with pytest.raises(NotExact, match="update of g"):
        pair.function([x], updates=[(g, new)], **FAST)(rows(4))


def test_ctrl_c_while_ranks_compare_comes_before_all_rows_are_computed(pair, monkeypatch):
    computed = []

    @as_op([T.dmatrix], [T.dmatrix])
    def noted(values):
        computed.append(len(values))
        return values

    def struck(proof, compare=PreparedProof._compare_code):
        compare(proof)
        signal.raise_signal(signal.SIGINT)

    f = pair.function([x], (noted(x), "gather"))
    with monkeypatch.context() as patch:
        patch.setattr(PreparedProof, "_compare_code", struck)
        with pytest.raises(KeyboardInterrupt):
            f(rows(8))
    assert computed == []
    np.testing.assert_array_equal(f(rows(8)), rows(8))


def test_a_call_that_cannot_be_proved_warns_once_and_is_computed(pair):
    total = in_graph.all_reduce(opaque(x).sum(), "sum")
    for value in (opaque(x), x):  # the graph shows the second to be exact, but for slices
        sliced = pair.function([x], (value * total, "gather"))
        with pytest.warns(ProofWarning, match="not compared: in-graph reductions"):
            sliced(rows(8), num_slices=2)

    choosy = for_few_rows(ArithmeticError("too many"))
    f = pair.function([x], (choosy(x), "gather"), name="choosy")
    with pytest.warns(ProofWarning, match="rows in one process raise ArithmeticError: too many"):
        np.testing.assert_array_equal(f(rows(8)), rows(8))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        f(rows(8))


def test_operations_that_draw_are_not_proved_and_go_on_in_the_master_as_in_serial(pair):
    @as_op([T.dmatrix], [T.dmatrix])
    def noisy(values):
        return values + np.random.rand(len(values), 1)

    f = pair.function([x], (noisy(x), "gather"), **FAST)
    np.random.seed(3)
    with pytest.warns(ProofWarning, match="output 0 is not the same twice in one process"):
        found = f(rows(4))
    np.random.seed(3)
    np.testing.assert_array_equal(found[:2], rows(4)[:2] + np.random.rand(2, 1))


def test_a_proof_is_undone_also_where_values_are_overwritten():
    with Runtime(2, atomic=False) as runtime:
        f, w, g = unlike(runtime)
        with pytest.raises(NotExact):
            f(rows(7))
        assert not np.any(runtime.collectives.gather(g))
        report = f.verify(rows(7))
        assert "output 0" in wrong(report)
        np.testing.assert_array_equal(runtime.collectives.gather(w), np.ones((2, 3)))


def test_replicas_that_differ_are_named_with_the_cause(pair):
    w, v = (engine.shared(np.ones(3), name=name) for name in ("w", "v"))
    f = pair.function([x], x.dot(w * v).mean(), name="reader", **FAST)
    f(rows(4))
    w.get_value(borrow=True)[:] *= 2
    with pytest.raises(NotExact, match=r"w on rank 1: WRONG: .*\(borrow=True\).*broadcast\(w\)"):
        f(rows(4))
    pair.collectives.broadcast(w)
    pair.collectives.set_value(1, v, np.zeros(3))
    cause = r"v on rank 1: WRONG: .*set_value\(\) changed on rank 1 only"
    with pytest.raises(NotExact, match=cause):
        f(rows(4))
    pair.collectives.set_value(0, v, np.ones(3))
    f(rows(4))  # each rank was given a value of its own
    assert f.proof.ok


def stepping(runtime, **options):
    w = engine.shared(np.ones(3), name="w")
    moment = engine.shared(np.zeros(3))
    change = 0.9 * moment + 0.1 * T.grad(T.sqr(x.dot(w)).mean(), w)
    updates = [(moment, change), (w, w - 1e-2 * change)]
    return runtime.function([x], updates=updates, name="train", **options, **FAST), w, moment


def test_ranks_that_drift_apart_are_found_at_the_second_call_unless_that_is_declared(pair):
    train, w, moment = stepping(pair)
    train(rows(4))
    drift = r"rank-local updates of 'w' by train are never averaged.*make_train_function"
    with pytest.raises(NotExact, match=drift):
        train(rows(4))
    pair.collectives.all_reduce([w, moment], "avg")
    train(rows(4))
    for options, drifting in (({"proof": False}, False), ({}, True)):
        train, w, _ = stepping(pair, **options)
        if drifting:
            pair.let_drift(w)
        for _ in range(4):
            train(rows(4))
    pair.function([x], x.dot(w).mean(), **FAST)(rows(2))  # of what may drift

    total = engine.shared(0.0, name="total")
    count = pair.function([x], updates=[(total, total + x.sum())], name="count", **FAST)
    show = pair.function([], (total, "sum"), **FAST)
    for _ in range(4):
        count(rows(4))  # its own state alone
    assert show() == pytest.approx(4 * rows(4).sum())
    reader = pair.function([x], x.sum() * total, name="reader", **FAST)
    with pytest.raises(NotExact, match=r"'total', which count computed on each rank.*all_reduce"):
        reader(rows(4))


def test_gradients_that_are_reduced_in_the_master_alone_are_found(pair):
    w, g = (engine.shared(np.ones(3), name=name) for name in ("w", "g"))
    gradient = pair.function([x], updates=[(g, T.grad(x.dot(w).mean(), w))], **FAST)
    update = pair.function([], updates=[(w, w - g)], name="update", **FAST)
    for once in (True, False):
        gradient(rows(4))
        pair.collectives.reduce(g, "avg")
        if once:
            update()  # broadcast(w) may follow
        else:
            with pytest.raises(NotExact, match=r"update reads 'g' after reduce\(\)"):
                update()


def test_code_that_differs_between_ranks_is_found_at_once(monkeypatch):
    library = types.ModuleType("lib_of_the_proof")
    library.__file__ = __file__
    exec("K = 1\ndef scaled(values):\n    return values * K\n", vars(library))
    monkeypatch.setitem(sys.modules, library.__name__, library)
    with Runtime(2) as runtime:
        scaled = as_op([T.dmatrix], [T.dmatrix])(library.scaled)
        f = runtime.function([x], (scaled(x), "gather"))
        for _ in range(3):
            f(rows(4))
        library.K = 4
        with pytest.raises(NotExact, match=r"operations: WRONG: .*\.K"):
            f(rows(4))
        library.K = 1
        np.testing.assert_array_equal(f(rows(4)), rows(4))


def test_failures_amid_a_proof_leave_nothing(pair):
    s = engine.shared(np.float32([1, 2]), name="s")
    checked = Assert("too large")(T.sort(x, axis=1), T.lt(x.max(), 10))
    f = pair.function([x], checked.mean(), updates=[(s, s + 1)], **FAST)
    value = rows(4)
    value[3] = 11.0  # on the second rank
    for arguments, error in (((value,), WorkerFailed), ((value[0],), TypeError), ((), TypeError)):
        for call in (f, f.verify):
            with pytest.raises(error):
                call(*arguments)
            assert (f.rows, f.proof) == (None, None)
        np.testing.assert_array_equal(pair.collectives.gather(s), [[1, 2], [1, 2]])
    f(rows(4))
    assert f.proof.ok


def test_an_interrupt_amid_the_rows_of_all_ranks_changes_nothing(pair):
    @as_op([T.dmatrix], [T.dmatrix])
    def slow(values):
        if len(values) > 4:
            for _ in range(200):
                time.sleep(0.05)
        return values

    s = engine.shared(np.zeros(2), name="s")
    f = pair.function([x], (slow(x), "gather"), updates=[(s, s + 1)], **FAST)
    threading.Timer(1.0, signal.raise_signal, [signal.SIGINT]).start()
    with pytest.raises(KeyboardInterrupt):
        f(rows(8))
    assert not np.any(pair.collectives.gather(s))
    np.testing.assert_array_equal(f(rows(4)), rows(4))


def test_another_master():
    w = engine.shared(np.ones(3), name="w")
    mean = T.tanh(x.dot(w)).mean()
    with Runtime(2, master_rank=1) as runtime:
        f = runtime.function([x], [mean, (x, None)], updates=[(w, w - T.grad(mean, w))], **FAST)
        assert right(runtime, f, rows(5)).rows == (3, 2)
        assert "there are no rows" in right(runtime, f, np.empty((0, 3)), output_subset=[0]).notes
        bad, _, _ = unlike(runtime)
        with pytest.raises(NotExact):
            bad(rows(5))


def training_step(runtime):
    x, y = T.matrix("x"), T.scalar("y")
    w = engine.shared(np.array([1.0, -0.5, 0.25]), name="w")
    velocity = engine.shared(np.zeros(3), name="velocity")
    steps = engine.shared(np.int32(0), name="steps")
    loss = (T.tanh(x.dot(w)) * y).mean()
    new = 0.9 * velocity - 0.1 * T.grad(loss, w)
    return runtime.function(
        [x],
        [
            loss,
            (x.sum(axis=0), "sum"),
            (x.max(axis=0), "max"),
            (x.min(), "min"),
            (T.exp(x).prod(axis=0), "prod"),
            (x * 2, "gather"),
            ((x > 0).sum(), "sum"),
            (T.any(x > 0.5, axis=0), "max"),
            (x.sum(axis=1), None),
        ],
        bcast_inputs=[y],
        updates=[(velocity, new), (w, w + new), (steps, steps + 1)],
        name="train",
        **FAST,
    )


def test_a_training_step_with_all_ops_is_right(trio):
    f = training_step(trio)
    report = right(trio, f, rows(7), 2.0)
    assert report.raise_if_wrong() is report
    assert (report.rows, report.notes) == ((3, 2, 2), ())
    assert list(reasons(report)) == ["output 8"]
    compared = {(c.what.partition(" (")[0], c.run) for c in report.comparisons if c.difference}
    assert compared >= {("update of velocity", "3 slices"), ("update of w", "parallel")}
    for i in range(8):
        for run in ("parallel", "2 slices", "3 slices"):
            assert (f"output {i}", run) in compared
    assert 0 < report.worst.difference.ulps < report.worst.limit
    lines = str(report).splitlines()
    said = f"'train' on 3 ranks with (3, 2, 2) rows, against one process of {TITLE}: ok"
    assert lines[0] == said
    assert any("update of velocity" in line for line in lines)
    report = right(trio, f, trio.data(rows(9)), 2.0, batch=[5, 0, 0, 3, 2])
    assert report.rows == (2, 2, 1)
    for count in (1, 2, 4):
        right(trio, f, rows(count), 1.0, num_slices=(2, 9))


def test_functions_without_inputs_or_outputs_or_anything(pair):
    s = engine.shared(np.arange(3.0), name="s")
    report = right(pair, pair.function([], [s.sum(), (s, "gather")], updates=[(s, s * 2)]))
    assert "not run in slices: the function has no rows to slice" in report.notes
    assert "nothing could be compared" in str(check(pair, pair.function([], [])))


def test_givens_subsets_and_kinds_of_numbers(pair):
    x, k = T.matrix("x"), T.ivector("k")
    s = engine.shared(np.ones(3), name="s")
    count = engine.shared(np.int8(0), name="count")
    outputs = [
        (x * s).mean(axis=0),
        (T.cast(k, "int8").sum(dtype="int8"), "sum"),
        (k.prod(dtype="int32"), "prod"),
        (x.sum(axis=1).astype("complex128") * 1j).mean(),
        (x.std(axis=0), "avg"),
        (x.shape[0], None),
    ]
    updates = [(count, T.cast(k.sum(), "int8"), "sum")]
    f = pair.function([x, k], outputs, updates=updates, givens={s: s * 3}, **FAST)
    k_value = np.arange(1, 8, dtype="int32") * 40  # the sum does not fit into an int8
    report = right(pair, f, rows(7), k_value, output_subset=[3, 0, 5, 2, 1])
    assert not any(c.what.startswith("output 4") for c in report.comparisons)
    assert "output 5: not compared: it is the master's own result" in str(report)
    assert wrong(check(pair, f, x=rows(7), k=k_value)) == {"output 4"}


def test_sliceable_variables_are_each_ranks_own_rows(trio):
    data = engine.shared(np.zeros((1, 3)), name="data")
    w = engine.shared(np.array([1.0, -0.5, 0.25]), name="w")
    loss = T.tanh(data.dot(w)).mean()
    alone = trio.function(
        [],
        [loss, (data * 2, "gather")],
        updates=[(w, w - T.grad(loss, w))],
        sliceable_shareds=[data],
        **FAST,
    )
    beside = trio.function([x], ((data * x).sum(), "sum"), sliceable_shareds=[data], **FAST)
    trio.collectives.scatter(data, rows(11))
    report = right(trio, alone)
    assert report.rows == (4, 4, 3)
    assert report.notes == ()
    for batch_s in (2, [slice(0, 4), [3, 0], slice(2, 3)], [[0], [], [0, 0, 1]], slice(0, 0)):
        right(trio, alone, batch_s=batch_s)
    right(trio, beside, rows(11))
    right(trio, beside, rows(6), batch_s=2)
    wide = trio.function([x], (x.sum() * (data**2).mean(), "sum"), sliceable_shareds=[data], **FAST)
    assert wrong(check(trio, wide, rows(11))) == {"output 0"}


def test_row_shares_make_a_mean_a_sum(trio):
    g = engine.shared(np.zeros(3), name="g")
    share = trio.row_share()
    updates = [(g, share * (x**2).mean(axis=0), "sum")]
    f = trio.function([x], (share * x.mean(axis=0), "sum"), updates=updates, **FAST)
    right(trio, f, rows(7))
    assert share.get_value() == 1.0


def test_results_that_cannot_be_split_are_found(pair):
    w, v, whole = (engine.shared(np.ones(3), name=name) for name in ("w", "v", "whole"))
    last = engine.shared(np.int64(3), name="last")
    gradient = T.grad(T.tanh(x.dot(w)).mean(), w)
    outputs = [(x.mean(axis=0), "sum"), x.std(axis=0), (softmax(x.T).T, "gather")]
    outputs += [(x.sum(), "avg"), x.mean(), (w.sum(), "sum")]
    # What rows add to, and what they are all of, some collective combines.
    updates = [(v, 0.9 * v + 0.1 * gradient**2), (w, w - gradient)]
    updates += [(last, last + x.shape[0]), (whole, x.mean(axis=0))]
    report = check(pair, pair.function([x], outputs, updates=updates, **FAST), rows(9))
    assert not report.ok
    assert wrong(report) == {*(f"output {i}" for i in (0, 1, 2, 3, 5)), "update of v"}
    assert "one part for the whole" in reasons(report)["update of last"]
    assert "of the ranks' parts is not the whole" in str(report)
    assert "no collective over the ranks' values gives that of all rows" in str(report)
    with pytest.raises(VerifyError, match="WRONG") as caught:
        report.raise_if_wrong()
    assert caught.value.report is report
    assert isinstance(caught.value, SynkError)
    assert isinstance(caught.value, AssertionError)


def test_variables_that_hold_no_arrays_are_left_alone(pair):
    sparse = pytest.importorskip("theano.sparse")
    matrix = engine.shared(scipy.sparse.csr_matrix(np.diag([1.0, 2.0, 3.0])), name="matrix")
    g = pair.function([x], (sparse.structured_dot(matrix, x.T).T, "gather"))
    right(pair, g, rows(5))
    np.testing.assert_array_equal(g(rows(5)), rows(5) * [1.0, 2.0, 3.0])
    update = pair.function([x], updates=[(matrix, sparse.csr_from_dense(x.T.dot(x)))], **FAST)
    update(rows(5))
    np.testing.assert_allclose(matrix.get_value().toarray(), rows(5)[:3].T.dot(rows(5)[:3]))
    assert reasons(update.verify(rows(5), num_slices=1))["update of matrix"] == "it is no array"


def test_a_zero_with_rounding_errors_is_not_judged_by_its_digits(pair):
    c = engine.shared(np.float64(0), name="c")
    centred = x + c
    centred = centred - centred.mean(axis=1, keepdims=True)
    gradient = T.grad(T.exp(centred).sum(axis=1).mean(), c)
    f = pair.function([x], gradient, **FAST)
    report = check(pair, f, rows(300, 7))
    assert report.ok, str(report)
    assert max(c.limit for c in report.comparisons) > 1e6 * 16, "the case is not what it should be"
    assert wrong(check(pair, pair.function([x], x.std(axis=0), **FAST), rows(300, 7)))


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_sums_that_cancel_are_not_judged_by_their_digits(pair, dtype):
    x = T.matrix("x", dtype=dtype)
    terms = x * T.constant(1 / 3, dtype=dtype)
    f = pair.function([x], [(terms.sum(), "sum"), terms.mean()], **FAST)
    whole = np.round(rows(1000) * 10)  # whole numbers, which are not disturbed
    for value in (rows(1000) * 1e6, whole):
        value = value.astype(dtype)
        right(pair, f, value - value.mean(axis=0).round())
        right(pair, f, np.concatenate([value, -value[::-1]]))


def test_differences_are_counted_in_ulps_of_the_largest_number():
    for dtype in ("float16", "float32", "float64"):
        one = np.asarray(1.0, dtype)
        found = measure(np.nextafter(one, np.asarray(2, dtype)), one)
        assert (found.ulps, found.index) == (1.0, ())
        assert measure(np.asarray(-0.0, dtype), np.asarray(0.0, dtype)).ulps == 0
    found = measure(np.array([1.0, 2.0, 1e-20]), np.array([1.0, 2.0, 3e-20]))
    assert found.index == (2,)
    assert found.ulps == pytest.approx(2e-20 / 2 / 2.220446049250313e-16)
    assert measure(np.array([1e-20]), np.array([3e-20]), scale=2.0).ulps == found.ulps


def test_differences_of_nan_and_of_other_dtypes():
    nan, inf = np.nan, np.inf
    for got, expected, error in (
        ([nan, inf, -inf, 1.0], [nan, inf, -inf, 1.0], 0),
        ([nan], [1.0], inf),
        ([1.0], [nan], inf),
        ([inf], [-inf], inf),
        ([1.0], [inf], inf),
        ([nan], [inf], inf),
        (np.zeros(0, "float32"), np.zeros(0, "float32"), 0),
        ([True], [False], inf),
        (np.zeros(2), np.zeros(2, "float32"), inf),
        ([1 + 1j], [1 + 1j], 0),
        (5e-324, 0.0, 1.0),
    ):
        assert measure(np.array(got), np.array(expected)).ulps == error, (got, expected)
    assert measure(np.array([1 + 2j]), np.array([1 + 1j])).ulps > 1e15
    assert measure(np.zeros(2), np.zeros(3)).expected == "float64 of shape (3,)"
    found = measure(np.int64([2**62, 1]), np.int64([2**62, 4]))
    assert (found.ulps, found.index) == (inf, (1,))


def test_wrong_settings_are_refused_before_anything_runs(pair):
    x = T.dmatrix("x")
    f = pair.function([x], (x.sum(), "sum"), **FAST)
    for name, values in {
        "num_slices": (range(10**12), [2, 0], "23", 1.5, None),
        "limit": ("much", float("nan"), -1),
    }.items():
        for value in values:
            with pytest.raises((InputValueError, InputTypeError), match=f"{name}: got"):
                f.verify(np.ones((4, 2)), **{name: value})
    assert f.verify(np.ones((4, 2)), num_slices=np.int64(2), limit=np.float32(64)).ok
