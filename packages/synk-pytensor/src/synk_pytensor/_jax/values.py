"""Values while JAX traces: those that are known, and dtypes."""

from __future__ import annotations

from typing import Any, Dict, List, Optional, Sequence

import jax
import jax.numpy as jnp
import numpy as np
from pytensor.graph.basic import Constant, Variable
from pytensor.link.jax.dispatch.basic import jax_typify
from pytensor.scalar.basic import ScalarOp, ScalarType
from pytensor.tensor.basic import Join, MakeVector, ScalarFromTensor, TensorFromScalar
from pytensor.tensor.elemwise import CAReduce, DimShuffle, Elemwise
from pytensor.tensor.shape import Reshape, Shape, Shape_i, SpecifyShape
from pytensor.tensor.subtensor import (
    AdvancedIncSubtensor,
    AdvancedSubtensor,
    IncSubtensor,
    Subtensor,
)
from pytensor.tensor.type import TensorType

from .random import key_of
from .rows import SliceLength

_SHORT = 64
"""Elements of the longest vectors that are computed while JAX traces."""

_AT_ONCE = (
    *(AdvancedSubtensor, CAReduce, DimShuffle, Elemwise, IncSubtensor, Join, MakeVector, Reshape),
    *(ScalarFromTensor, ScalarOp, SliceLength, SpecifyShape, Subtensor, TensorFromScalar),
)
"""Operations that NumPy computes at once if all inputs are known."""

_SETTING = (AdvancedIncSubtensor, IncSubtensor)


def has_dtype(variable: Any) -> bool:
    return isinstance(variable.type, (TensorType, ScalarType))


def is_known(value: Any) -> bool:
    """Return whether a value is known, and short if it is an array."""
    if isinstance(value, np.ndarray):
        return value.size <= _SHORT
    if isinstance(value, (tuple, list)):
        return all(map(is_known, value))
    return value is None or isinstance(value, (int, float, np.generic, slice))


def is_at_once(node: Any) -> bool:
    """Return whether `performed` computes a node of known inputs."""
    return isinstance(node.op, _AT_ONCE) and all(map(has_dtype, node.outputs))


def typed(value: Any, variable: Any) -> Any:
    """Return a known value with the variable's dtype; a number if it has no axes."""
    return np.asarray(value, variable.type.dtype)[()] if has_dtype(variable) else value


def performed(node: Any, inputs: Sequence[Any]) -> List[Any]:
    values = [
        np.asarray(v, i.type.dtype) if isinstance(i.type, TensorType) else typed(v, i)
        for v, i in zip(inputs, node.inputs)
    ]
    places: List[List[Any]] = [[None] for _ in node.outputs]
    node.op.perform(node, values, places)
    return [typed(place[0], variable) for place, variable in zip(places, node.outputs)]


def arguments(node: Any, inputs: Sequence[Any]) -> Sequence[Any]:
    """Return inputs as JAX needs them to compute what NumPy does."""
    large = [isinstance(value, np.ndarray) and not is_known(value) for value in inputs]
    values = [jnp.asarray(v) if is_large else v for v, is_large in zip(inputs, large)]
    if isinstance(node.op, (AdvancedSubtensor, Subtensor, *_SETTING)):
        many = 2 if isinstance(node.op, _SETTING) else 1
        values[:many] = map(jnp.asarray, values[:many])
    elif isinstance(node.op, (Elemwise, ScalarOp)) and values:
        dtypes = [variable.type.dtype for variable in node.inputs]
        if jnp.result_type(*dtypes) != np.result_type(*dtypes):
            values = [jnp.asarray(value, np.result_type(*dtypes)) for value in values]
    return values


def pinned(value: Any, variable: Any) -> Any:
    """Return a result with the dtype that the graph says."""
    if not has_dtype(variable):
        return value
    if is_known(value):
        return typed(value, variable)
    if isinstance(value, tuple):  # of lengths
        return value
    return jax.lax.convert_element_type(value, np.dtype(variable.type.dtype))


def as_array(value: Any, variable: Any) -> Any:
    """Return a value that is none of NumPy's."""
    return jnp.asarray(value, variable.type.dtype) if has_dtype(variable) else value


def as_list(results: Any, node: Any) -> Sequence[Any]:
    return [results] if len(node.outputs) == 1 else results


def unpacked(results: Sequence[Any]) -> Any:
    return results[0] if len(results) == 1 else tuple(results)


def constant(data: Any, **_: Any) -> Any:
    """Return a constant's value; it is copied to no device."""
    if isinstance(data, np.random.Generator):
        return key_of(data)[0]
    return data[()] if isinstance(data, np.ndarray) else jax_typify(data)


# ---- lengths ---------------------------------------------------------------------------------


def deciding(variables: Sequence[Any], inputs: Sequence[Any]) -> List[Variable]:
    """Return those of short variables, or of what they are made of, on which lengths may depend:
    they follow from integers among the inputs of the graph, and from their shapes."""
    found: List[Variable] = []
    for variable in variables:
        if has_dtype(variable) and variable.type.ndim < 2:
            depends = _depends_on_integers(variable, inputs)
            if depends:
                found.append(variable)
            elif depends is None and variable.owner is not None:
                found += deciding(variable.owner.inputs, inputs)
    return found


def _depends_on_integers(variable: Any, inputs: Sequence[Any]) -> Optional[bool]:
    """Return whether a variable depends on integers beside shapes; None if on anything else."""
    node = variable.owner
    if isinstance(variable, Constant):
        return False
    if node is None:
        is_integer = has_dtype(variable) and np.dtype(variable.type.dtype).kind in "iub"
        return True if is_integer and variable.type.ndim == 0 and variable in inputs else None
    if isinstance(node.op, (Shape, Shape_i)):
        return False if node.inputs[0] in inputs else None
    if not is_at_once(node) or variable.type.ndim > 1:
        return None
    found = [_depends_on_integers(each, inputs) for each in node.inputs]
    return None if None in found else any(found)


def computed(variable: Any, known: Dict[Variable, Any]) -> Any:
    """Return the value of one of `deciding`, given those of the inputs."""
    node = variable.owner
    if isinstance(variable, Constant):
        return variable.data
    if node is None:
        return typed(known[variable], variable)
    if isinstance(node.op, Shape):
        return np.array(known[node.inputs[0]].shape, np.int64)
    if isinstance(node.op, Shape_i):
        return np.int64(known[node.inputs[0]].shape[node.op.i])
    inputs = [computed(each, known) for each in node.inputs]
    return performed(node, inputs)[node.outputs.index(variable)]
