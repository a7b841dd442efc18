"""Operations whose translations are not PyTensor's."""

from __future__ import annotations

import operator
import os
from contextvars import ContextVar
from functools import partial, singledispatch
from typing import Any, List, Optional, Sequence, Tuple

import jax
import jax.numpy as jnp
import numpy as np
import pytensor
from pytensor.conditional.op import IfElse, LazyIfElse
from pytensor.graph.fg import AbstractFunctionGraph
from pytensor.link.jax.dispatch.basic import jax_funcify
from pytensor.raise_op import CheckAndRaise
from pytensor.scan.op import Scan
from pytensor.tensor.basic import ARange, Split
from pytensor.tensor.random.op import RandomVariable
from pytensor.tensor.shape import Reshape, Shape

import synk_core

from .random import sampler
from .rows import RowsFrom, SliceLength
from .values import as_array, as_list, deciding, is_known, unpacked

_LIBRARIES = tuple(
    os.path.dirname(str(module.__file__)) + os.sep for module in (os, pytensor, synk_core)
)
"""Where lines are that no user wrote; the first contains all packages that pip installs."""

active: ContextVar[Any] = ContextVar("translation", default=None)
"""The translation that is being made."""


class Unknown(Exception):
    """JAX lacks a value while it traces; it may be known if those of `needed` are."""

    def __init__(self, text: str, needed: Sequence[Any] = ()) -> None:
        super().__init__(text)
        self.needed, self.origin = needed, ""


def is_of_unknown(error: Exception) -> bool:
    """Return whether JAX lacks a value: it has no single class for that."""
    words = ("concrete values", "static start", "identical types", "equal output types")
    return isinstance(error, (jax.errors.JAXTypeError, jax.errors.JAXIndexError)) or (
        isinstance(error, (TypeError, IndexError)) and any(word in str(error) for word in words)
    )


def origin(node: Any) -> str:
    """Return the line of the user's program that made a node, to follow a word; "" if unknown."""
    tag = node.outputs[0].tag
    if hasattr(tag, "synk_origin"):
        return str(tag.synk_origin)
    # Rewrites make nodes without a trace.
    for variable in (*node.outputs, *node.inputs):
        for trace in getattr(variable.tag, "trace", ()):
            for file, number, _, text in reversed(trace):
                if not file.startswith(_LIBRARIES):
                    return f" ({file}:{number}{f': {text}' if text else ''})"
    return ""


@singledispatch
def translated(op: Any, node: Any, **settings: Any) -> Any:
    """Return an operation as a function that JAX can trace."""
    return jax_funcify(op, node=node, **settings)


# ---- lengths ---------------------------------------------------------------------------------


@translated.register(ARange)
def _arange(op: Any, **_: Any) -> Any:
    def arange(*limits: Any) -> Any:
        known = (limit if is_known(limit) else operator.index(limit) for limit in limits)
        return jnp.arange(*known, dtype=op.dtype)

    return arange


@translated.register(Reshape)
def _reshape(_op: Any, **_: Any) -> Any:
    return lambda x, shape: jnp.reshape(x, tuple(map(operator.index, shape)))


@translated.register(Shape)
def _shape(_op: Any, **_: Any) -> Any:
    return lambda x: np.array(jnp.shape(x), np.int64)


@translated.register(Split)
def _split(op: Any, **_: Any) -> Any:
    def split(x: Any, lengths: Any) -> Any:
        parts = [operator.index(length) for length in lengths]
        if sum(parts) != x.shape[op.axis] or min(parts) < 0:
            raise ValueError(f"parts of {parts} rows do not make the {x.shape[op.axis]} of x")
        return jnp.split(x, np.cumsum(parts[:-1]), axis=op.axis)

    return split


@translated.register(SliceLength)
def _slice_length(_op: Any, node: Any, **_: Any) -> Any:
    inputs = active.get().graph.inputs

    def count(*_limits: Any) -> Any:
        raise Unknown(
            "JAX has to know all lengths while it compiles", deciding(node.outputs, inputs)
        )

    return count


@translated.register(RowsFrom)
def _rows(_op: Any, **_: Any) -> Any:
    # JAX takes as many rows, from an earlier one if they are too few.
    return lambda x, start, count: jax.lax.dynamic_slice_in_dim(
        jnp.asarray(x), start, operator.index(count)
    )


# ---- random numbers, checks, branches and loops ----------------------------------------------


@translated.register(RandomVariable)
def _random(op: Any, node: Any, **_: Any) -> Any:
    return sampler(op, node)


@translated.register(CheckAndRaise)
def _check(op: Any, node: Any, inside: bool = False, **_: Any) -> Any:
    return active.get().check(op, origin(node), inside)


@translated.register(IfElse)
def _ifelse(op: Any, node: Any, **_: Any) -> Any:
    def choose(condition: Any, *values: Any) -> Any:
        yes, no = values[: op.n_outs], values[op.n_outs :]
        return _chosen(condition, lambda: unpacked(yes), lambda: unpacked(no), node)

    return choose


@translated.register(LazyIfElse)
def _lazy(op: Any, node: Any, **settings: Any) -> Any:
    settings["inside"] = True
    yes, no = (jax_funcify(branch, **settings) for branch in (op.true_branch, op.false_branch))
    return lambda condition, *values: _chosen(
        condition, partial(yes, *values), partial(no, *values), node
    )


def _chosen(condition: Any, yes: Any, no: Any, node: Any) -> Any:
    def results(of: Any) -> Tuple[Any, ...]:
        return tuple(map(as_array, as_list(of(), node), node.outputs))

    if is_known(condition):
        return yes() if condition else no()
    return unpacked(jax.lax.cond(condition, partial(results, yes), partial(results, no)))


@translated.register(Scan)
def _scan(op: Any, node: Any, **settings: Any) -> Any:
    """What is known outside of the loop and does not change in it is known inside, too."""
    fixed: List[Any] = []
    compute = jax_funcify(op, node=node, **{**settings, "loop": fixed, "inside": True})

    def scan(*inputs: Any) -> Any:
        fixed[:] = [v if is_known(v) else None for v in op.outer_non_seqs(inputs)]
        return compute(*inputs)

    return scan


_plain = jax_funcify.dispatch(AbstractFunctionGraph)


def _graph(graph: Any, loop: Optional[List[Any]] = None, **settings: Any) -> Any:
    """Translate the graph inside an operation; as PyTensor does, if that translates.

    Args:
        loop: the values of a loop's last inputs; None for those that are unknown.
    """
    if active.get() is None:
        return _plain(graph, **settings)
    function = active.get().function_of(graph, **settings)
    if loop is None:
        return function

    def body(*inputs: Any) -> Tuple[Any, ...]:
        first = len(inputs) - len(loop)
        last = [v if known is None else known for v, known in zip(inputs[first:], loop)]
        return tuple(map(as_array, function(*inputs[:first], *last) or (), graph.outputs))

    return body


jax_funcify.register(AbstractFunctionGraph, _graph)
