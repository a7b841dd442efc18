"""Random graphs over rows: drawn as plain descriptions, built as often as wanted.

A description is built twice: once with the variables that a function replicates (scattered and
broadcast inputs, shared variables, sliceable ones, givens), once with plain inputs only, for
serial Theano. The second build knows nothing of givens, updates, shares or slices.

All numbers are whole and so small that sums of them are exact, even as float16, in any order:
results are the same bits however rows are split. Averages alone are rounded.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Dict, List, Tuple

import numpy as np
from hypothesis import strategies as st

from synk_testing.engine import T


@dataclass(frozen=True)
class Node:
    """``op`` of earlier nodes; its value has shape (rows, *tail)."""

    op: str
    args: Tuple[int, ...]
    extra: Any
    tail: Tuple[int, ...]
    kind: str


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

    @property
    def largest(self) -> int:
        """The magnitude at which nodes are clipped."""
        return 2 if self.dtype == "float16" else 16

    def add(self, op: str, args: Any, extra: Any, tail: Any, kind: str) -> int:
        """Append a node; its number."""
        self.nodes.append(Node(op, tuple(args), extra, tuple(tail), kind))
        return len(self.nodes) - 1

    def param(self, draw: Any, tail: Tuple[int, ...], kind: str) -> int:
        """Number of a variable without rows of this shape."""
        dtype = self.dtype if kind == "f" else "int32"
        self.params.append(Leaf(draw(st.sampled_from(["bcast", "shared"])), dtype, tail))
        return len(self.params) - 1


def _unary(graph: Graph, draw: Any, a: int) -> int:
    tail, kind = graph.nodes[a].tail, graph.nodes[a].kind
    choices = ["neg", "abs", "constant", "param", "param"]
    if tail:
        choices += ["rowsum", "index", "reverse", "dot", "dot", "flat"]
    op = draw(st.sampled_from(choices))
    extra = None
    if op == "constant":
        extra = draw(st.sampled_from([2, 3]))
    elif op == "param":
        extra = (draw(st.sampled_from(["add", "mul"])), graph.param(draw, tail[-1:], kind))
    elif op == "rowsum":
        tail = tail[:-1]
    elif op == "index":
        axis = draw(st.integers(1, len(tail)))
        extra = (axis, draw(st.integers(-tail[axis - 1], tail[axis - 1] - 1)))
        tail = tail[: axis - 1] + tail[axis:]
    elif op == "flat":
        tail = (int(np.prod(tail)),)
    elif op == "dot":
        extra = graph.param(draw, (tail[-1], 2), kind)
        tail = (*tail[:-1], 2)
    return graph.add(op, [a], extra, tail, kind)


def _alike(graph: Graph, a: int, b: int) -> Tuple[int, int]:
    """The same two with one tail and kind: other axes are summed, integers converted."""
    pair = [a, b]
    one, other = graph.nodes[a], graph.nodes[b]
    for i, node in enumerate((one, other)):
        if one.kind != other.kind and node.kind == "i":
            pair[i] = graph.add("float", [pair[i]], None, node.tail, "f")
        if one.tail != other.tail and node.tail:
            pair[i] = graph.add("total", [pair[i]], None, (), graph.nodes[pair[i]].kind)
    return pair[0], pair[1]


def _binary(graph: Graph, draw: Any, a: int, b: int) -> int:
    one, other = graph.nodes[a], graph.nodes[b]
    fits = one.tail and other.tail and one.tail[1:] == other.tail[1:] and one.kind == other.kind
    if fits and one.tail[0] + other.tail[0] <= 8 and draw(st.booleans()):
        tail = (one.tail[0] + other.tail[0], *one.tail[1:])
        return graph.add("concatenate", [a, b], None, tail, one.kind)
    a, b = _alike(graph, a, b)
    op = draw(st.sampled_from(["add", "sub", "mul", "maximum"]))
    return graph.add(op, [a, b], None, graph.nodes[a].tail, graph.nodes[a].kind)


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
            last = graph.add("add", [a, b], None, graph.nodes[a].tail, graph.nodes[a].kind)
    return last


FORMS = (
    ("mean0", "avg"), ("mean", "avg"), ("affine0", "avg"), ("sum0", "sum"), ("sum", "sum"),
    ("max0", "max"), ("max", "max"), ("min0", "min"), ("min", "min"), ("prod0", "prod"),
    ("rows", "gather"), ("rows", "gather"), ("rows", None), ("mean", None),
)  # fmt: skip
ROUNDED = ("mean0", "mean", "affine0")
UPDATE_FORMS = (("mean0", "avg"), ("sum0", "sum"), ("max0", "max"), ("min0", "min"))


@st.composite
def drawn_graph(draw: Any) -> Graph:
    """A graph of up to about ten nodes with one to four outputs and up to three updates."""
    dtype = draw(st.sampled_from(["float64", "float32", "float64", "float32", "float16"]))
    tails = st.sampled_from([(), (3,), (3, 2)])
    roles = st.sampled_from(["scattered", "scattered", "sliceable"])
    kinds = st.sampled_from([dtype, dtype, dtype, "int32", "int64"])
    drawn = draw(st.lists(roles, min_size=1, max_size=3))
    leaves = [Leaf(role, draw(kinds), draw(tails)) for role in drawn]
    for source in draw(st.lists(st.integers(0, len(leaves) - 1), max_size=2, unique=True)):
        leaves.append(Leaf("given", leaves[source].dtype, leaves[source].tail, source))
    graph = Graph(dtype, leaves)
    for place, leaf in enumerate(leaves):
        graph.add("leaf", [], place, leaf.tail, leaf.dtype[0])
    for _ in range(draw(st.integers(1, 6))):
        numbers = st.integers(0, len(graph.nodes) - 1)
        if draw(st.booleans()):
            _unary(graph, draw, draw(numbers))
        else:
            _binary(graph, draw, draw(numbers), draw(numbers))
    last = _joined(graph)
    for i in range(draw(st.integers(1, 4))):
        form, op = draw(st.sampled_from(FORMS))
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
            values.append(leaves[node.extra])
            continue
        if node.op == "float":
            value = T.cast(args[0], graph.dtype)
        elif node.op == "constant":
            value = args[0] * np.asarray(node.extra, args[0].dtype)
        elif node.op == "param":
            op, number = node.extra
            value = args[0] + params[number] if op == "add" else args[0] * params[number]
        elif node.op == "index":
            axis, place = node.extra
            value = args[0][(slice(None),) * axis + (place,)]
        elif node.op == "flat":
            value = args[0].reshape((args[0].shape[0], node.tail[0]))
        elif node.op == "dot":
            value = T.dot(args[0], params[node.extra])
        else:
            value = _SIMPLE[node.op](*args)
        values.append(T.clip(value, -graph.largest, graph.largest))
    return values


def given_value(leaf: Any) -> Any:
    """What a given stands for."""
    return leaf * np.asarray(2, leaf.dtype) + np.asarray(1, leaf.dtype)


def reduced(form: str, value: Any) -> Any:
    """An output of a node's rows."""
    name, axis = (form[:-1], 0) if form.endswith("0") else (form, None)
    if name == "rows":
        return value
    if name == "affine":
        mean = value.mean(axis=axis)
        return np.asarray(3, mean.dtype) - np.asarray(2, mean.dtype) * mean
    if name == "prod":
        value = T.clip(value, -1, 1)
    return getattr(value, name)(axis=axis)


def updated(form: str, value: Any, target: Any) -> Any:
    """The new value of ``target``."""
    if form == "counter":
        return target + np.asarray(1, target.dtype)
    new = reduced(form, value)
    if form == "mean0":
        new = np.asarray(0.5, target.dtype) * (target + new)
    if form == "max0":
        new = T.maximum(target, new)
    return T.cast(new, target.dtype)


def target_dtype(graph: Graph, form: str, node: Node) -> str:
    """The dtype of the variable that an update writes."""
    if form == "counter" or (form != "mean0" and node.kind == "i"):
        return "int64"
    return graph.dtype
