"""The operation that reduces over ranks in the middle of a graph, and graphs that have it.

`_rank.in_graph` connects it to the other ranks. Outside of a call of this library, as in the plain
engine, in `as_theano()` and on a single rank, it computes what a single rank gets.
"""

from __future__ import annotations

import threading
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, Iterator, List, Sequence

import numpy as np

from synk_core.engine import (
    NAME,
    Apply,
    DisconnectedType,
    Op,
    T,
    ancestors,
    foreign_linker,
    inner_outputs,
    run_in_python,
    with_pattern,
)
from synk_core.exceptions import SpecError

from .transfer.flat import flatten, is_flat_able, rebuild

_this_thread = threading.local()


@contextmanager
def meeting(others: Any) -> Iterator[None]:
    """For the duration of the block, connect reductions of this thread to the other ranks, by
    `others.all_reduce(x, op)` for an `AllReduce`."""
    _this_thread.others = others
    try:
        yield
    finally:
        _this_thread.others = None


def alone(x: Any, op: AllReduce) -> np.ndarray:
    """Return the result of an `AllReduce` on a single rank."""
    return np.zeros_like(x) if op.op == "before" else np.array(x)


def _reduced(x: Any, op: AllReduce) -> np.ndarray:
    others = getattr(_this_thread, "others", None)
    return alone(x, op) if others is None else others.all_reduce(x, op)


class AllReduce(Op):  # type: ignore[misc] # engines have no types
    r"""Rank r's output is :math:`s_r^p \sum_k s_k^q x_k`, with its share of the rows, s.

    The second output is a token: the next `AllReduce` of a graph takes it as a further input, so
    that all ranks meet in the same order.

    Args:
        op: "avg" (q = 1) or "sum" (q = 0); "gather": the sum (q = p = 0) of the ranks' rows, each
            at its place among zeros, so that the gradient is the own rows of that of a sum; or
            "before", which has no gradient: the sum over the ranks before this one.
        cost: "mean" if the cost over all ranks is :math:`\sum_r s_r c_r` of the ranks' own costs
            (m = 1), "sum" if it is :math:`\sum_r c_r` (m = 0).
        power: p.

    A rank's gradients are combined over ranks as its cost is, with weight :math:`s_r^m`. With h
    the derivative of a rank's own cost, that for x has to be :math:`s_r^{q-m} \sum_k s_k^{m+p}
    h_k` on rank r then. That is an operation of the same kind, with q' = m + p and p' = q - m.
    """

    __props__ = ("op", "cost", "power")

    def __init__(self, op: str, cost: str, power: int = 0) -> None:
        self.op = op
        self.cost = cost
        self.power = power

    def make_node(self, x: Any, *before: Any) -> Any:
        """Apply it to a tensor, after those of the tokens `before`."""
        x = T.as_tensor_variable(x)
        like = x[T.lvector()] if self.op == "gather" else x  # of any number of rows
        return Apply(self, [x, *before], [like.type(), T.bscalar()])

    def perform(self, node: Any, inputs: Sequence[Any], outputs: Any) -> None:  # noqa: ARG002
        """Reduce over the ranks, if there are others."""
        outputs[0][0] = _reduced(inputs[0], self)
        outputs[1][0] = np.zeros((), np.int8)

    def infer_shape(self, node: Any, shapes: Sequence[Any]) -> List[Any]:  # noqa: ARG002 - the engine's
        """Return the input's shape, and a scalar's."""
        if self.op == "gather":  # the other ranks' rows are not known yet
            raise getattr(T, "ShapeError", NotImplementedError)
        return [shapes[0], ()]

    def connection_pattern(self, node: Any) -> List[List[bool]]:
        """Connect only the first output with the first input: tokens are constants."""
        return [[self.op != "before", False]] + [[False, False]] * (len(node.inputs) - 1)

    def grad(self, inputs: Sequence[Any], gradients: Sequence[Any]) -> List[Any]:
        """Return the gradients; see the class."""
        result = h = gradients[0]
        if not isinstance(h.type, DisconnectedType):
            result = self._adjoint()(h)[0]
            if self.op == "gather":
                count = inputs[0].shape[0]
                start = AllReduce("before", self.cost)(count)[0]
                result = with_pattern(result[start : start + count], inputs[0])
        return [result] + [DisconnectedType()() for _ in inputs[1:]]

    def pullback(self, inputs: Any, _outputs: Any, gradients: Any) -> List[Any]:
        """Return the gradients: PyTensor's name for `grad`."""
        return self.grad(inputs, gradients)

    def R_op(self, inputs: Any, points: Sequence[Any]) -> List[Any]:  # noqa: N802, ARG002
        """Apply it to the points: it is linear."""
        return [None, None] if points[0] is None else self(points[0])

    def do_constant_folding(self, *_node: Any) -> bool:
        """Return False: the other ranks do not take part in compiling."""
        return False

    def _adjoint(self) -> AllReduce:
        q, m = int(self.op == "avg"), int(self.cost == "mean")
        return AllReduce("avg" if m + self.power else "sum", self.cost, q - m)


def reduced_by(x: Any, dtype: str, op: str, cost: str, power: int) -> np.ndarray:
    """Reduce over the ranks, as `AllReduce(op, cost, power)` does.

    Compiled code in users' caches calls it by this name, with these arguments, where `x` may be a
    number in place of an array without dimensions.
    """
    array = np.asarray(x, dtype)
    return np.array(_reduced(array, AllReduce(op, cost, power)), array.dtype, order="C")


run_in_python(AllReduce, reduced_by)


def is_reduced(variable: Any) -> bool:
    """Return whether a variable is equal on all ranks because of a reduction over them."""
    op = variable.owner and variable.owner.op
    return isinstance(op, AllReduce) and op.power == 0 and op.op != "before"


def reductions_of(function: Any) -> List[Any]:
    """Return the nodes of a compiled function that reduce over ranks, in the order of execution."""
    graph = function.maker.fgraph
    found = [node for node in graph.apply_nodes if isinstance(node.op, AllReduce)]
    if len(found) < 2:  # sorting takes long
        return found
    return [node for node in graph.toposort() if isinstance(node.op, AllReduce)]


def in_one_order(function: Any) -> Any:
    """Return a compiled function whose reductions run in the same order on every rank; raise
    SpecError if it is not certain that all ranks run the same ones.

    Linkers may run independent nodes in any order, which may differ when a function is built
    again. Here each reduction depends on the one before it.
    """
    what = f"{function.name or 'this function'} has an in-graph all_reduce or all_gather"
    nodes = function.maker.fgraph.apply_nodes
    for node in nodes:
        if any(isinstance(op, AllReduce) for op in ops_inside(node.op)):
            raise SpecError(
                f"{what} inside {node.op}, which may run it a different number of times "
                f"on each rank; move it out of there, so that all ranks run it once"
            )
    found = reductions_of(function)
    if not found:
        return function
    if foreign := foreign_linker(function):
        raise SpecError(
            f"{what} and is compiled by {foreign}, in which a rank cannot wait for "
            f'others; use mode="NUMBA" or mode="CVM"'
        )
    if any(type(node.op).__name__ in ("IfElse", "LazyIfElse") for node in nodes):
        raise SpecError(
            f"{what} and an ifelse, so a rank may skip one that others wait in; use "
            f"{NAME}.tensor.switch in place of ifelse"
        )
    if not is_flat_able(function):
        raise SpecError(
            f"{what} and is compiled in {function.maker.mode}, which runs nodes more "
            f"than once; use another mode"
        )
    if len(found) == 1:
        return function
    flat = flatten(function)
    rows, token = [], None
    for (op, inputs, outputs), (_, _, made) in zip(flat.nodes, flat.numbered_nodes()):
        if isinstance(op, AllReduce):
            inputs = inputs if token is None else (*inputs, token)
            token = made.start + 1
        rows.append((op, inputs, outputs))
    return rebuild(replace(flat, nodes=tuple(rows)))


def ops_inside(op: Any) -> Iterator[Any]:
    """Yield the operations in the graphs of an operation (Scan, OpFromGraph)."""
    for inner in {v.owner.op for v in ancestors(list(inner_outputs(op))) if v.owner is not None}:
        yield inner
        yield from ops_inside(inner)
