"""Compiled graphs as Python functions that JAX can trace.

PyTensor has a translation of each operation. They differ from its graphs in three ways, which are
cured here, around each node:

- Lengths. JAX compiles a program for each shape, so each length has to be known while it traces.
  Numbers and short vectors that follow from known ones are computed at once, by NumPy. If that does
  not suffice, integers that follow from the arguments, and on which lengths depend, become part of
  what a program is compiled for: see `Translation.lengths`.
- Types. Results get the dtypes that the graph has for them, and mixed arguments are converted as
  NumPy does. JAX computes in 64 bits where the graph does: see `exact`.
- Checks, which PyTensor drops. Their conditions are results, too: see `Translation.require`.
"""

from __future__ import annotations

from functools import cache, partial
from typing import Any, Callable, Dict, List, Sequence, Tuple

import jax
import jax.numpy as jnp
import numpy as np
from pytensor.graph.basic import Variable
from pytensor.link.utils import fgraph_to_python

from synk_core.exceptions import SpecError

from .operations import Unknown, active, is_of_unknown, origin, translated
from .random import drawn_from, is_state, key_of
from .values import (
    arguments,
    as_array,
    as_list,
    computed,
    constant,
    deciding,
    is_at_once,
    is_known,
    performed,
    pinned,
    typed,
    unpacked,
)

try:
    from jax import enable_x64
except ImportError:  # before 0.8
    from jax.experimental import enable_x64

exact = partial(enable_x64, True)
"""Make a context in which JAX computes in 64 bits, to trace and to call translated functions."""

_CURE = 'use mode="NUMBA" for this function'


class Translation:
    """A compiled graph as a function of its inputs' values, for JAX to trace; see `exact`.

    To call it: ``values, states = t.drawn(values)`` replaces random states by keys and gives the
    states that come after; ``lengths = t.lengths(values)`` is what a program has to be compiled
    for, besides shapes; ``outputs, passed = t(lengths, *values)``, where `outputs` are all outputs
    of the graph, updates included, and `passed` the conditions for `require`.

    A program for new shapes or lengths begins with `traced`, which may find more lengths.

    Raises:
        SpecError: JAX cannot compute the graph: with the operation, and the line that made it.
    """

    def __init__(self, graph: Any) -> None:
        self.graph = graph
        self._states = [i for i, variable in enumerate(graph.inputs) if is_state(variable)]
        self._sources = drawn_from(graph)
        self._lengths: List[Variable] = []
        self._checks: List[Tuple[Any, str]] = []
        self._known: Dict[Variable, Any] = {}
        self._passed: Dict[int, Any] = {}
        self._jitted = jax.jit(self, static_argnums=0)
        token = active.set(self)
        try:
            self._function = self.function_of(graph)
        finally:
            active.reset(token)

    # ---- calls -----------------------------------------------------------------------------

    def __call__(self, lengths: Tuple[Any, ...], *values: Any) -> Tuple[Tuple[Any, ...], Any]:
        """Return all outputs, and conditions by the numbers of the checks that they are for.

        Args:
            lengths: of `lengths` for these values.
            values: arrays, or JAX's tracers, of all inputs; keys of random states.
        """
        self._known = dict(zip(self._lengths, map(typed, lengths, self._lengths)))
        self._passed = {}
        results = self._function(*map(self._known.get, self.graph.inputs, values))
        return tuple(map(as_array, results or (), self.graph.outputs)), self._passed

    def lengths(self, values: Sequence[Any]) -> Tuple[Any, ...]:
        """Return numbers, and tuples of them, on which lengths in the graph depend."""
        if not self._lengths:
            return ()
        known = dict(zip(self.graph.inputs, values))
        found = [computed(variable, known) for variable in self._lengths]
        return tuple(tuple(v.tolist()) if np.ndim(v) else v.item() for v in found)

    def traced(self, values: Sequence[Any]) -> Tuple[Tuple[Any, ...], Any]:
        """Return `lengths` for these values, and the shapes and dtypes that a call returns.

        Raises:
            SpecError: JAX cannot compile the graph: with the operation, and the line that made it.
        """
        with exact():
            return self._with_lengths(
                values, lambda n: (n, jax.eval_shape(partial(self, n), *values))
            )

    def _with_lengths(self, values: Sequence[Any], call: Callable[[Any], Any]) -> Any:
        """Call with `lengths`, and again with more while that finds more."""
        while True:
            try:
                return call(self.lengths(values))
            except Unknown as error:
                more = [v for v in dict.fromkeys(error.needed) if v not in self._lengths]
                if not more:
                    raise SpecError(f"{error}{error.origin}; {_CURE}") from error.__cause__
                self._lengths += more

    def drawn(self, values: Sequence[Any]) -> Tuple[List[Any], Dict[int, Any]]:
        """Return values with keys in place of random states, and new states by output."""
        keyed, after = list(values), {}
        for position in self._states:
            keyed[position], after[position] = key_of(values[position])
        return keyed, {output: after[position] for output, position in self._sources.items()}

    def require(self, passed: Dict[int, Any]) -> None:
        """Raise the error of the first check that does not hold; wait for the results."""
        for number, condition in passed.items():
            if not condition:
                op, where = self._checks[number]
                raise op.exc_type(f"{op.msg}{where}")

    def run(self, *arguments: Any) -> List[Any]:
        """Return all outputs in host memory, computed on the processor."""
        values, states = self.drawn(arguments)
        with exact(), jax.default_device(_processor()):
            outputs, passed = self._with_lengths(values, lambda n: self._jitted(n, *values))
        self.require(passed)
        # Copies, because those are read-only, and variables' values are written.
        return [states[i] if i in states else np.array(out) for i, out in enumerate(outputs)]

    # ---- translation -----------------------------------------------------------------------

    def function_of(self, graph: Any, **settings: Any) -> Any:
        """Return a graph as a function; also one that is inside an operation."""
        settings["storage_map"] = {}  # it would keep the first values of all variables
        return fgraph_to_python(graph, self._node, type_conversion_fn=constant, **settings)

    def _node(self, op: Any, node: Any, **settings: Any) -> Callable[..., Any]:
        try:
            compute = translated(op, node=node, **settings)
        except (NotImplementedError, ImportError) as error:
            raise SpecError(f"JAX cannot compute {op}{origin(node)}: {error}; {_CURE}") from error

        def call(*inputs: Any) -> Any:
            if node.outputs[0] in self._known:
                return self._known[node.outputs[0]]
            if is_at_once(node) and all(map(is_known, inputs)):
                return unpacked(performed(node, inputs))
            try:
                results = as_list(compute(*arguments(node, inputs)), node)
            except Exception as error:
                raise self._explained(error, node) from error
            return unpacked(list(map(pinned, results, node.outputs)))

        return call

    def _explained(self, error: Exception, node: Any) -> Exception:
        """Return an error of a node, with its name if it is the first."""
        if is_of_unknown(error):
            error = Unknown(f"JAX has to know all lengths while it compiles {node.op}")
        if isinstance(error, Unknown):
            error.needed = error.needed or deciding(node.inputs, self.graph.inputs)
            error.origin = error.origin or origin(node)
        elif not hasattr(error, "__notes__"):
            error.add_note(f"JAX was to compile {node.op}{origin(node)}.")
        return error

    def check(self, op: Any, where: str, inside: bool) -> Callable[..., Any]:
        """Return a check as a function of its first argument; it needs known ones inside loops."""
        number = len(self._checks)
        self._checks.append((op, where))

        def checked(x: Any, *conditions: Any) -> Any:
            if not all(np.all(c) for c in conditions if is_known(c)):
                raise op.exc_type(f"{op.msg}{where}")
            unknown = [jnp.all(c) for c in conditions if not is_known(c)]
            if unknown and inside:
                raise Unknown(f"JAX cannot make a check in a loop or branch: {op}")
            if unknown:
                self._passed[number] = jnp.stack(unknown).all()
            return x

        return checked


@cache
def _processor() -> Any:
    """Return JAX's device for the processor; None if that is the default, or excluded."""
    try:
        device = jax.devices("cpu")[0]
    except RuntimeError:  # by JAX_PLATFORMS
        return None
    return None if device == jax.devices()[0] else device
