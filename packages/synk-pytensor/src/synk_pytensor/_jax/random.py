"""Random states in JAX.

A state stays a NumPy Generator in host memory. So ranks seed it, journals keep it, files contain it
and other linkers draw from it, as ever. A call draws a key from a copy of it, with which JAX draws
the numbers; the copy is the state that comes after. So nothing comes back from a device.
"""

from __future__ import annotations

import operator
from typing import Any, Callable, Dict, List, Sequence, Tuple

import jax
import numpy as np
from pytensor.graph.basic import Constant
from pytensor.link.jax.dispatch.random import jax_sample_fn
from pytensor.scan.op import Scan
from pytensor.tensor.random.type import RandomType

from synk_core.exceptions import SpecError


def key_of(state: Any) -> Tuple[np.ndarray, Any]:
    """Return a key of JAX's, uint32 of shape (2,), and the state that comes after."""
    bits = state.bit_generator
    copied = type(bits)(0)  # quicker than copy.deepcopy
    copied.state = bits.state
    later = np.random.Generator(copied)
    return np.frombuffer(later.bytes(8), np.uint32), later


def is_state(variable: Any) -> bool:
    return isinstance(variable.type, RandomType)


def drawn_from(graph: Any) -> Dict[int, int]:
    """Return for each output that is a random state the input from which it comes, by positions.

    Raises:
        SpecError: it comes from none, or different ones come from the same input, so that their
            draws would be the same.
    """
    states = {i: output for i, output in enumerate(graph.outputs) if is_state(output)}
    sources = {i: _sources(output, graph.inputs) for i, output in states.items()}
    outputs = {source[0]: states[i] for i, source in sources.items() if len(source) == 1}
    for i, source in sources.items():
        if len(source) != 1 or outputs[source[0]] is not states[i]:
            raise SpecError(
                f"in mode JAX each new random state has to come from one state, and only one from "
                f'each; got {states[i]} from {len(source)}; use mode="NUMBA"'
            )
    return {i: source[0] for i, source in sources.items()}


def _sources(state: Any, inputs: Sequence[Any]) -> List[int]:
    node = state.owner
    if node is None:
        return [] if isinstance(state, Constant) else [inputs.index(state)]
    outer = node.inputs
    if isinstance(node.op, Scan):
        outer = node.op.outer_untraced_sit_sot(outer)
    before = [variable for variable in outer if is_state(variable)]
    after = [variable for variable in node.outputs if is_state(variable)]
    if len(before) == len(after):
        before = [before[after.index(state)]]
    return sorted({source for variable in before for source in _sources(variable, inputs)})


def sampler(op: Any, node: Any) -> Callable[..., Any]:
    draw = jax_sample_fn(op, node=node)
    dtype = node.outputs[1].type.dtype
    lengths = node.outputs[1].type.shape[: op.batch_ndim(node)]

    def sample(words: Any, size: Any, *parameters: Any) -> Tuple[Any, Any]:
        key = jax.random.wrap_key_data(words, impl="threefry2x32")
        later, now = jax.random.split(key)
        shape = lengths
        if None in lengths:
            shape = None if size is None else tuple(map(operator.index, size))
        return jax.random.key_data(later), draw(now, shape, dtype, *parameters)

    return sample
