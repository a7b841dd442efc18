"""Rules for products, neural networks, random draws, and operations that pass values on."""

from __future__ import annotations

from typing import Any, Dict, List, Sequence, Tuple, Union

from synk_core.engine import NoneTypeT, inner_graph

from .scalars import coupled, fixed_rows, pairs_of_rows
from .tensors import of_shape
from .walk import FIXED, Value, Walk, merged, mixed, plain, refuse, rows, rule

_PASSING = (
    "ScalarFromTensor", "TensorFromScalar", "Rebroadcast", "SpecifyShape", "DeepCopyOp",
    "GpuFromHost", "GpuToGpu", "HostFromGpu", "Print", "ViewOp", "Assert",
)  # fmt: skip


@rule(*_PASSING, takes=["all"])
def passes(_node: Any, values: Sequence[Value]) -> Value:
    return values[0]


@rule("CheckAndRaise", takes=["items"])
def checks(_node: Any, values: Sequence[Value]) -> Value:
    """Return the first input if all others are true, of all rows and so of each part of them."""
    # PyMC makes -inf of a value whose condition does not hold.
    hold = all(value.steady or value.kind == "min" for value in values[1:])
    refuse(not hold, "checks a condition that may hold for all rows and not for a part of them")
    return values[0]


@rule("Dot", "Dot22")
def dot(node: Any, values: List[Value]) -> Value:
    """Contract the last axis of the left and the first of the right, which sums over rows."""
    return _product(node, values, node.inputs[0].ndim - 1)


def _product(node: Any, values: Sequence[Value], last: int) -> Value:
    left, right = values
    of_rows = (left.axis == last) + (right.axis == 0)
    degree, kinds = left.degree + right.degree, {left.kind, right.kind}
    refuse(of_rows == 1, "multiplies rows with a fixed number of rows")
    if of_rows == 2:
        return Value("sum", degree + 1)
    if left.axis is not None and right.axis is not None:
        return pairs_of_rows(node)
    if left.axis is not None or right.axis is not None:
        axis, layout = last if left.axis is None else left.axis, merged(values)
        of_fixed = "fixed" in kinds
        return rows(axis, layout, degree) if of_fixed else coupled(node, axis, layout)
    refuse(kinds not in ({"fixed"}, {"fixed", "sum"}), "multiplies reductions over rows")
    return Value("sum" if "sum" in kinds else "fixed", degree)


_BATCHED: Dict[str, Tuple[Sequence[int], Sequence[int]]] = {
    "Softmax": ([0], []),
    "LogSoftmax": ([0], []),
    "SoftmaxWithBias": ([0], []),
    "SoftmaxGrad": ([0, 1], [0]),
    "CrossentropyCategorical1Hot": ([0, 1], []),
    "CrossentropyCategorical1HotGrad": ([0, 1, 2], [0]),
    "BatchedDot": ([0, 1], [0, 1]),
    "AbstractConv": ([0], [0]),
    "AbstractConv_gradInputs": ([1], [1]),
    "Pool": ([0], [0]),
    "MaxPoolGrad": ([0, 1, 2], [2]),
    "AveragePoolGrad": ([0, 1], [1]),
    "Conv2d": ([0], [0]),
    "Conv2dImages": ([1, 2], [1]),
    "Pool2d": ([0], [0]),
    "Pool2dAlong": ([0, 1], [0]),
    "Pool2dBack": ([0, 1], [0]),
}
"""Places of the inputs with rows, and of those in which an operation is linear, as a product."""


@rule(*_BATCHED)
def batched(node: Any, values: List[Value]) -> Value:
    """Apply an operation to each row (of axis 0) by itself."""
    name = next(base.__name__ for base in type(node.op).__mro__ if base.__name__ in _BATCHED)
    refuse("Pool" in name and node.inputs[0].ndim <= node.op.ndim, "pools over rows")
    places, linear = _BATCHED[name]
    spread, degrees = [values[i] for i in places], [values[i].degree for i in linear]
    refuse(any(value.axis != 0 for value in spread), "works on a value without rows along axis 0")
    steady = all(value.steady for i, value in enumerate(values) if i not in places)
    refuse(not steady, "combines rows with a value of another kind")
    scaled = sum(value.degree != 0 for value in spread) > sum(degree != 0 for degree in degrees)
    refuse(scaled, "may not be linear in a value that was divided by the number of rows")
    return rows(0, merged(spread), sum(degrees))


@rule("Blockwise")
def batched_products(node: Any, values: List[Value]) -> Value:
    """Multiply each item of a batch, whose axes come first."""
    refuse(type(node.op.core_op).__name__ != "Dot", "is no product")
    batch = node.outputs[0].ndim - len(node.op.outputs_sig[0])
    axes = {value.axis for value in values if value.axis is not None}
    if all(axis >= batch for axis in axes):
        inside = [v if v.axis is None else v._replace(axis=v.axis - batch) for v in values]
        result = _product(node, inside, 1)
        return result if result.axis is None else result._replace(axis=result.axis + batch)
    refuse(len(axes) > 1, "combines rows with each other")
    (axis,) = axes
    refuse(fixed_rows(node, values, axis), "combines rows with a fixed number")
    alone = all(value.axis is not None or value.steady for value in values)
    refuse(not alone, "combines rows with a value of another kind")
    return rows(axis, merged(values), sum(value.degree for value in values))


@rule("AbstractConv_gradWeights", "Conv2dFilters")
def filter_gradient(_node: Any, values: List[Value]) -> Value:
    """Return the gradient of a convolution's filters: a sum over the images."""
    images, above = values[:2]
    steady = all(value.steady for value in values[2:])
    refuse(not steady or images.axis != 0 or above.axis != 0, "works on something but rows")
    return Value("sum", images.degree + above.degree + 1)


@rule("AbstractBatchNormTrain", "AbstractBatchNormTrainGrad", "AbstractBatchNormInference")
def batch_norm(node: Any, values: List[Value]) -> Union[Value, Sequence[Value]]:
    """Normalize by statistics of the batch (and return them), or by others."""
    x, name = values[0], type(node.op).__name__
    refuse(x.axis is None or x.axis not in node.op.axes or x.degree != 0, "normalizes no rows")
    if name.endswith("Inference"):
        refuse(not all(value.steady for value in values[1:]), "normalizes by values of rows")
        return x
    text = (
        "normalizes by mean and variance of the rows of one rank (sync_batch_norm() of "
        "synkhronos.extensions.lasagne: of all ranks)"
    )
    cure = "use stored statistics (batch_normalization_test), or accept that they are per rank"
    spoiled = mixed(node, text, cure)
    of_rows = spoiled._replace(axis=x.axis, layout=x.layout)
    mean = spoiled if name.endswith("Grad") else Value("sum", 0.0)
    return [of_rows, mean, spoiled, mean, spoiled][: len(node.outputs)]


@rule("OpFromGraph", takes=["all"])
def of_a_graph(node: Any, values: Sequence[Value]) -> List[Value]:
    """Compute a graph."""
    inputs, outputs = inner_graph(node.op)
    walk = Walk(dict(zip(inputs, values)))
    return [walk.value(output) for output in outputs]


@rule("AllReduce")
def all_reduce(node: Any, values: List[Value]) -> Sequence[Value]:
    """Return a sum or average over ranks, times a power of the rank's share of the rows."""
    value, op = values[0], node.op
    if op.op == "gather" and value == rows(0):
        return [FIXED, FIXED]
    in_order = op.op in ("sum", "avg")
    refuse(not in_order, "puts together, or counts, what are not the rows in order")
    if value.zero:
        return [value, FIXED]
    refuse(value.kind not in ("sum", "fixed"), "reduces a value that was not reduced over rows")
    if value.degree == (1.0 if op.op == "sum" else 0.0):
        return [Value("fixed", float(op.power)), FIXED]
    text = f"takes the {op.op} over ranks of a value that is no mean, or no sum over rows"
    cure = "reduce a mean over rows, or what does not depend on them, with 'avg', a sum with 'sum'"
    return [mixed(node, text, cure), FIXED]


@rule("mrg_uniform", "RandomFunction", "RandomVariable", takes=["items"])
def random_variable(node: Any, values: List[Value]) -> List[Value]:
    """Draw from a generator: its state, a shape, parameters -> its state, draws.

    Parameters of one entry are followed, and draws of one number each.
    """
    several = any(not all(parameter.broadcastable) for parameter in node.inputs[2:])
    steady = all(plain(value).steady for value in values[2:])
    refuse(several or not steady, "draws with parameters that are not one number each")
    refuse(getattr(node.op, "ndim_supp", 0) > 0, "draws vectors")
    by_size = not isinstance(node.inputs[1].type, NoneTypeT)
    return [FIXED, of_shape(node, values[1].items if by_size else (FIXED,))]
