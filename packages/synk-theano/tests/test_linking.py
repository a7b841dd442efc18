"""Functions that were built again: linked kind by kind, without the compiler and its lock."""

from __future__ import annotations

import os
from collections import Counter

import numpy as np
import pytest
import theano
import theano.tensor as T
from _replica import Replica
from theano.gof import cmodule
from theano.gof.op import Op

from synk_core._graph.transfer.flat import flatten
from synk_testing import run

x = T.matrix("x")

pytestmark = pytest.mark.c_code

X = np.arange(12.0).reshape(4, 3) / 7


def agree(function, *argument_lists):
    (copy,) = Replica().send(function)
    for arguments in argument_lists:
        np.testing.assert_equal(copy(*arguments), function(*arguments))
    return copy


MERGED = theano.Mode("cvm", "merge")  # nothing is fused: every product is a node


def test_the_same_op_on_the_same_and_on_different_inputs():
    x, y = T.matrices("x", "y")
    products = [x * y, y * x, x * x, y * y, (x + y) * (x - y), (x + y) * (x + y)]
    sums = [T.dot(x, x.T), T.dot(x, y.T), T.dot(y, x.T), T.dot(y.T, y)]
    agree(theano.function([x, y], products + sums, mode=MERGED), [X, X + 1], [X + 2, X])
    # Whichever comes first must not be taken for the other.
    for out in ((x * x) * y, (x * y) * (x * y)):
        agree(theano.function([x, y], out, mode=MERGED), [X, X + 1])


def test_nodes_that_differ_by_a_constant_or_a_parameter_alone():
    cut = [x[i] for i in range(4)] + [x[:, i] for i in (0, 2)] + [x[i:] for i in (1, 2)]
    axes = [x.sum(axis=0), x.sum(axis=1), x.max(axis=0)]
    axes += [x.dimshuffle(1, 0), x.dimshuffle(0, "x", 1)]
    powers = [x ** np.float64(p) for p in (2, 3, 0.5)] + [T.clip(x, 0, b) for b in (0.5, 1.5)]
    agree(theano.function([x], cut + axes + powers, mode=MERGED), [X], [X * 2])


class Times(Op):
    """An op that writes the value of its second input, a constant, into its C code."""

    __props__ = ()

    def make_node(self, x, factor):
        return theano.Apply(self, [x, theano.scalar.constant(factor)], [x.type()])

    def perform(self, node, inputs, outputs):
        outputs[0][0] = inputs[0] * inputs[1]

    def c_code(self, node, name, inputs, outputs, sub):
        return f"{outputs[0]} = {inputs[0]} * {node.inputs[1].data};"

    def c_code_cache_version(self):
        return (1,)


def test_constants_that_are_in_the_c_code():
    x = theano.scalar.float64("x")
    function = theano.function([x], [Times()(x, factor) for factor in (2.0, 3.0, 2.0)])
    assert agree(function, [7.0])(5.0) == [10.0, 15.0, 10.0]


def test_convolutions_of_different_shapes_and_borders():
    random = np.random.RandomState(0)
    x, outputs = T.tensor4("x"), []
    for size, border, stride in ((3, "valid", 1), (3, "half", 2), (5, "valid", 1)):
        w = theano.shared(random.standard_normal((4, 3, size, size)))
        out = T.nnet.conv2d(x, w, border_mode=border, subsample=(stride, stride))
        outputs += [out, T.grad(T.sqr(out).sum(), w)]
    image = random.standard_normal((2, 3, 9, 9))
    agree(theano.function([x], outputs), [image], [image + 1])


def test_updates_in_place_of_many_variables_of_a_kind():
    x = T.vector("x")
    states = [theano.shared(np.full(3, float(i)), name=f"s{i}") for i in range(20)]
    updates = [(s, s * 2 + x) for s in states]
    f = theano.function([x], [s + x for s in states], updates=updates)
    agree(f, [np.ones(3)], [np.arange(3.0)], [np.ones(3)])


@pytest.mark.parametrize(
    "linker",
    [
        *("cvm", "c|py", "py", "vm"),
        *(pytest.param(name, marks=pytest.mark.nightly) for name in ("vm_nogc", "c|py_nogc")),
    ],
)
def test_every_linker(linker):
    x, s = T.matrix("x"), theano.shared(np.ones(3), "s")
    out = x
    for _ in range(3):
        out = out * s + T.dot(out, T.outer(s, s))
    mode = theano.Mode(linker, theano.gof.Query(include=["fast_run"], exclude=["fusion"]))
    f = theano.function([x], [out, out.sum(axis=0)], updates=[(s, s * 2)], mode=mode)
    agree(f, [X], [X])


def test_each_kind_is_looked_up_once(monkeypatch):
    looked_up = Counter()
    module_from_key = cmodule.ModuleCache.module_from_key

    def counted(self, key, *args, **kwargs):
        looked_up[key] += 1
        return module_from_key(self, key, *args, **kwargs)

    out = x
    for i in range(60):
        out = T.tanh(out) + x if i % 2 else T.dot(out, x.T).dot(x)
    function = theano.function([x], out, mode=MERGED)
    nodes = len(function.maker.fgraph.apply_nodes)
    monkeypatch.setattr(cmodule.ModuleCache, "module_from_key", counted)
    link_alone = Op.make_c_thunk
    agree(function, [X / 10])
    assert Op.make_c_thunk is link_alone, "what was replaced for the while is back"
    assert nodes > 100
    assert set(looked_up.values()) == {1}
    assert len(looked_up) < 8


def test_a_failing_node_is_named_as_in_the_original():
    x, y = T.vectors("x", "y")
    function = theano.function([x, y], [x * x, (x * y).sum(), y * y], mode=MERGED)
    (copy,) = Replica().send(function)
    messages = []
    for each in (function, copy):
        with pytest.raises(ValueError, match="mis-match") as caught:
            each([1.0, 2.0], [1.0, 2.0, 3.0])
        messages.append(str(caught.value).split("\nInputs values")[0])
    assert messages[0] == messages[1]
    np.testing.assert_equal(copy([1.0], [2.0]), function([1.0], [2.0]))


def test_ops_that_are_equal_travel_once():
    out = x
    for _ in range(50):
        out = theano.compile.ops.deep_copy_op(T.nnet.softmax(out)) + x
    flat = flatten(theano.function([x], out, mode=theano.Mode("cvm", None)))
    ops = {id(op) for op, _, _ in flat.nodes}
    types = {id(type_) for _, _, made in flat.nodes for type_, _ in made}
    assert (len(flat.nodes), len(ops), len(types)) == (150, 3, 1)


class Keyless(Op):
    """An op without __props__: equal only to itself."""

    def __init__(self, factor):
        self.factor = factor

    def make_node(self, x):
        return theano.Apply(self, [x], [x.type()])

    def perform(self, node, inputs, outputs):
        outputs[0][0] = inputs[0] * self.factor


def test_equal_ops_that_compute_other_things_stay_apart():
    """Theano's equality leaves out what these ops were made with."""
    from theano.sparse.basic import DenseFromSparse, SparseFromDense
    from theano.tensor.nnet.nnet import Prepend_scalar_constant_to_each_row as Prepend
    from theano.tensor.raw_random import RandomFunction

    mode = theano.Mode("vm", None)
    prepended = [Prepend(float(value))(x) for value in (1, 2, 2)]
    sparse = [SparseFromDense(kind)(x) for kind in ("csr", "csc")]
    assert Prepend(1.0) == Prepend(2.0)
    assert SparseFromDense("csr") == SparseFromDense("csc")
    agree(theano.function([x], prepended, mode=mode), [X])
    copies = Replica().send(theano.function([x], sparse, mode=mode))[0](X)
    assert [copy.format for copy in copies] == ["csr", "csc"]
    agree(theano.function([x], [DenseFromSparse()(s) for s in sparse], mode=mode), [X])

    draws = [RandomFunction("uniform", T.dvector, inplace=in_place) for in_place in (True, False)]
    states = [theano.shared(np.random.RandomState(seed)) for seed in (1, 2)]
    made = [
        draw.make_node(state, np.array([3]), 0.0, 1.0).outputs for draw, state in zip(draws, states)
    ]
    updates = [(state, after) for state, (after, _) in zip(states, made)]
    how = {"updates": updates, "mode": mode, "accept_inplace": True}
    function = theano.function([], [out for _, out in made], **how)
    maps = [getattr(op, "destroy_map", {}) for op, _, _ in flatten(function).nodes]
    assert {0: [0]} in maps
    agree(function, [], [])


def test_ops_that_are_equal_to_nothing_else_stay_apart():
    ops = [Keyless(2), Keyless(3), Keyless(2)]
    function = theano.function([x], [op(x) for op in ops], mode=theano.Mode("py", None))
    assert len({id(op) for op, _, _ in flatten(function).nodes}) == 3
    agree(function, [X])


LOAD = """
import pickle, sys
import numpy as np
import theano
from synk_theano_compat import locks
from theano.gof import cmodule, compilelock

locks.worker_cache()

def refuse(*args, **kwargs):
    raise AssertionError("the compile lock was asked for")

compilelock.lock = refuse
cmodule.subprocess_Popen = cmodule.call_subprocess_Popen = refuse

from synk_core._graph.transfer.pickling import loads
from synk_core._graph.shared import VariableRegistry

with open(sys.argv[1], "rb") as file:
    data, buffers, records, record_buffers, x = pickle.load(file)
registry = VariableRegistry()
for record in loads(records, registry, [bytearray(b) for b in record_buffers]):
    registry.adopt(record, record.value)
(function,) = loads(data, registry, [bytearray(b) for b in buffers])
sys.stdout.write(repr(float(function(x))))
"""

MAKE = """
import pickle, sys
import numpy as np
import theano
import theano.tensor as T
from synk_core._graph.transfer.pickling import dumps
from synk_core._graph.shared import VariableRegistry

x, w = T.tensor4("x"), theano.shared(np.random.RandomState(0).standard_normal((2, 1, 3, 3)))
rows = T.nnet.softmax(T.nnet.conv2d(x, w).flatten(2))
cost = T.batched_dot(rows, rows.dimshuffle(0, 1, "x")).sum()
function = theano.function([x], cost, updates=[(w, w - T.grad(cost, w))])
registry = VariableRegistry()
for variable in function.get_shared():
    registry.number_of(variable)
values = np.random.RandomState(1).standard_normal((3, 1, 5, 5))
data, buffers = dumps([function], registry)
records, record_buffers = dumps(registry.records(0, lambda _values: False), registry)
kept = [data, [bytes(b) for b in buffers], records, [bytes(b) for b in record_buffers], values]
with open(sys.argv[1], "wb") as file:
    pickle.dump(kept, file)
sys.stdout.write(repr(float(function(values))))
"""


def test_a_new_process_takes_no_lock_and_runs_no_compiler(tmp_path):
    in_c = {"THEANO_FLAGS": os.environ["THEANO_FLAGS"] + ",linker=cvm"}
    said = []
    # Both are new: what Theano writes for an op depends on what a process has imported, too.
    for program in (MAKE, LOAD):
        status, out, err = run(program, str(tmp_path / "function"), environment=in_c, limit_s=200)
        assert status == 0, err
        said.append(float(out))
    assert said[0] == said[1]
