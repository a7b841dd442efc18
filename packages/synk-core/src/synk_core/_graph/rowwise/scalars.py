"""Rules for scalar functions, entry by entry.

Of rows alone every such function is row-wise. f(sum over rows) can be combined from parts if f is
linear; a function of a maximum, minimum or product over rows is not followed. Of a piecewise
function (a clip, an absolute value) the graph does not show whether it changes a sum.
"""

from __future__ import annotations

from typing import Any, List, Sequence

from .walk import FIXED, REDUCED, Value, merged, mixed, plain, refuse, rows, rule, scalar_name

_LINEAR = ("Identity", "Cast", "Neg")
_COMPARISONS = ("LT", "GT", "LE", "GE", "EQ", "NEQ")
_POWERS = {"Identity": 1.0, "Sqr": 2.0, "Sqrt": 0.5, "Inv": -1.0, "Reciprocal": -1.0}
_KEEPING_DEGREE = (
    *(*_LINEAR, *_COMPARISONS), "Abs", "Add", "Sub", "Maximum", "Minimum", "Switch",
)  # fmt: skip
_SMOOTH = (
    "Exp", "Expm1", "Log", "Log2", "Log10", "Log1p", "Sqrt", "Sqr", "Inv", "Tanh", "Sin", "Cos",
    "Sigmoid", "ScalarSigmoid", "Softplus", "ScalarSoftplus", "Erf", "Erfc", "GammaLn", "Log1mexp",
    "Pow", "Mul", "TrueDiv", "Reciprocal",
)  # fmt: skip
"""Functions that are no piecewise linear ones."""

CURE = "return its terms as outputs (sums over rows with 'sum'), and compute this after the call"
_ONCE_PER_RANK = (
    "multiply the constant by row_share(), or add it after the call; or return the mean with 'avg'"
)
_CURE_OF_COUPLED = (
    "reduce over all ranks in the graph, with in_graph.all_reduce() (batch normalisation: "
    "convert(network) of synkhronos.extensions.lasagne, before get_output(), or batch_norm() of "
    f"extensions.nn), or {CURE}"
)


@rule("Elemwise", takes=["items"])
def elemwise(node: Any, values: Sequence[Value]) -> Value:
    """Apply a scalar function to the entries at each place; of shapes, only casts."""
    name = scalar_name(node)
    name = "" if name == "Cast" and not _is_whole(node) else name
    if name == "Cast" and values[0].items is not None:
        items = (_combined(node, name, [item]) for item in values[0].items)
        return FIXED._replace(items=tuple(items))
    return _combined(node, name, [plain(value) for value in values])


def _is_whole(node: Any) -> bool:
    """Return whether a cast keeps fractions, or has none to keep."""
    target, source = str(node.outputs[0].dtype), str(node.inputs[0].dtype)
    whole = source.startswith(("int", "uint", "bool")) and target != "bool"
    return whole or target.startswith(("float", "complex"))


def _combined(node: Any, name: str, values: List[Value]) -> Value:
    if name == "Second":
        return _filled(node, *values)
    spread = [value for value in values if value.axis is not None]
    if any(value.axis != spread[0].axis for value in spread):
        return pairs_of_rows(node)
    if name == "Pow" and (not spread or all(node.inputs[1].broadcastable)):
        name = next((one for one in _POWERS if _POWERS[one] == values[1].literal), name)
        values = values if name == "Pow" else values[:1]
    numbers = [value.literal for value in values]
    of_zeros = name in (*_LINEAR, "Add", "Sub") and set(numbers) == {0}
    if of_zeros or (name == "Mul" and 0 in numbers):
        like = rows(spread[0].axis or 0, merged(spread)) if spread else FIXED
        return like._replace(literal=0.0)
    if spread:
        result = _with_rows(node, name, values, spread[0].axis or 0)
    else:
        result = _of_reduced(node, name, values)
    is_same = name in ("Identity", "Cast") and (numbers[0] or 0.0).is_integer()
    return result._replace(literal=numbers[0]) if is_same else result


def _filled(node: Any, shape: Value, value: Value) -> Value:
    """Return the value of filling a shape, that of another."""
    if shape.axis is None or value.axis == shape.axis:
        return value
    if value.axis is not None:
        return pairs_of_rows(node)
    if value.kind != "fixed":
        return coupled(node, shape.axis, shape.layout)
    refuse(not node.inputs[1].broadcastable[shape.axis], "has a fixed number of rows")
    return shape._replace(degree=value.degree, literal=value.literal)


def pairs_of_rows(node: Any) -> Value:
    """Return the value of a node that combines each row with each other row."""
    text, cure = "combines each row with each other row", "return the rows with 'gather'"
    return mixed(node, text, cure, layout="unshaped")


def coupled(node: Any, axis: int, layout: Any) -> Value:
    """Return the value of a node that combines rows with a reduction over them."""
    text = "combines each row with a reduction over all rows, which on a rank covers only its own"
    return mixed(node, text, _CURE_OF_COUPLED, axis, layout)


def fixed_rows(node: Any, values: Sequence[Value], axis: int) -> bool:
    """Return whether a value has entries along the axis of the rows, but no rows."""
    pairs = zip(node.inputs, values)
    return any(v.axis is None and not variable.broadcastable[axis] for variable, v in pairs)


def _with_rows(node: Any, name: str, values: Sequence[Value], axis: int) -> Value:
    by_reduced = name == "Switch" and values[0].axis is None and not values[0].steady
    refuse(by_reduced, "chooses by a value that was reduced over rows")
    refuse(fixed_rows(node, values, axis), "combines rows with a fixed number of rows")
    if any(value.kind in REDUCED for value in values):
        may_be = name in ("Maximum", "Minimum", "Clip", "Switch", "Composite", "", *_COMPARISONS)
        refuse(may_be, "may or may not combine rows with a reduction over rows")
        return coupled(node, axis, merged(values))
    return rows(axis, merged(values), _degree(name, values))


def _degree(name: str, values: Sequence[Value]) -> float:
    """Return the power of n of a scalar function of such values."""
    degrees = [value.degree for value in values]
    if name == "Mul":
        return sum(degrees)
    if name == "TrueDiv":
        return degrees[0] - degrees[1]
    if name in _POWERS:
        return _POWERS[name] * degrees[0]
    chosen = values[1:] if name == "Switch" and not degrees[0] else values
    found = {value.degree for value in chosen if not value.zero} or {0.0}
    follows = found == {0.0} or (len(found) == 1 and name in _KEEPING_DEGREE)
    refuse(not follows, "may or may not change a value divided by the number of rows")
    return 0.0 if name in _COMPARISONS else found.pop()


def _of_reduced(node: Any, name: str, values: List[Value]) -> Value:
    """Return the value of a scalar function of values without rows."""
    moving = [value for value in values if value.kind != "fixed"]
    if not moving:
        layout = values[0].layout if name == "Cast" else None
        return Value("fixed", _degree(name, values), layout=layout)
    if name in ("Add", "Sub"):
        return added(node, name, values)
    if name == "Switch":
        refuse(not values[0].steady, "chooses by a value that was reduced over rows")
        return union(values[1:])
    whole, extremes = moving[0], {"max": "min", "min": "max"}
    # Floats do not wrap around as integers do.
    if name == "Neg" and whole.kind in extremes and "float" in str(node.outputs[0].dtype):
        return Value(extremes[whole.kind])
    is_sum = all(value.kind == "sum" for value in moving)
    refuse(not is_sum, "is a function of a maximum, minimum or product over rows")
    if name in _LINEAR:
        return whole
    refuse(name == "TrueDiv" and values[1].zero, "divides by zero")
    if len(moving) == 1 and (name == "Mul" or (name == "TrueDiv" and whole is values[0])):
        return Value("sum", _degree(name, values))
    if name == "Exp" and whole.degree == 1:
        return Value("prod")
    smooth = name in _SMOOTH and not (name == "Pow" and whole is not values[0])
    refuse(not smooth, "may or may not change a value that was reduced over rows")
    what = describe_value(whole) if len(moving) == 1 else "several reductions over rows"
    return mixed(node, f"is not linear in {what}", CURE)


def added(node: Any, name: str, values: Sequence[Value]) -> Value:
    """Return the value of a sum or difference of values without rows."""
    moved = [term for term in values if not term.zero]
    if len(moved) == 1 and (name == "Add" or moved[0] is values[0]):
        return moved[0]
    kinds, degrees = {term.kind for term in moved}, {term.degree for term in moved}
    refuse(not kinds <= {"sum", "fixed"}, "adds reductions over rows of different kinds")
    if len(degrees) == 1:
        return Value("sum", degrees.pop())
    if any(term.steady for term in moved) and 1 in degrees:
        text = "adds a term that does not depend on the rows to a sum over rows: it would count"
        return mixed(node, f"{text} once for each rank", _ONCE_PER_RANK)
    text = "adds terms that grow differently with the number of rows (a sum and a mean)"
    return mixed(node, text, "make both sums or both means")


def describe_value(value: Value) -> str:
    """Return a phrase that describes a value."""
    if value.kind == "sum":
        scaled = "a sum over rows, scaled by the number of rows"
        return {1.0: "a sum over rows", 0.0: "a mean over rows"}.get(value.degree, scaled)
    if value.kind == "fixed":
        if value.steady:
            return "something that does not depend on the rows"
        of_number = "a function of the number of rows"
        return "proportional to the number of rows" if value.degree == 1 else of_number
    names = {"max": "a maximum", "min": "a minimum", "prod": "a product"}
    return f"{names[value.kind]} over rows" if value.kind in names else "a row-wise result"


def union(values: Sequence[Value]) -> Value:
    """Return the value of entries that come from any of the values."""
    moved = [value for value in values if not value.zero] or list(values[:1])
    kinds, degrees = {v.kind for v in moved}, {v.degree for v in moved}
    axes, literals = {v.axis for v in values}, {v.literal for v in values}
    refuse(len(axes) > 1 or len(degrees) > 1)
    literal = literals.pop() if len(literals) == 1 else None
    if axes != {None}:
        return rows(moved[0].axis or 0, merged(values), degrees.pop())._replace(literal=literal)
    if kinds <= {"sum", "fixed"}:
        return Value("sum" if "sum" in kinds else "fixed", degrees.pop(), literal=literal)
    extremes = kinds - {"fixed"}
    steady = all(value.kind in ("max", "min") or value.steady for value in values)
    refuse(len(extremes) > 1 or not steady)
    return Value(extremes.pop())
