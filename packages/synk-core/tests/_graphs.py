"""Random graphs over rows: drawn as plain descriptions, built as often as wanted.

A description is built twice: once with the variables that a function replicates (scattered and
broadcast inputs, shared variables, sliceable ones, givens), once with plain inputs only, for
serial Theano. The second build knows nothing of givens, updates, shares or slices.

Every node carries a bound on its magnitude and on the error, in units of eps, by which two
computations of one row may differ. Elementwise operations give the same bits wherever a row lies,
so the bound is 0 until something adds up in an order that may depend on the number of rows.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Dict, List, Tuple

import numpy as np
from hypothesis import strategies as st

from synk_testing.engine import T

LARGEST = {"f": 16.0, "i": 4000.0}
CONSTANTS = (0.5, 3.0)
AXES = {"0": 0, "": None}


@dataclass(frozen=True)
class Node:
    """``op`` of earlier nodes; its value has shape (rows, *tail)."""

    op: str
    args: Tuple[int, ...]
    extra: Any
    tail: Tuple[int, ...]
    kind: str
    mag: float
    err: float


@dataclass(frozen=True)
class Leaf:
    """A variable: with rows (scattered, sliceable, given) or without (bcast, shared)."""

    role: str
    dtype: str
    tail: Tuple[int, ...]
    source: int = -1


@dataclass
class Graph:
    """What `drawn_graph` draws. ``outputs`` and ``updates``: (form, node, op)."""

    dtype: str
    leaves: List[Leaf]
    params: List[Leaf] = field(default_factory=list)
    nodes: List[Node] = field(default_factory=list)
    outputs: List[Tuple[str, int, Any]] = field(default_factory=list)
    updates: List[Tuple[str, int, Any]] = field(default_factory=list)

    def add(self, op: str, args: Any, extra: Any, tail: Any, kind: str, mag: float, err: float):
        """Append a node, brought back into bounds if need be; its number."""
        self.nodes.append(Node(op, tuple(args), extra, tuple(tail), kind, mag, err))
        here = len(self.nodes) - 1
        if mag > LARGEST[kind]:
            if kind == "i":
                return self.add("clip", [here], None, tail, kind, 5, err)
            return self.add("tanh", [here], None, tail, kind, 1, err + 2 if err else 0)
        return here

    def param(self, draw: Any, tail: Tuple[int, ...], kind: str) -> int:
        """Number of a variable without rows of this shape."""
        dtype = self.dtype if kind == "f" else "int32"
        self.params.append(Leaf(draw(st.sampled_from(["bcast", "shared"])), dtype, tail))
        return len(self.params) - 1


def _unary(graph: Graph, draw: Any, a: int) -> int:
    node = graph.nodes[a]
    size = int(np.prod(node.tail, dtype=int))
    rounding = 1 if node.err else 0
    choices = ["neg", "abs", "constant", "param", "param"]
    if node.kind == "f":
        choices += ["tanh", "exp"]
    if node.tail:
        choices += ["rowsum", "index", "reverse", "dot", "dot", "flat"]
    op = draw(st.sampled_from(choices))
    kind, tail, mag, err = node.kind, node.tail, node.mag, node.err
    if op == "exp":
        return graph.add(op, [a], None, tail, kind, 7.4, 8 * err + 8 * rounding)
    if op == "tanh":
        return graph.add(op, [a], None, tail, kind, 1, err + 2 * rounding)
    if op == "constant":
        number = draw(st.sampled_from(CONSTANTS)) if kind == "f" else 2
        return graph.add(op, [a], number, tail, kind, mag * number, err * number + mag * rounding)
    if op == "param":
        extra = (draw(st.sampled_from(["add", "mul"])), graph.param(draw, tail[-1:], kind))
        return graph.add(
            op, [a], extra, tail, kind, 2 * mag + 2, 2 * err + 2 * rounding * (mag + 1)
        )
    if op == "rowsum":
        k = tail[-1]
        return graph.add(op, [a], None, tail[:-1], kind, k * mag, k * err + k * mag)
    if op == "index":
        axis = draw(st.integers(1, len(tail)))
        place = draw(st.integers(-tail[axis - 1], tail[axis - 1] - 1))
        rest = tail[: axis - 1] + tail[axis:]
        return graph.add(op, [a], (axis, place), rest, kind, mag, err)
    if op == "flat":
        return graph.add(op, [a], size, (size,), kind, mag, err)
    if op == "dot":
        k = tail[-1]
        extra = graph.param(draw, (k, 2), kind)
        top = 2 if kind == "i" else 1
        return graph.add(
            op, [a], extra, (*tail[:-1], 2), kind, top * k * mag, k * err + 2 * k * k * mag
        )
    return graph.add(op, [a], None, tail, kind, mag, err)


def _alike(graph: Graph, a: int, b: int) -> Tuple[int, int]:
    """The same two with one tail and kind: other axes are summed, integers converted."""
    pair = [a, b]
    for i, other in ((0, 1), (1, 0)):
        if graph.nodes[pair[i]].kind == "i" and graph.nodes[pair[other]].kind == "f":
            node = graph.nodes[pair[i]]
            pair[i] = graph.add("float", [pair[i]], None, node.tail, "f", node.mag, 0)
    if graph.nodes[pair[0]].tail != graph.nodes[pair[1]].tail:
        for i in (0, 1):
            node = graph.nodes[pair[i]]
            k = int(np.prod(node.tail, dtype=int))
            if node.tail:
                err = k * node.err + k * node.mag
                pair[i] = graph.add("total", [pair[i]], None, (), node.kind, k * node.mag, err)
    return pair[0], pair[1]


def _binary(graph: Graph, draw: Any, a: int, b: int) -> int:
    one, other = graph.nodes[a], graph.nodes[b]
    fits = one.tail and other.tail and one.tail[1:] == other.tail[1:]
    if fits and one.kind == other.kind and one.tail[0] + other.tail[0] <= 8 and draw(st.booleans()):
        tail = (one.tail[0] + other.tail[0], *one.tail[1:])
        mag, err = max(one.mag, other.mag), max(one.err, other.err)
        return graph.add("concatenate", [a, b], None, tail, one.kind, mag, err)
    a, b = _alike(graph, a, b)
    one, other = graph.nodes[a], graph.nodes[b]
    op = draw(st.sampled_from(["add", "sub", "mul", "maximum"]))
    mag = {"mul": one.mag * other.mag, "maximum": max(one.mag, other.mag)}.get(
        op, one.mag + other.mag
    )
    err = one.err + other.err
    if op == "mul":
        err = one.mag * other.err + other.mag * one.err
    return graph.add(op, [a, b], None, one.tail, one.kind, mag, err + mag if err else 0)


def _joined(graph: Graph) -> int:
    """The last node, to which leaves are added that it does not use yet."""
    last = len(graph.nodes) - 1
    used, waiting = set(), [last]
    while waiting:
        used.add(number := waiting.pop())
        waiting += graph.nodes[number].args
    for leaf in range(len(graph.leaves)):
        if leaf not in used:
            a, b = _alike(graph, last, leaf)
            one, other = graph.nodes[a], graph.nodes[b]
            mag, err = one.mag + other.mag, one.err + other.err
            last = graph.add("add", [a, b], None, one.tail, one.kind, mag, err + mag if err else 0)
    return last


FLOAT_FORMS = (
    ("mean0", "avg"), ("mean", "avg"), ("affine0", "avg"), ("sum0", "sum"), ("sum", "sum"),
    ("max0", "max"), ("max", "max"), ("min0", "min"), ("min", "min"), ("prod0", "prod"),
    ("rows", "gather"), ("rows", "gather"), ("rows", None), ("mean", None),
)  # fmt: skip
UPDATE_FORMS = (("mean0", "avg"), ("sum0", "sum"), ("max0", "max"), ("min0", "min"))


@st.composite
def drawn_graph(draw: Any) -> Graph:
    """A graph of up to about ten nodes with one to four outputs and up to three updates."""
    dtype = draw(st.sampled_from(["float64", "float32", "float64", "float32", "float16"]))
    tails = st.sampled_from([(), (3,), (3, 2)])
    roles = draw(
        st.lists(st.sampled_from(["scattered", "scattered", "sliceable"]), min_size=1, max_size=3)
    )
    leaves = []
    for role in roles:
        kinds = st.sampled_from([dtype, dtype, dtype, "int32", "int64"])
        leaves.append(Leaf(role, draw(kinds), draw(tails)))
    for source in draw(st.lists(st.integers(0, len(leaves) - 1), max_size=2, unique=True)):
        leaves.append(Leaf("given", leaves[source].dtype, leaves[source].tail, source))
    graph = Graph(dtype, leaves)
    for place, leaf in enumerate(leaves):
        kind = "f" if leaf.dtype.startswith("f") else "i"
        graph.add("leaf", [], place, leaf.tail, kind, 2 if leaf.role != "given" else 5, 0)
    for _ in range(draw(st.integers(1, 6))):
        numbers = st.integers(0, len(graph.nodes) - 1)
        if draw(st.booleans()):
            _unary(graph, draw, draw(numbers))
        else:
            _binary(graph, draw, draw(numbers), draw(numbers))
    last = _joined(graph)
    for i in range(draw(st.integers(1, 4))):
        form, op = draw(st.sampled_from(FLOAT_FORMS))
        number = last if i == 0 else draw(st.integers(0, last))
        prefix = "c_" if op and draw(st.integers(0, 5)) == 0 else ""
        graph.outputs.append((form, number, op and prefix + op))
    for form, op in draw(st.lists(st.sampled_from(UPDATE_FORMS), max_size=2, unique=True)):
        graph.updates.append((form, draw(st.integers(0, last)), op))
    if draw(st.booleans()):
        graph.updates.append(("counter", 0, None))
    return graph


def variable_of(leaf: Leaf, name: str) -> Any:
    """A plain input for a leaf."""
    rows = 0 if leaf.role in ("bcast", "shared") else 1
    return T.TensorType(leaf.dtype, (False,) * (rows + len(leaf.tail)))(name)


_SIMPLE: Dict[str, Any] = {
    "neg": lambda a: -a,
    "abs": abs,
    "tanh": T.tanh,
    "exp": lambda a: T.exp(T.clip(a, -2, 2)),
    "clip": lambda a: T.clip(a, -5, 5),
    "rowsum": lambda a: a.sum(axis=-1, dtype=a.dtype),
    "total": lambda a: a.sum(axis=tuple(range(1, a.ndim)), dtype=a.dtype),
    "reverse": lambda a: a[:, ::-1],
    "add": lambda a, b: a + b,
    "sub": lambda a, b: a - b,
    "mul": lambda a, b: a * b,
    "maximum": T.maximum,
    "concatenate": lambda a, b: T.concatenate([a, b], axis=1),
}


def built(graph: Graph, leaves: List[Any], params: List[Any]) -> List[Any]:
    """The Theano variable of every node."""
    values: List[Any] = []
    for node in graph.nodes:
        args = [values[i] for i in node.args]
        if node.op == "leaf":
            value = leaves[node.extra]
        elif node.op == "float":
            value = T.cast(args[0], graph.dtype)
        elif node.op == "constant":
            value = args[0] * np.asarray(node.extra, args[0].dtype)
        elif node.op == "param":
            op, number = node.extra
            value = T.add(args[0], params[number]) if op == "add" else args[0] * params[number]
        elif node.op == "index":
            axis, place = node.extra
            value = args[0][(slice(None),) * axis + (place,)]
        elif node.op == "flat":
            value = args[0].reshape((args[0].shape[0], node.extra))
        elif node.op == "dot":
            value = T.dot(args[0], params[node.extra])
        else:
            value = _SIMPLE[node.op](*args)
        values.append(value)
    return values


def given_value(leaf: Any) -> Any:
    """What a given stands for."""
    return leaf * np.asarray(2, leaf.dtype) + np.asarray(1, leaf.dtype)


def reduced(form: str, node: Node, value: Any) -> Any:
    """An output of the node's rows."""
    name, axis = (form[:-1], 0) if form.endswith("0") else (form, None)
    if name == "rows":
        return value
    if name == "mean":
        return value.mean(axis=axis)
    if name == "affine":
        mean = value.mean(axis=axis)
        return np.asarray(3, mean.dtype) - np.asarray(2, mean.dtype) * mean
    if name == "prod":
        if node.kind == "i":
            return value.prod(axis=axis)
        return (np.asarray(1, value.dtype) + value / np.asarray(8 * node.mag, value.dtype)).prod(
            axis=axis
        )
    return getattr(value, name)(axis=axis)


def updated(form: str, node: Node, value: Any, target: Any) -> Any:
    """The new value of ``target``, bounded by 1 where it comes from averages."""
    if form == "counter":
        return target + np.asarray(1, target.dtype)
    new = reduced(form, node, value)
    if form == "mean0":
        new = np.asarray(0.5, target.dtype) * target + new / np.asarray(4 * node.mag, new.dtype)
    if form == "max0":
        new = T.maximum(target, new)
    return T.cast(new, target.dtype)


def target_dtype(graph: Graph, form: str, node: Node) -> str:
    """The dtype of the variable that an update writes."""
    if form == "counter" or (form != "mean0" and node.kind == "i"):
        return "int64"
    return graph.dtype


def bound(form: str, node: Node, rows: np.ndarray, parts: int, eps: float) -> Any:
    """By how much a result in ``parts`` parts may differ from the serial one, entry by entry.

    Each part's own sum is rounded, and each addition of two parts; float16 and float32 add up in
    a wider type within a part, float64 in another order.
    """
    rows = np.abs(rows.astype(np.float64))
    name, axis = (form[:-1], 0) if form.endswith("0") else (form, None)
    smallest = eps * np.finfo(np.float16 if eps > 1e-4 else np.float64).tiny
    if name in ("rows", "max", "min"):
        return node.err * eps
    if node.kind == "i" and name in ("sum", "prod"):
        return 0.0
    terms = max(rows.shape[0] if axis == 0 else rows.size, 1)
    rounding = parts + 8 + (terms if eps < 1e-10 else 0)
    if name == "prod":
        each = node.err / (4 * node.mag)
        most = np.prod(1 + rows / (8 * node.mag), axis=axis)
        return eps * most * (terms * each + rounding) + smallest * rounding
    total = eps * (terms * node.err + rounding * rows.sum(axis=axis)) + smallest * rounding
    if name == "sum":
        return total
    if name == "mean":
        return total / terms
    return 2 * total / terms + 8 * eps * (3 + 2 * rows.sum(axis=axis) / terms)
