"""Functions that are recorded and replayed: with a stand-in for CUDA's graphs, which computes anew.

Here every array of floats counts as one on a device. Only a GPU shows the rest: `multi_gpu`.
"""

from __future__ import annotations

import contextlib
import functools
import gc
import logging
import signal
import sys
import time
import weakref

import numpy as np
import pytest
import theano
import theano.tensor as T
from theano.compile.nanguardmode import NanGuardMode
from theano.compile.ops import as_op
from theano.tensor import TensorType

from synk_comm import PeerLost
from synk_core import InputValueError, Runtime, flat_updates
from synk_core._graph.compile import out_of_place
from synk_core._graph.values import at_least_1d
from synk_core._shield import SHIELD
from synk_core._wire.settings import USE_GRAPHS, checked_policy
from synk_core.device import REPLAYED
from synk_theano._gpu import capturable, captured
from synk_theano._gpu.captured import MOST_SHAPES, MOST_UNUSED, CapturedFunction, difference

ON_PROCESSOR = (
    *("Dot", "Dot22", "Dot22Scalar", "Elemwise", "Gemm", "Gemv", "CGemv", "CGer", "Ger"),
    *("CAReduce", "Sum", "Max"),
    *("DimShuffle", "Reshape", "Alloc", "AllocEmpty", "Join", "Subtensor", "IncSubtensor"),
    *("Split", "Softmax", "SoftmaxWithBias", "SoftmaxGrad", "MaxAndArgmax"),
)


class Graphs:
    """Does what CUDA's graphs do, by computing anew into what the graph works on."""

    def __init__(self):
        self.functions = set()
        self.graphs = {}
        self.recorded = self.launched = 0
        self.depth = 0
        self.slow_launch, self.always = 0.0, False
        self.spoil = None
        self.done = []

    @contextlib.contextmanager
    def own_memory(self):
        self.depth += 1
        try:
            yield
        finally:
            self.depth -= 1

    def entered(self):
        return contextlib.nullcontext()

    def wait(self):
        pass

    def copy(self, target, source):
        assert target.shape == source.shape
        assert target.dtype == source.dtype
        at_least_1d(target)[...] = at_least_1d(source)

    def record(self, run):
        """As several graphs, of which the first computes all."""
        cuts = []
        run(lambda: cuts.append(self.done.append("a cut")))
        self.recorded += 1
        made = [(self.recorded, place) for place in range(len(cuts) + 1)]
        self.graphs.update(dict.fromkeys(made, lambda: None))
        self.graphs[made[0]] = lambda: run(lambda: None)
        return made

    def launch(self, graph):
        time.sleep(self.slow_launch)
        self.graphs[graph]()
        self.launched += not graph[1]
        self.done.append(f"graph {graph[1]}")
        if self.spoil is not None:
            self.spoil()

    def send(self, values):
        self.done.append([float(value) for value in values])

    def forget(self, graph):
        del self.graphs[graph]

    def seconds(self, run):
        began = time.perf_counter()
        run()
        # So that a test says which one is quicker, not the machine.
        return 1.0 + (time.perf_counter() - began if self.slow_launch else 0.0)

    def reset(self):
        for function in tuple(self.functions):
            function.drop()

    def leave(self, function):
        self.functions.discard(function)


def _is_float(thing):
    return np.dtype(thing.dtype).kind == "f"


def stand_ins():
    """What has to be replaced for the processor to count as a device: (owner, name, value)."""
    ops = capturable._ON_DEVICE | set(ON_PROCESSOR)
    return [
        (capturable, "is_device_type", lambda t: isinstance(t, TensorType) and _is_float(t)),
        (capturable, "_is_elsewhere", lambda _type: False),
        (capturable, "_ON_DEVICE", ops),
        (captured, "is_on_device", _is_float),
    ]


def mode():
    """As the one in C, which it would take long to compile for."""
    return theano.Mode(theano.gof.vm.VM_Linker(use_cloop=True, c_thunks=False), "fast_run")


@pytest.fixture
def graphs(monkeypatch):
    for owner, name, value in stand_ins():
        monkeypatch.setattr(owner, name, value)
    monkeypatch.setattr(theano.compile.mode, "instantiated_default_mode", mode())
    made = Graphs()
    yield made
    assert made.depth == 0
    for function in tuple(made.functions):
        function.close()
    assert not made.graphs


@functools.cache
def compiled(seed, _twin):
    rng = np.random.RandomState(seed)
    x, y = T.dmatrix("x"), T.dmatrix("y")
    w = theano.shared(rng.randn(5, 7), "w")
    b = theano.shared(np.zeros(7), "b")
    v = theano.shared(rng.randn(7, 2), "v")
    step = theano.shared(0.05, "step")
    loss = T.sqr(T.dot(T.tanh(T.dot(x, w) + b), v) - y).mean()
    params = [w, b, v]
    updates = [(p, p - step * g) for p, g in zip(params, T.grad(loss, params))]
    updates.append((step, step * 0.99))
    function = theano.function([x, y], [loss, T.grad(loss, w)], updates=updates)
    variables = [*params, step]
    return function, variables, [variable.get_value() for variable in variables]


def network(seed=0, twin=False):
    """The function, with its first values; a twin of it is never recorded."""
    function, variables, values = compiled(seed, twin)
    for variable, value in zip(variables, values):
        variable.set_value(value)
    return function, variables


class Pair:
    """A function that is recorded, and its twin: they have to do the same."""

    def __init__(self, graphs, seed=0):
        self.plain, self.its = network(seed, twin=True)
        function, self.mine = network(seed)
        self.recorded = CapturedFunction(function, graphs, "train")

    def check(self, batch):
        require_same(self.recorded(*batch), self.plain(*batch))
        require_same([v.get_value() for v in self.mine], [v.get_value() for v in self.its])


@pytest.fixture
def train(graphs):
    return Pair(graphs)


def batches(n, seed=1):
    rng = np.random.RandomState(seed)
    return [(rng.randn(6, 5), rng.randn(6, 2)) for _ in range(n)]


def require_same(got, wanted):
    assert len(got) == len(wanted)
    for one, other in zip(got, wanted):
        np.testing.assert_allclose(one, other, rtol=1e-12, atol=1e-14)


def test_a_training_function_is_recorded_once_and_replayed(graphs, train):
    """A replay gives new arrays: neither earlier results nor earlier values change."""
    assert train.recorded.state == "not called often enough"
    held = []
    for number, batch in enumerate(batches(8), 1):
        train.check(batch)
        assert graphs.recorded == (number >= 2)
        arrays = [*train.recorded(*batch), *(v.get_value(borrow=True) for v in train.mine)]
        train.plain(*batch)
        held += [(array, array.copy()) for array in arrays]
    assert train.recorded.state == REPLAYED
    for array, copy in held:
        np.testing.assert_array_equal(array, copy)
    shape = weakref.ref(next(iter(train.recorded._shapes.values())))
    train.recorded.close()
    gc.collect()
    assert shape() is None
    assert not graphs.graphs
    assert not graphs.functions
    train.check(batch)


@pytest.mark.parametrize("replayed", [True, False])
def test_numbers_are_sent_to_the_host_before_the_rest_is_computed(graphs, monkeypatch, replayed):
    monkeypatch.setattr(capturable, "_ON_DEVICE", {*capturable._ON_DEVICE, "FromFunctionOp"})

    @as_op([T.dmatrix], [T.dmatrix])
    def late(x):
        graphs.done.append("the rest")
        if x[0, 0] < 0:
            raise ArithmeticError
        return x * 2

    x = T.dmatrix("x")
    v = theano.shared(np.zeros((2, 3)), "v")
    function = theano.function([x], [x[0], x.sum(), x.min()], updates=[(v, late(x))])
    recorded = CapturedFunction(function, graphs, "f")
    graphs.slow_launch = 0.0 if replayed else 0.2
    for number in range(1, 7):
        value = number + np.arange(6.0).reshape(2, 3)
        graphs.done.clear()
        require_same(recorded(value), [value[0], value.sum(), value.min()])
        require_same([v.get_value()], [2 * value])
        if number == 2:
            assert graphs.done == ["the rest", "a cut", "the rest"]
    numbers = [value.sum(), value.min()]
    if replayed:
        assert recorded.state == REPLAYED
        # The stand-in's first graph computes all.
        assert graphs.done == ["the rest", "graph 0", numbers, "graph 1"]
        return
    assert "and a replay" in recorded.state
    assert graphs.done == [numbers, "the rest"]
    value = -value
    kept = weakref.ref(value)
    with pytest.raises(ArithmeticError):
        recorded(value)
    del value
    function.input_storage[0].storage[0] = None  # as the caller does
    sys.last_value = sys.last_traceback = None
    gc.collect()
    assert kept() is None


def test_values_that_are_set_in_between_are_seen(train):
    random = np.random.RandomState(5)
    for number, batch in enumerate(batches(24)):
        train.check(batch)
        which = number % len(train.mine)
        value = random.randn(*train.its[which].get_value().shape) * 0.05
        for variable in (train.mine[which], train.its[which]):
            if number % 3 == 0:
                variable.set_value(np.array(value))
            elif number % 3 == 1:
                variable.get_value(borrow=True, return_internal_type=True)[...] = value
            else:
                # As the undoing of a failed call does: an array that was the value before.
                storage = variable.container.storage
                old, storage[0] = storage[0], np.array(value)
                storage[0] = old


def test_each_shape_has_its_graph_and_the_oldest_goes(graphs):
    x = T.dmatrix("x")
    recorded = CapturedFunction(theano.function([x], [x.sum(axis=0), x * 2]), graphs, "f")
    for rows in [*[*range(1, MOST_SHAPES + 1)] * 4, 9, 9, 9]:
        value = np.random.RandomState(rows).rand(rows, 3)
        require_same(recorded(value), [value.sum(axis=0), value * 2])
    assert graphs.recorded == MOST_SHAPES + 1
    assert len(graphs.graphs) == MOST_SHAPES
    assert recorded.state == REPLAYED


def test_shapes_that_never_come_again(graphs, caplog):
    caplog.set_level(logging.INFO)
    x = T.dvector("x")
    recorded = CapturedFunction(theano.function([x], [x * 2]), graphs, "f")
    for size in range(MOST_SHAPES + MOST_UNUSED + 5):
        np.testing.assert_array_equal(recorded(np.ones(size))[0], 2 * np.ones(size))
    assert "other shapes" in recorded.state
    assert caplog.text.count("f is not replayed: its inputs have other shapes") == 1
    assert graphs.recorded == 0


def test_results_of_every_size_and_order_in_memory(graphs, monkeypatch):
    monkeypatch.setattr(captured, "LARGEST_PACKED", 100)
    x, k = T.dmatrix("x"), T.fvector("k")
    outputs = [x.T * 1.5, x.sum(), x * x, k * 2, k.sum(), x.T, x]
    recorded = CapturedFunction(theano.function([x, k], outputs), graphs, "f")
    for seed in range(6):
        random = np.random.RandomState(seed)
        a, b = random.rand(4, 6), random.rand(3).astype("f4")
        wanted = [a.T * 1.5, a.sum(), a * a, b * 2, b.sum(), a.T, a]
        got = recorded(np.asfortranarray(a) if seed % 2 else a, b)
        assert [g.dtype for g in got] == [np.asarray(w).dtype for w in wanted]
        for one, other in zip(got, wanted):
            np.testing.assert_allclose(one, other, rtol=1e-6)
            assert not np.shares_memory(one, a)


def test_flat_parameters_of_other_shapes(graphs):
    x = T.dvector("x")
    params = [theano.shared(np.arange(32.0).reshape(s), "p") for s in [(2, 16), (4, 8)]]
    outputs = [T.dot(p.T, x[: p.shape[0]]) for p in params]
    recorded = CapturedFunction(theano.function([x], outputs), graphs, "f")
    for shapes in [((2, 16), (4, 8)), ((4, 8), (2, 16)), ((2, 16), (4, 8))]:
        for seed, (p, shape) in enumerate(zip(params, shapes)):
            p.set_value(np.random.RandomState(seed).rand(*shape))
        updates = flat_updates([(p, p + 1) for p in params], least=2)
        move = theano.function([], updates=updates, mode=theano.Mode("py", None))
        for _ in range(6):
            move()
            values, vector = [p.get_value() for p in params], np.random.rand(4)
            require_same(recorded(vector), [v.T.dot(vector[: len(v)]) for v in values])
    assert recorded.state == REPLAYED


def test_a_replay_that_differs_is_not_used(graphs, train, caplog):
    def spoil():
        (shape,) = train.recorded._shapes.values()
        shape._packings[0]._vectors[0][...] += 1e-3

    graphs.spoil = spoil
    for batch in batches(6):
        train.check(batch)
    assert "a replay gives other results: by" in train.recorded.state
    assert caplog.text.count("train is not replayed") == 0  # at INFO
    assert not graphs.graphs


def test_a_slower_replay_is_not_used_unless_always(graphs):
    x = T.dvector("x")
    for always in (False, True):
        recorded = CapturedFunction(theano.function([x], [x * 2]), graphs, "f")
        graphs.slow_launch, graphs.always, graphs.launched = 0.1, always, 0
        for _ in range(5):
            recorded(np.ones(3))
        assert (recorded.state == REPLAYED) == always
        assert ("and a replay" in recorded.state) != always
        assert graphs.launched == (5 if always else 3)


def test_the_policy_is_the_programs_or_else_the_environments(monkeypatch):
    for given, environment, policy in (
        ("auto", "", "auto"),
        ("auto", "0", "never"),
        ("auto", "always", "always"),
        ("always", "0", "always"),
        (False, "always", "never"),
    ):
        monkeypatch.setenv(USE_GRAPHS, environment)
        assert checked_policy(given) == policy
    for given in (True, "yes", None, 1):
        with pytest.raises(InputValueError, match=r"graphs: got .*, expected 'auto', 'always'"):
            Runtime(1, use_gpu=False, graphs=given)
    monkeypatch.setenv(USE_GRAPHS, "on")
    with pytest.raises(InputValueError, match="SYNKHRONOS_CUDA_GRAPHS: got 'on', expected"):
        checked_policy("auto")


@pytest.mark.parametrize("when", ["launch", pytest.param("record", marks=pytest.mark.nightly)])
def test_an_error_of_the_graph_leaves_the_function(graphs, train, caplog, when):
    other = Pair(graphs, seed=2)
    for batch in batches(5):
        other.check(batch)
    assert other.recorded.state == REPLAYED

    def fail(*_):
        raise RuntimeError("cuGraphLaunch failed")

    for number, batch in enumerate(batches(9)):
        if number == {"record": 1, "launch": 5}[when]:
            setattr(graphs, when, fail)
        train.check(batch)
        vars(graphs).pop(when, None)
    assert train.recorded.state == "RuntimeError: cuGraphLaunch failed"
    assert caplog.text.count("is not replayed") == 1
    assert not other.recorded.is_recorded
    for batch in batches(5, seed=7):
        other.check(batch)
    assert other.recorded.is_recorded


def test_an_error_of_the_function_is_its_own(graphs, caplog):
    x, y = T.dvector("x"), T.dvector("y")
    counted = theano.shared(0.0, "counted")
    function = theano.function([x, y], [x + y], updates=[(counted, counted + 1)])
    recorded = CapturedFunction(function, graphs, "f")
    recorded(np.ones(3), np.ones(3))
    with pytest.raises(ValueError, match="could not be broadcast together") as caught:
        recorded(np.ones(3), np.ones(4))
    assert "Apply node that caused the error" in str(caught.value)
    assert counted.get_value() == 1
    assert not caplog.records
    for call in range(2, 7):
        recorded(np.ones(3), np.ones(3))
        assert counted.get_value() == call
    assert recorded.state == REPLAYED


def test_the_loss_of_a_rank_is_not_the_graphs_fault(graphs, train, caplog):
    """The device may wait for that rank: nothing more is computed."""
    first, second = batches(2)
    train.recorded(*first)

    def lost():
        raise PeerLost("rank 1 has ended")

    graphs.wait = lost
    with pytest.raises(PeerLost):
        train.recorded(*second)
    assert not train.recorded.is_recorded
    assert not caplog.records


def test_an_interrupt_while_graphs_are_dropped_comes_after_that(graphs, train, monkeypatch):
    forget, struck = graphs.forget, []

    def handler(number, _frame):
        if not SHIELD.holds(number):
            raise KeyboardInterrupt("the second")

    def interrupt(*_):
        raise KeyboardInterrupt("the first")

    def forget_slowly(graph):
        signal.raise_signal(signal.SIGINT)
        struck.append(graph)
        forget(graph)

    usual = signal.signal(signal.SIGINT, handler)
    try:
        for number, batch in enumerate(batches(10)):
            if number == 5:
                with monkeypatch.context() as patch:
                    patch.setattr(graphs, "launch", interrupt)
                    patch.setattr(graphs, "forget", forget_slowly)
                    with pytest.raises(KeyboardInterrupt, match="the second"):
                        train.recorded(*batch)
                assert struck
                assert not train.recorded.is_recorded
            train.check(batch)
    finally:
        signal.signal(signal.SIGINT, usual)
    assert train.recorded.state == REPLAYED


def test_functions_that_overwrite_values_in_place(graphs):
    """Without `atomic`, Theano works in place on variables and on arguments."""
    x = T.dmatrix("x")
    values = [theano.shared(np.ones((3, 3)), "a") for _ in range(2)]
    functions = [
        theano.function(
            [theano.In(x, borrow=True)], [v.sum()], updates=[(v, T.tanh(v + T.dot(x, v)) * 0.5)]
        )
        for v in values
    ]
    assert any(getattr(n.op, "destroy_map", None) for n in functions[0].maker.fgraph.apply_nodes)
    recorded = CapturedFunction(functions[0], graphs, "f")
    for seed in range(8):
        value = np.random.RandomState(seed).rand(3, 3)
        require_same(recorded(value.copy()), functions[1](value))
        require_same([values[0].get_value()], [values[1].get_value()])
    assert recorded.state == REPLAYED


def test_the_host_computes_values_of_shapes(graphs):
    x = T.dmatrix("x")
    rows, columns = x.shape
    outputs = [x[: rows // 2].sum(), T.zeros((columns, 2)) + x.sum(), x.reshape((columns, rows))]
    plain = theano.function([x], outputs)
    recorded = CapturedFunction(theano.function([x], outputs), graphs, "f")
    for _ in range(4):
        for shape in ((4, 3), (6, 2), (1, 1)):
            value = np.random.rand(*shape)
            require_same(recorded(value), plain(value))
    assert recorded.state == REPLAYED
    assert graphs.recorded == 3


class GpuFromHost(theano.Op):
    """In place of Theano's, which needs a GPU."""

    __props__ = ()

    def make_node(self, x):
        return theano.Apply(self, [x], [T.TensorType("float64", x.broadcastable)()])

    def perform(self, node, inputs, outputs):
        outputs[0][0] = np.asarray(inputs[0], "float64")


GpuFromHost.__module__ = "theano.tests"
to_device = GpuFromHost()


def test_values_in_host_memory_are_read_in_each_call(graphs):
    def made():
        x, n = T.dmatrix("x"), T.lscalar("n")
        w = theano.shared(np.ones((3, 3)), "w")
        rate, count = theano.shared(5, "rate"), theano.shared(0, "count")
        outputs = [n * 2, (x * to_device(rate + n)).sum(), x.shape[0], T.dot(x, w), count]
        updates = [
            (count, count + x.shape[0]),
            (w, w - T.dot(x.T, x) / to_device(rate * x.shape[1] + count)),
        ]
        with out_of_place():
            return theano.function([x, n], outputs, updates=updates), (w, rate, count)

    function, mine = made()
    plain, its = made()
    recorded = CapturedFunction(function, graphs, "f")
    held = []
    for call in range(7):
        value = np.random.RandomState(call).rand(4, 3)
        got = recorded(value, np.array(call))
        require_same(got, plain(value, call))
        held += [(array, np.array(array)) for array in got]
        require_same([v.get_value() for v in mine], [v.get_value() for v in its])
        for rate in (mine[1], its[1]):
            rate.set_value(call + 2)
    for array, copy in held:
        np.testing.assert_array_equal(array, copy)
    assert recorded.state == REPLAYED


def test_functions_that_are_not_recorded(graphs):
    x, m, n, i = T.dvector("x"), T.dmatrix("m"), T.lscalar("n"), T.lvector("i")
    count, three = theano.shared(0, "count"), theano.shared(3, "three")
    doubled = as_op([T.dvector], [T.dvector])(lambda x: 2 * x)
    # The shape of what the device computes: the host's part would have to compute there.
    shape = m * to_device(T.dot(m, m).shape[0] + n)
    plain = theano.compile.mode.get_default_mode().clone(optimizer=None)
    watched = theano.Mode(
        theano.gof.vm.VM_Linker(use_cloop=False, callback=lambda **_: None), "fast_compile"
    )
    for inputs, output, options, reason in (
        ([x, n], (x[:n] * 2).sum(), {}, "depends on the value of n in host memory"),
        ([x], (x[:three] * 2).sum(), {}, "depends on the value of three in host memory"),
        ([x, i], x[i] * 2, {}, "depends on the value of i in host memory"),
        ([x], doubled(x + 1), {}, "FromFunctionOp may do more"),
        ([x], theano.printing.Print("x")(x) * 2, {}, "Print may do more"),
        (
            [x, n],
            x * to_device(T.cast(x.sum(), "int64") + n),
            {},
            "Elemwise copies a value to host",
        ),
        ([x], x * 2, {"updates": [(count, count + 1)]}, "it may overwrite count in host memory"),
        ([m, n], shape, {"mode": plain}, "the host computes with what depends on the device"),
        *(([x], x * 2, {"mode": mode}, "") for mode in ("DebugMode", NanGuardMode(), watched)),
        ([x], x * 2, {"profile": True}, ""),
    ):
        recorded = CapturedFunction(theano.function(inputs, [output], **options), graphs, "f")
        assert not recorded.is_possible
        assert reason in recorded.state
        assert not graphs.functions


def test_when_results_differ():
    for plain, again, replayed, text in (
        ([1.0, 2.0], [1.0, 2.0], [1.0, 2.0 + 1e-14], ""),
        ([1.0, 2.0], [1.0, 2.0], [1.0, 2.1], "other results: by 0.05 of"),
        ([1.0, 2.0], [1.0, 2.05], [1.0, 2.1], ""),
        ([1.0, np.nan], [1.0, np.nan], [1.0, np.nan], ""),
        ([1.0, np.nan], [1.0, np.nan], [1.0, 2.0], "not finite"),
        ([1.0, 2.0], [1.0, 2.0], [np.inf, 2.0], "not finite"),
        ([np.nan], [1.0], [1.0], ""),
        ([], [], [], ""),
        ([1, 2], [1, 2], [1, 3], "other whole numbers"),
        ([True], [True], [False], "other whole numbers"),
        ([1j], [1j], [1j + 1], "other results"),
    ):
        found = difference(*map(np.array, (plain, again, replayed)))
        assert (text in found) if text else not found
