"""Rules for scalar functions, entry by entry.

Of rows alone every such function is row-wise. `reduced` has the rules for values without rows.
"""

from __future__ import annotations

import math
from typing import Any, List, Optional, Sequence, Tuple

from .layout import merge_layouts
from .reduced import CURE, SMOOTH, degree_of, known_linear, of_reduced
from .walk import (
    FIXED,
    NOISE,
    ZERO,
    Value,
    along,
    first_mixed,
    first_of,
    has_shape,
    mixed,
    obstacle,
    pairs_of_rows,
    plain,
    rule,
    unknown,
)

_ALIASES = {
    "Composite": "",  # several functions: it is only known to work entry by entry
    "UltraFastScalarSigmoid": "ScalarSigmoid",
    # Theano's names for what PyTensor calls otherwise.
    "Reciprocal": "Inv",
    "Sigmoid": "ScalarSigmoid",
    "Sign": "Sgn",
    "Softplus": "ScalarSoftplus",
}

_FOLDS = {
    "Add": sum,
    "Neg": lambda numbers: -numbers[0],
    "Sub": lambda numbers: numbers[0] - numbers[1],
    "Mul": math.prod,
}


@rule("Elemwise", takes="all")
def elemwise(node: Any, values: List[Value]) -> Value:
    """Apply a scalar function to the entries at each place."""
    scalar = node.op.scalar_op
    name = type(scalar).__name__
    name = _ALIASES.get(name, name)
    if any(value.items is not None for value in values):
        spread = _spread(values)
        if spread is not None:
            return FIXED._replace(items=tuple(_combine(node, name, list(v)) for v in spread))
    return _combine(node, name, [plain(value) for value in values])


_PASSING = (
    "ScalarFromTensor",
    "TensorFromScalar",
    "Rebroadcast",
    "SpecifyShape",
    "DeepCopyOp",
    "GpuFromHost",
    "GpuToGpu",
    "HostFromGpu",
    "Print",
    "ViewOp",
    "Assert",
)


@rule(*_PASSING, takes="all")
def passes(_node: Any, values: List[Value]) -> Value:
    """Return the first input."""
    return values[0]


@rule("CheckAndRaise", takes="all")
def checks(node: Any, values: List[Value]) -> Value:
    """Return the first input if all others are true.

    A condition of all rows has to hold for each part of them, too: PyMC makes -inf of a value whose
    condition does not hold.
    """
    value, *conditions = map(plain, values)
    if value.kind in ("unknown", "mixed"):
        return value
    if all(condition.steady or condition.kind == "min" for condition in conditions):
        return values[0]
    return unknown(node, "checks what may hold for all rows and not for a part of them")


def _spread(values: Sequence[Value]) -> Optional[List[Tuple[Value, ...]]]:
    """Return the arguments of each entry of a short vector; None if lengths are unknown."""
    lengths = {len(v.items) for v in values if v.items is not None and len(v.items) != 1}
    if len(lengths) > 1:
        return None
    length = lengths.pop() if lengths else 1
    columns = []
    for value in values:
        if value.items is None:
            if value.kind not in ("fixed", "unknown"):
                return None
            # It may be a vector: one value stands for all its entries.
            columns.append((value,) * length)
        else:
            columns.append(value.items if len(value.items) == length else value.items * length)
    return list(zip(*columns))


def _combine(node: Any, name: str, values: List[Value]) -> Value:
    if name == "Second":
        return _second(node, values)
    if name == "Mul" and any(value.zero for value in values):
        return _zero(node, values)
    spoiled = obstacle(node, values)
    if spoiled is not None:
        return spoiled
    folded = _fold(name, values)
    spread = [value for value in values if value.axis is not None]
    if spread:
        result = _with_rows(node, name, values, spread)
    elif first_of("noise", values) is not None:
        fixed = all(value.kind in ("noise", "fixed") for value in values)
        result = NOISE if fixed else unknown(node, "combines random draws with a reduction")
    else:
        result = of_reduced(node, name, values)
    return result._replace(literal=folded) if result.kind in ("fixed", "rows") else result


def _fold(name: str, values: Sequence[Value]) -> Optional[float]:
    numbers = [value.literal for value in values]
    if any(number is None for number in numbers):
        return None
    if name in ("Identity", "Cast") and float(numbers[0] or 0).is_integer():
        return numbers[0]
    return _FOLDS[name](numbers) if name in _FOLDS else None  # type: ignore[operator]


def _zero(node: Any, values: Sequence[Value]) -> Value:
    if first_mixed(values) is not None:
        return unknown(node, "is zero unless a rank's part is infinite")
    unshaped = next((value for value in values if not has_shape(value)), None)
    if unshaped is not None and not all(node.outputs[0].broadcastable):
        return unknown(node, "is zero in an unknown shape")
    spread = next((value for value in values if value.axis is not None), None)
    if spread is None:
        return ZERO
    if any(value.axis not in (None, spread.axis) for value in values):
        return unknown(node, "combines each row with each other row")
    return Value("rows", 0.0, spread.axis, spread.layout, literal=0.0)


def _second(node: Any, values: Sequence[Value]) -> Value:
    """Return the second input in the shape of the first."""
    shape, value = values
    if None not in (shape.axis, value.axis) and shape.axis != value.axis:
        return unknown(node, "combines each row with each other row")
    if all(node.inputs[0].broadcastable) or (has_shape(shape) and shape.axis is None):
        return value
    if value.axis is not None:
        return value
    if not has_shape(shape):
        unfollowed = shape.kind == "unknown"
        return shape._replace(axis=None) if unfollowed else unknown(node, "has an unknown shape")
    if value.kind in ("mixed", "unknown", "noise"):
        return value._replace(axis=shape.axis) if value.kind == "mixed" else value
    if value.kind != "fixed":
        return coupled(node, shape.axis)
    return Value("rows", value.degree, shape.axis, shape.layout, literal=value.literal)


def coupled(node: Any, axis: Optional[int]) -> Value:
    """Return the value of a node that combines rows with a reduction over them."""
    text = (
        "combines each row with a reduction over all rows, which on each rank covers only its own"
    )
    return mixed(node, text, _CURE_OF_COUPLED, axis)


_CURE_OF_COUPLED = (
    "reduce over all ranks in the graph, with in_graph.all_reduce() (batch normalisation: "
    f"convert(network) of synkhronos.extensions.lasagne, before get_output()), or {CURE}"
)


# ---- with rows -------------------------------------------------------------------------------


def _with_rows(node: Any, name: str, values: Sequence[Value], spread: Sequence[Value]) -> Value:
    axis = spread[0].axis
    if name == "Switch" and values[0].axis is None and not values[0].steady:
        return unknown(node, "chooses by a value that was reduced over rows")
    already = first_mixed(values)
    if already is not None:
        return along(already, axis, spread[0].layout)
    if any(value.axis != axis for value in spread):
        return pairs_of_rows(node)
    layout = merge_layouts(node, [value.layout for value in spread])
    if isinstance(layout, Value):
        return layout._replace(axis=axis)
    if any(value.kind in ("sum", "max", "min", "prod") for value in values):
        if name in ("Maximum", "Minimum", "Clip"):
            return unknown(node, "may or may not combine rows with a reduction over rows")
        return coupled(node, axis)
    for variable, value in zip(node.inputs, values):
        if value.kind == "fixed" and not variable.broadcastable[axis]:
            return unknown(node, "combines rows with a fixed number of rows")
    if any(value.kind == "position" for value in values):
        return _of_positions(node, name, values)
    degree = degree_of(known_linear(node, name), values)
    if degree is None and name not in SMOOTH:
        return unknown(node, "may or may not change a value divided by the number of rows")
    if degree is None:
        text = "is not linear in a value that was divided or multiplied by the number of rows"
        return mixed(node, text, "use a sum over rows in place of the mean", axis)
    return Value("rows", degree, axis, layout)


def _of_positions(node: Any, name: str, values: Sequence[Value]) -> Value:
    if name in ("Identity", "Cast"):
        return values[0]
    if name not in ("Add", "Sub", "Mul", "TrueDiv"):
        return unknown(node, "compares positions of rows")
    axis = next(value.axis for value in values if value.axis is not None)
    return mixed(node, "depends on the positions of rows, which each rank counts from 0", "", axis)
