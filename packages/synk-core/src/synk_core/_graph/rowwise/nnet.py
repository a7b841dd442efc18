"""Rules for neural network operations and random streams."""

from __future__ import annotations

from typing import Any, Dict, List, NamedTuple, Optional, Sequence, Tuple

from synk_core.engine import NoneTypeT

from .elemwise import coupled
from .layout import merge_layouts
from .reduced import union
from .shape import drawn
from .walk import (
    FIXED,
    Value,
    along,
    first_mixed,
    mixed,
    obstacle,
    plain,
    rows,
    rule,
    several,
    unknown,
    unruled,
)


class _Batched(NamedTuple):
    """An operation on one row (of axis 0) at a time.

    Attributes:
        inputs: indices of the inputs with rows.
        linear: those of them in which it is linear, jointly as a product.
    """

    inputs: Tuple[int, ...]
    linear: Tuple[int, ...] = ()


_BATCHED: Dict[str, _Batched] = {
    "Softmax": _Batched((0,)),
    "LogSoftmax": _Batched((0,)),
    "SoftmaxWithBias": _Batched((0,)),
    "SoftmaxGrad": _Batched((0, 1), (0,)),
    "CrossentropySoftmaxArgmax1HotWithBias": _Batched((0, 2)),
    "CrossentropySoftmax1HotWithBiasDx": _Batched((0, 1, 2), (0,)),
    "CrossentropyCategorical1Hot": _Batched((0, 1)),
    "CrossentropyCategorical1HotGrad": _Batched((0, 1, 2), (0,)),
    "BatchedDot": _Batched((0, 1), (0, 1)),
    "AbstractConv": _Batched((0,), (0,)),
    "AbstractConv_gradInputs": _Batched((1,), (1,)),
    "ConvOp": _Batched((0,), (0,)),
    "Pool": _Batched((0,), (0,)),
    "MaxPoolGrad": _Batched((0, 1, 2), (2,)),
    "AveragePoolGrad": _Batched((0, 1), (1,)),
    "DownsampleFactorMaxGradGrad": _Batched((0, 1, 2), (2,)),
    "MultinomialFromUniform": _Batched((0, 1)),
    "StructuredDot": _Batched((0,), (0,)),
}
_POOLS = frozenset(["Pool", "MaxPoolGrad", "AveragePoolGrad", "DownsampleFactorMaxGradGrad"])
_SOFTMAXES = frozenset(["Softmax", "LogSoftmax", "SoftmaxWithBias", "SoftmaxGrad"])


@rule(*_BATCHED, takes="mixed")
def batched(node: Any, values: List[Value]) -> Value:
    """Apply an operation to each row by itself."""
    name = next(base.__name__ for base in type(node.op).__mro__ if base.__name__ in _BATCHED)
    how = _BATCHED[name]
    if all(value.steady for value in values):
        return FIXED
    spread = [values[i] for i in how.inputs if values[i].axis is not None]
    if not spread:
        return _of_reduced(node, how, values)
    if any(value.axis != 0 for value in spread):
        if name in _SOFTMAXES:
            text = "is a softmax over rows: each rank normalizes by its own rows only"
            cure = "return its input with 'gather' and take the softmax after the call"
            result = mixed(node, text, cure, spread[0].axis)._replace(layout=spread[0].layout)
            return result if all(value.axis != 0 for value in spread) else several(result)
        return unknown(node, "works on a value whose first axis is not that of the rows")
    if name in _POOLS and node.inputs[0].ndim <= node.op.ndim:
        return unknown(node, "pools over rows")
    already = first_mixed(values)
    if already is not None:
        return along(already, 0, spread[0].layout)
    if not all(value.steady for i, value in enumerate(values) if i not in how.inputs):
        return coupled(node, 0)
    if any(values[i].kind != "rows" for i in how.inputs):
        return unknown(node, "combines rows with a value of another kind")
    layout = merge_layouts(node, [value.layout for value in spread])
    if isinstance(layout, Value):
        return layout._replace(axis=0)
    if any(values[i].degree for i in how.inputs if i not in how.linear):
        text = "is not linear in a value that was divided by the number of rows"
        return mixed(node, text, "use a sum over rows in place of the mean", 0)
    return rows(0, layout, sum(values[i].degree for i in how.linear))


def _of_reduced(node: Any, how: _Batched, values: Sequence[Value]) -> Value:
    moving = [i for i, value in enumerate(values) if not value.steady]
    already = first_mixed(values)
    if already is not None:
        return already
    value = values[moving[0]]
    if len(moving) == 1 and moving[0] in how.linear and value.kind in ("sum", "fixed"):
        if type(node.op).__name__ not in _POOLS:
            return value
    if value.kind == "noise":
        return unruled(node, values)
    return unknown(node, "works on a value that was reduced over rows")


@rule("AbstractBatchNormTrain", takes="mixed")
def batch_norm(node: Any, values: List[Value]) -> List[Value]:
    """Normalize with statistics of the batch."""
    count, x = len(node.outputs), values[0]
    if x.axis is None or not all(v.steady for v in values[1:]):
        return [unruled(node, values)] * count
    if x.kind == "mixed":
        return [x] + [x._replace(axis=None)] * (count - 1)
    if x.kind != "rows" or x.degree:
        return [unknown(node)] * count
    if x.axis not in node.op.axes:
        return [x, x, x, *[unknown(node)] * (count - 3)]
    text = "normalizes by mean and variance of the rows of one rank"
    cure = "use stored statistics (batch_normalization_test), or accept that they are per rank"
    spoiled = mixed(node, text, cure)
    mean = Value("sum", 0.0)
    return [spoiled._replace(axis=x.axis, layout=x.layout), mean, spoiled, mean, spoiled][:count]


@rule("AbstractBatchNormInference", takes="mixed")
def batch_norm_inference(node: Any, values: List[Value]) -> Value:
    """Normalize entry by entry with stored statistics."""
    x = values[0]
    if x.axis is None:
        return unruled(node, values)
    if x.kind == "mixed":
        return x
    if any(value.kind in ("sum", "mixed") for value in values[1:]):
        return coupled(node, x.axis)
    steady = all(value.steady for value in values[1:])
    return x if steady and not x.degree and x.axis in node.op.axes else unknown(node)


@rule("AbstractBatchNormTrainGrad", takes="mixed")
def batch_norm_gradient(node: Any, values: List[Value]) -> List[Value]:
    """Return the gradients of a normalization with statistics of the batch."""
    count, x = len(node.outputs), values[0]
    if x.axis is None:
        return [unruled(node, values)] * count
    if x.axis not in node.op.axes:
        return [unknown(node)] * count
    text = "is the gradient of a normalization by mean and variance of the rows of one rank"
    result = mixed(node, text, "use stored statistics, or accept that they are per rank")
    return [result._replace(axis=x.axis, layout=x.layout), result, result][:count]


# ---- random streams --------------------------------------------------------------------------


@rule("RandomFunction", takes="all")
def random_function(node: Any, values: List[Value]) -> List[Value]:
    """Draw from NumPy's generator: generator, shape, parameters -> generator, draws."""
    return [FIXED, _draws(node, values[1].items, [plain(value) for value in values[2:]])]


@rule("mrg_uniform", takes="all")
def mrg_uniform(node: Any, values: List[Value]) -> List[Value]:
    """Draw from MRG31k3p: the generator's state, a shape -> the state, draws."""
    return [FIXED, _draws(node, values[1].items, [])]


@rule("RandomVariable", takes="all")
def random_variable(node: Any, values: List[Value]) -> List[Value]:
    """Draw from PyTensor's generator: generator, batch shape, parameters -> generator, draws.

    Each item of the batch is drawn by itself, with its own parameters.
    """
    batch = node.outputs[1].ndim - node.op.ndim_supp
    parameters, variables = [plain(value) for value in values[2:]], node.inputs[2:]
    for own, variable, value in zip(node.op.ndims_params, variables, parameters):
        if value.axis is not None and value.axis >= variable.ndim - own:
            return [FIXED, unknown(node, "draws items that depend on all rows")]
    items = values[1].items
    if isinstance(node.inputs[1].type, NoneTypeT):
        items = (FIXED,) * batch
    draws = _draws(node, items, parameters, node.op.ndims_params)
    if draws.axis is None:
        return [FIXED, draws]
    for own, variable, value in zip(node.op.ndims_params, variables, parameters):
        place = draws.axis - batch + variable.ndim - own
        if value.axis is None and place >= 0 and not variable.broadcastable[place]:
            return [FIXED, unknown(node, "draws with a fixed number of parameters")]
    return [FIXED, draws]


def _draws(
    node: Any,
    items: Optional[Tuple[Any, ...]],
    parameters: Sequence[Value],
    own: Optional[Sequence[int]] = None,
) -> Value:
    """Return draws of a shape.

    Args:
        items: the shape, without the axes of one draw; as far as parameters make it, any.
        own: number of axes of each parameter that belong to one draw.
    """
    spread = [value for value in parameters if value.axis is not None]
    spoiled = obstacle(node, parameters) or first_mixed(parameters)
    if spoiled is not None:
        return spoiled
    if spread:
        # Parameters are aligned with the draws from the last axis backwards.
        own = own or [0] * len(parameters)
        ndim = node.outputs[1].ndim - getattr(node.op, "ndim_supp", 0)
        aligned = [
            value._replace(axis=ndim - (variable.ndim - axes) + (value.axis or 0))
            for variable, value, axes in zip(node.inputs[2:], parameters, own)
            if value.axis is not None
        ]
        ok = items is not None and all(
            value.kind == "rows" and not value.degree for value in aligned
        )
        for axis, item in enumerate(items or ()):
            ok = ok and (item.steady or axis == aligned[0].axis)
        return union(node, aligned) if ok else unknown(node, "draws with unknown parameters")
    if not all(value.steady for value in parameters):
        return unknown(node, "draws with parameters that were reduced over rows")
    return drawn(items)
