"""Translate compiled graphs to Python functions that JAX can trace.

PyTensor has a translation of each operation. These differ from its graphs in three ways, which are
cured here, around each node:

- Lengths. JAX compiles a program for each shape, so each length has to be known while it traces.
  Numbers and short vectors that follow from known ones are computed at once, by NumPy. If that does
  not suffice, the integers among the arguments from which a length follows become part of what a
  program is compiled for: see `Translation.lengths`.
- Types. Results get the dtypes that the graph has for them, and mixed arguments are converted as
  NumPy does. JAX computes in 64 bits where the graph does: see `exact`.
- Checks, which PyTensor drops. Their conditions are results, too: see `Translation.require`.
"""

from __future__ import annotations

import operator
from contextvars import ContextVar
from functools import cache, partial, singledispatch
from typing import Any, Callable, Dict, List, Optional, Sequence, Tuple

import jax
import jax.numpy as jnp
import numpy as np
from pytensor.conditional.op import IfElse, LazyIfElse
from pytensor.graph.basic import Constant, Variable
from pytensor.graph.fg import AbstractFunctionGraph
from pytensor.link.jax.dispatch.basic import jax_funcify
from pytensor.link.utils import fgraph_to_python
from pytensor.raise_op import CheckAndRaise
from pytensor.scalar.basic import ScalarOp, ScalarType
from pytensor.scan.op import Scan
from pytensor.tensor.basic import (
    ARange,
    Join,
    MakeVector,
    ScalarFromTensor,
    Split,
    TensorFromScalar,
)
from pytensor.tensor.elemwise import CAReduce, DimShuffle, Elemwise
from pytensor.tensor.random.op import RandomVariable
from pytensor.tensor.shape import Reshape, Shape, Shape_i, SpecifyShape
from pytensor.tensor.subtensor import (
    AdvancedIncSubtensor,
    AdvancedSubtensor,
    IncSubtensor,
    Subtensor,
)
from pytensor.tensor.type import TensorType

from synk_core.exceptions import SpecError

from .random import drawn, drawn_from, key_of, sampler

try:
    from jax import enable_x64
except ImportError:  # before 0.8
    from jax.experimental import enable_x64

exact = partial(enable_x64, True)
"""Make a context in which JAX computes in 64 bits, to trace and to call translated functions."""

CURE = 'use mode="NUMBA" for this function'

_SHORT = 64
"""Elements of the longest vectors that are computed while JAX traces."""

_AT_ONCE = (
    *(AdvancedSubtensor, CAReduce, DimShuffle, Elemwise, IncSubtensor, Join, MakeVector, Reshape),
    *(ScalarFromTensor, ScalarOp, SpecifyShape, Subtensor, TensorFromScalar),
)
"""Operations that NumPy computes at once if all inputs are known."""

_INDEXED = (AdvancedIncSubtensor, AdvancedSubtensor, IncSubtensor, Subtensor)

_active: ContextVar[Optional["Translation"]] = ContextVar("translation", default=None)


def traceable(function: Any) -> Translation:
    """Return the translation of a function that this package has linked with JAX."""
    found: Translation = function.vm.translation
    return found


class Translation:
    """A compiled graph as a function of its inputs' values, for JAX to trace. See `exact`.

    To call it: ``values, states = t.drawn(values)`` replaces random states by keys and gives the
    states that come after; ``lengths = t.lengths(values)`` is what a program has to be compiled
    for, besides shapes; ``outputs, passed = t(lengths, *values)``, where `outputs` are all outputs
    of the graph, updates included, and `passed` the conditions that `require` raises errors for.

    A program of new shapes or lengths begins with `traced`, which may find more lengths.

    Attributes:
        sources: for each output that is a random state the input from which it comes, by positions.
    """

    def __init__(self, graph: Any) -> None:
        self._graph = graph
        self.sources = drawn_from(graph)
        self._lengths: List[Variable] = []
        self._checks: List[Tuple[Any, str]] = []
        self._known: Dict[Variable, Any] = {}
        self._passed: Optional[Dict[int, Any]] = None
        self._inside: Any = None
        self._jitted = jax.jit(self, static_argnums=0)
        token = _active.set(self)
        try:
            self._function = self.function_of(graph)
        finally:
            _active.reset(token)

    # ---- calls -----------------------------------------------------------------------------

    def __call__(self, lengths: Tuple[Any, ...], *values: Any) -> Tuple[Tuple[Any, ...], Any]:
        """Return all outputs, and conditions by the numbers of the checks that they are for.

        Args:
            lengths: of `lengths` for these values.
            values: arrays, or JAX's tracers, of all inputs; keys of random states.
        """
        known = dict(zip(self._lengths, map(_typed, lengths, self._lengths)))
        before = self._known, self._passed, self._inside
        self._known, self._passed, self._inside = known, {}, None
        try:
            found = self._function(*map(known.get, self._graph.inputs, values))
            outputs = tuple(map(_as_array, found or (), self._graph.outputs))
            return outputs, self._passed
        finally:
            self._known, self._passed, self._inside = before

    def lengths(self, values: Sequence[Any]) -> Tuple[Any, ...]:
        """Return numbers, and tuples of them, on which lengths in the graph depend."""
        if not self._lengths:
            return ()
        known = dict(zip(self._graph.inputs, values))
        return tuple(_hashable(_computed(variable, known)) for variable in self._lengths)

    def traced(self, values: Sequence[Any]) -> Tuple[Tuple[Any, ...], Any]:
        """Return `lengths` for these values, and the result of a call in shapes and dtypes.

        Raises:
            SpecError: JAX cannot compute the function: with the operation and its line.
        """
        while True:
            lengths = self.lengths(values)
            try:
                return lengths, jax.eval_shape(partial(self, lengths), *values)
            except _Unknown as error:
                more = [v for v in error.needed if v not in self._lengths]
                if not more:
                    raise SpecError(f"{error}; {CURE}") from error.__cause__
                self._lengths += more

    def drawn(self, values: Sequence[Any]) -> Tuple[List[Any], Dict[int, Any]]:
        """Return values with keys in place of random states, and new states by output."""
        return drawn(self.sources, values)

    def require(self, passed: Dict[int, Any]) -> None:
        """Raise the error of the first check that does not hold; wait for the results."""
        for number, condition in passed.items():
            if not condition:
                op, where = self._checks[number]
                raise op.exc_type(f"{op.msg}{where}")

    # ---- translation -----------------------------------------------------------------------

    def function_of(self, graph: Any, **settings: Any) -> Callable[..., Any]:
        """Return a graph as a function, with this translation's nodes."""
        settings["storage_map"] = {}  # variables have no values, and constants are taken as such
        settings.setdefault("fgraph_name", "translated")
        made: Callable[..., Any] = fgraph_to_python(
            graph, self._node, type_conversion_fn=_constant, **settings
        )
        return made

    def _node(self, op: Any, node: Any = None, **settings: Any) -> Callable[..., Any]:
        try:
            compute = translated(op, node=node, **settings)
        except (NotImplementedError, ImportError) as error:
            raise SpecError(f"JAX cannot compute {shown(node)}: {error}; {CURE}") from error
        at_once = isinstance(op, _AT_ONCE) and all(map(_has_dtype, node.outputs))

        def call(*inputs: Any) -> Any:
            given = [self._known.get(variable) for variable in node.outputs]
            if given[0] is not None:
                return given[0]
            if at_once and all(map(_is_known, inputs)):
                return _unpacked(_performed(node, inputs))
            try:
                results = compute(*_arguments(node, inputs))
            except _Unknown as error:
                error.needed += _deciding(node, self._graph.inputs)
                raise
            except Exception as error:
                if _is_of_unknown(error):
                    text = f"JAX has to know all lengths while it compiles: {shown(node)}"
                    needed = _deciding(node, self._graph.inputs)
                    raise _Unknown(text, needed) from error
                if not hasattr(error, "__notes__"):
                    error.add_note(f"In {shown(node)}.")
                raise
            several = len(node.outputs) > 1
            made = results if several or isinstance(results, list) else [results]
            return _unpacked([_pinned(r, v) for r, v in zip(made, node.outputs)])

        return call

    def check(self, op: Any, where: str) -> Callable[..., Any]:
        """Return the function of a check: it returns its first argument."""
        number = len(self._checks)
        self._checks.append((op, where))

        def checked(x: Any, *conditions: Any) -> Any:
            unknown = [c for c in conditions if not _is_known(c)]
            if not all(np.all(c) for c in conditions if _is_known(c)):
                raise op.exc_type(f"{op.msg}{where}")
            if unknown:
                if self._inside is not None:
                    text = f"JAX cannot make a check in {self._inside}: {op}{where}"
                    raise _Unknown(text, [])
                self._passed[number] = jnp.all(jnp.stack([jnp.all(c) for c in unknown]))
            return x

        return checked

    def inside(self, op: Any, compute: Callable[..., Any]) -> Callable[..., Any]:
        """Return the function of an operation in whose graphs nothing can be checked."""

        def call(*inputs: Any) -> Any:
            outer, self._inside = self._inside, op
            try:
                return compute(*inputs)
            finally:
                self._inside = outer

        return call

    # ---- computing -------------------------------------------------------------------------

    def run(self, *arguments: Any) -> List[Any]:
        """Return all outputs in host memory, computed on the processor."""
        values, states = self.drawn(arguments)
        with exact(), jax.default_device(_processor()):
            try:
                outputs, passed = self._jitted(self.lengths(values), *values)
            except _Unknown:
                lengths, _ = self.traced(values)
                outputs, passed = self._jitted(lengths, *values)
        self.require(passed)
        # Copies, because those are read-only, and variables' values are written.
        return [states[i] if i in states else np.array(out) for i, out in enumerate(outputs)]


@cache
def _processor() -> Any:
    try:
        return jax.devices("cpu")[0]
    except RuntimeError:  # JAX_PLATFORMS excludes it
        return jax.devices()[0]


class _Unknown(Exception):
    """JAX lacks a value while it traces; it may be known if those of `needed` are."""

    def __init__(self, text: str, needed: List[Variable]) -> None:
        super().__init__(text)
        self.needed = needed


def _is_of_unknown(error: Exception) -> bool:
    text = str(error)
    return isinstance(error, (jax.errors.JAXTypeError, jax.errors.JAXIndexError)) or (
        isinstance(error, (TypeError, IndexError))
        and any(words in text for words in ("concrete values", "static start", "identical types"))
    )


def shown(node: Any) -> str:
    """Return the operation of a node, and the line of the user's program that made it."""
    return f"{node.op}{where(node)}"


def where(node: Any) -> str:
    """Return the line of the user's program that made a node, for the end of a sentence."""
    tag = node.outputs[0].tag
    line = getattr(tag, "synk_line", None)
    if line is None and getattr(tag, "trace", None) and tag.trace[0]:
        file, number, _, text = tag.trace[0][-1]
        line = f"{file}:{number}: {text}"
    return f", from {line}" if line else ""


# ---- operations ------------------------------------------------------------------------------


@singledispatch
def translated(op: Any, node: Any, **settings: Any) -> Callable[..., Any]:
    """Return an operation as a function that JAX can trace."""
    made: Callable[..., Any] = jax_funcify(op, node=node, **settings)
    return made


@translated.register(ARange)
def _arange(op: Any, node: Any, **_: Any) -> Callable[..., Any]:
    def arange(*bounds: Any) -> Any:
        start, stop, step = (_known(bound) for bound in bounds)
        return jnp.arange(start, stop, step, dtype=op.dtype)

    return arange


@translated.register(Reshape)
def _reshape(op: Any, node: Any, **_: Any) -> Callable[..., Any]:
    return lambda x, shape: jnp.reshape(x, tuple(map(operator.index, shape)))


@translated.register(Shape)
def _shape(op: Any, node: Any, **_: Any) -> Callable[..., Any]:
    return lambda x: np.array(jnp.shape(x), np.int64)


@translated.register(Split)
def _split(op: Any, node: Any, **_: Any) -> Callable[..., Any]:
    def split(x: Any, lengths: Any) -> Any:
        lengths = np.array([operator.index(length) for length in lengths])
        if lengths.sum() != x.shape[op.axis] or (lengths < 0).any():
            raise ValueError(f"{lengths} do not add up to the length {x.shape[op.axis]}")
        return jnp.split(x, np.cumsum(lengths[:-1]), axis=op.axis)

    return split


@translated.register(CheckAndRaise)
def _check(op: Any, node: Any, **_: Any) -> Callable[..., Any]:
    return _active.get().check(op, where(node))


@translated.register(RandomVariable)
def _random(op: Any, node: Any, **_: Any) -> Callable[..., Any]:
    return sampler(op, node)


@translated.register(IfElse)
def _ifelse(op: Any, node: Any, **_: Any) -> Callable[..., Any]:
    def choose(condition: Any, *values: Any) -> Any:
        yes, no = values[: op.n_outs], values[op.n_outs :]
        return _chosen(condition, lambda: _unpacked(yes), lambda: _unpacked(no), node)

    return choose


@translated.register(LazyIfElse)
def _lazy(op: Any, node: Any, **settings: Any) -> Callable[..., Any]:
    yes, no = (jax_funcify(branch, **settings) for branch in (op.true_branch, op.false_branch))

    def choose(condition: Any, *values: Any) -> Any:
        return _chosen(condition, partial(yes, *values), partial(no, *values), node)

    return _active.get().inside("a branch", choose)


def _chosen(condition: Any, yes: Any, no: Any, node: Any) -> Any:
    if _is_known(condition):
        return yes() if condition else no()

    def results(of: Any) -> Tuple[Any, ...]:
        made = of()
        made = made if isinstance(made, tuple) else (made,)
        return tuple(map(_as_array, made, node.outputs))

    return _unpacked(jax.lax.cond(condition, partial(results, yes), partial(results, no)))


@translated.register(Scan)
def _scan(op: Any, node: Any, **settings: Any) -> Callable[..., Any]:
    """Numbers that are known outside of the loop are known inside, too."""
    fixed: List[Any] = []
    compute = jax_funcify(op, node=node, loop=fixed, **settings)

    def scan(*inputs: Any) -> Any:
        outer = fixed[:]
        fixed[:] = [v if _is_known(v) else None for v in op.outer_non_seqs(inputs)]
        try:
            return compute(*inputs)
        finally:
            fixed[:] = outer

    return _active.get().inside("a loop", scan)


_plain_graph = jax_funcify.dispatch(AbstractFunctionGraph)


@jax_funcify.register(AbstractFunctionGraph)
def _graph(graph: Any, loop: Optional[List[Any]] = None, **settings: Any) -> Callable[..., Any]:
    """Translate the graph inside an operation; as PyTensor does, if that translates."""
    translation = _active.get()
    if translation is None:
        return _plain_graph(graph, **settings)
    function = translation.function_of(graph, **settings)
    if loop is None:
        return function

    def body(*inputs: Any) -> Tuple[Any, ...]:
        first = len(inputs) - len(loop)
        last = [v if known is None else known for v, known in zip(inputs[first:], loop)]
        return tuple(map(_as_array, function(*inputs[:first], *last) or (), graph.outputs))

    return body


# ---- values ----------------------------------------------------------------------------------


def _has_dtype(variable: Any) -> bool:
    return isinstance(variable.type, (TensorType, ScalarType))


def _is_known(value: Any) -> bool:
    if isinstance(value, np.ndarray):
        return value.size <= _SHORT
    if isinstance(value, (tuple, list)):
        return all(map(_is_known, value))
    return value is None or isinstance(value, (int, float, np.generic, slice))


def _known(value: Any) -> Any:
    return value if _is_known(value) else operator.index(value)


def _typed(value: Any, variable: Any) -> Any:
    """Return a known value with the variable's dtype, a number in place of an array without axes."""
    return np.asarray(value, variable.type.dtype)[()] if _has_dtype(variable) else value


def _performed(node: Any, inputs: Sequence[Any]) -> List[Any]:
    values = [
        np.asarray(v, i.type.dtype) if isinstance(i.type, TensorType) else _typed(v, i)
        for v, i in zip(inputs, node.inputs)
    ]
    places: List[List[Any]] = [[None] for _ in node.outputs]
    node.op.perform(node, values, places)
    return [_typed(place[0], variable) for place, variable in zip(places, node.outputs)]


def _arguments(node: Any, inputs: Sequence[Any]) -> Sequence[Any]:
    """Return inputs as the translation needs them."""
    values = [
        jnp.asarray(v) if isinstance(v, np.ndarray) and v.size > _SHORT else v for v in inputs
    ]
    if isinstance(node.op, _INDEXED):
        many = 2 if isinstance(node.op, (AdvancedIncSubtensor, IncSubtensor)) else 1
        values[:many] = map(jnp.asarray, values[:many])
    elif isinstance(node.op, (Elemwise, ScalarOp)):
        dtypes = [variable.type.dtype for variable in node.inputs]
        common = np.result_type(*dtypes) if dtypes else None
        if dtypes and jnp.result_type(*dtypes) != common:
            values = [jnp.asarray(value, common) for value in values]
    return values


def _pinned(value: Any, variable: Any) -> Any:
    """Return a result with the dtype that the graph says."""
    if not _has_dtype(variable):
        return value
    if _is_known(value):
        return _typed(value, variable)
    if isinstance(value, tuple):  # of lengths
        return value
    dtype = np.dtype(variable.type.dtype)
    if getattr(value, "dtype", None) != dtype or getattr(value, "weak_type", False):
        return jax.lax.convert_element_type(value, dtype)
    return value


def _as_array(value: Any, variable: Any) -> Any:
    return jnp.asarray(value, variable.type.dtype) if _has_dtype(variable) else value


def _unpacked(results: Sequence[Any]) -> Any:
    return results[0] if len(results) == 1 else tuple(results)


def _constant(data: Any, **_: Any) -> Any:
    if isinstance(data, np.random.Generator):
        return key_of(data)[0]
    return data[()] if isinstance(data, np.ndarray) else data


# ---- lengths ---------------------------------------------------------------------------------


def _deciding(node: Any, inputs: Sequence[Any]) -> List[Variable]:
    """Return the variables on which a node's lengths may depend, and which follow from integers
    among the inputs of the graph and from their shapes."""
    found: List[Variable] = []
    for variable in node.inputs:
        if _has_dtype(variable) and variable.type.ndim < 2 and not isinstance(variable, Constant):
            depends = _depends(variable, inputs)
            if depends:
                found.append(variable)
            elif depends is None and variable.owner is not None:
                found += _deciding(variable.owner, inputs)
    return found


def _depends(variable: Any, inputs: Sequence[Any]) -> Optional[bool]:
    """Return whether a variable depends on integers among the inputs; None if on anything else."""
    node = variable.owner
    if isinstance(variable, Constant):
        return False
    if node is None:
        is_integer = _has_dtype(variable) and variable.type.dtype[:3] in ("int", "uin", "boo")
        return True if is_integer and variable.type.ndim == 0 and variable in inputs else None
    if isinstance(node.op, (Shape, Shape_i)):
        return False if node.inputs[0] in inputs else None
    if not isinstance(node.op, _AT_ONCE) or variable.type.ndim > 1:
        return None
    found = [_depends(each, inputs) for each in node.inputs]
    return None if None in found else any(found)


def _computed(variable: Any, known: Dict[Variable, Any]) -> Any:
    """Return the value of a variable for which `_depends` is true."""
    node = variable.owner
    if isinstance(variable, Constant):
        return variable.data
    if node is None:
        return _typed(known[variable], variable)
    if isinstance(node.op, Shape):
        return np.array(np.shape(known[node.inputs[0]]), np.int64)
    if isinstance(node.op, Shape_i):
        return np.int64(known[node.inputs[0]].shape[node.op.i])
    inputs = [_computed(each, known) for each in node.inputs]
    return _performed(node, inputs)[node.outputs.index(variable)]


def _hashable(value: Any) -> Any:
    return tuple(value.tolist()) if np.ndim(value) else value.item()
