"""Rules for functions of values that were reduced over rows, or do not depend on rows.

f(sum over rows) can be combined from parts if f is linear, f(maximum) if f is monotone, and so on.
A piecewise function (a clip, an absolute value) may or may not change a reduced value; the graph
does not show which, so the result is unknown.
"""

from __future__ import annotations

from typing import Any, Dict, List, Optional, Sequence, Union

import numpy as np

from synk_core.engine import Constant

from .layout import merge_layouts, multiplied
from .walk import (
    FIXED,
    Value,
    first_mixed,
    mixed,
    obstacle,
    plain,
    rows,
    rule,
    unknown,
)

_LINEAR = frozenset(["Identity", "Cast", "Neg", "Real", "Imag", "Conj", "Deg2Rad", "Rad2Deg"])
# fmt: off
_INCREASING = frozenset([
    "Identity", "Deg2Rad", "Rad2Deg", "Exp", "Exp2", "Expm1", "Tanh", "Sinh", "ArcSinh", "ArcTan",
    "ScalarSigmoid", "ScalarSoftplus", "Erf", "Floor", "Ceil", "Trunc", "Sgn", "RoundHalfToEven",
    "RoundHalfAwayFromZero"
])
# Increasing from some number on. Below it one rank's NaN would be the result of all, but a rank's
# minimum is below it only if that of all rows is.
_INCREASING_FROM = frozenset(["Log", "Log2", "Log10", "Log1p", "Sqrt"])
_DECREASING = frozenset(["Neg", "Erfc", "Invert"])
SMOOTH = frozenset([
    "Exp", "Exp2", "Expm1", "Log", "Log2", "Log10", "Log1p", "Sqrt", "Sqr", "Inv", "Tanh", "Sinh",
    "Cosh", "ArcSinh", "ArcCosh", "ArcTan", "ArcTanh", "ArcSin", "ArcCos", "Sin", "Cos", "Tan",
    "ScalarSigmoid", "ScalarSoftplus", "Erf", "Erfc", "Erfcx", "Gamma", "GammaLn", "Psi",
    "TriGamma", "Log1mexp", "Pow", "Mul", "TrueDiv", "Reciprocal"
])
# fmt: on
_OF_PRODUCTS = frozenset(["Identity", "Sqr", "Inv", "Abs", "Sgn", "Conj"])
_COMPARISONS = frozenset(["LT", "GT", "LE", "GE", "EQ", "NEQ"])
_POWERS = {"Sqr": 2.0, "Sqrt": 0.5, "Inv": -1.0}
_AS_POWERS: Dict[Optional[float], str] = {1.0: "Identity", 2.0: "Sqr", 0.5: "Sqrt", -1.0: "Inv"}

CURE = "return its terms as outputs (sums over rows with 'sum'), and compute this after the call"
_ONCE_PER_RANK = (
    "multiply the constant by row_share(), or add it after the call; or return the mean with 'avg'"
)


def degree_of(name: str, values: Sequence[Value]) -> Optional[float]:
    """Return the power of n of a scalar function of such values; None if it has none."""
    degrees = [value.degree for value in values]
    if name in ("Add", "Sub", "Maximum", "Minimum") or name in _COMPARISONS:
        found = {v.degree for v in values if not v.zero}
        degree = found.pop() if found else 0.0
        if found:
            return None
        return 0.0 if name in _COMPARISONS else degree
    if name == "Mul":
        return sum(degrees)
    if name == "TrueDiv":
        return degrees[0] - degrees[1]
    if name in _LINEAR or name == "Abs":
        return degrees[0]
    if name == "Switch":
        found = {v.degree for v in values[1:] if not v.zero}
        return None if degrees[0] or len(found) > 1 else (found.pop() if found else 0.0)
    if name in _POWERS:
        return _POWERS[name] * degrees[0]
    if name == "Pow" and degrees[1] == 0 and values[1].literal is not None:
        return values[1].literal * degrees[0]
    return 0.0 if not any(value.degree and not value.zero for value in values) else None


def of_reduced(node: Any, name: str, values: List[Value]) -> Value:
    """Return the value of a scalar function of values without rows."""
    if name == "Pow" and _keeps_order(node):
        name = _AS_POWERS.get(values[1].literal, name)
        values = values[: 2 if name == "Pow" else 1]
    if all(value.kind == "fixed" for value in values):
        degree = degree_of(known_linear(node, name), values)
        if degree is None:
            text = "is a function of the number of rows that this check cannot follow"
            return unknown(node, text)
        layout = values[0].layout if name in ("Identity", "Cast") else None
        if name == "Mul" and degree in (0, 1):
            layout = multiplied(values)
        return Value("fixed", degree, layout=layout)
    if name in ("Add", "Sub"):
        return _added(node, name, values)
    if name == "Switch":
        if not values[0].steady:
            return unknown(node, "chooses by a value that was reduced over rows")
        return union(node, values[1:])
    result = (
        _linear(node, name, values)
        or _extremes(node, name, values)
        or _products(node, name, values)
    )
    if result is not None:
        return result
    already = first_mixed(values)
    if name not in SMOOTH:
        return unknown(node, "may or may not change a value that was reduced over rows")
    if already is not None:
        if _may_undo(node, name, values):
            return unknown(node, "may undo what was done to a value that was reduced over rows")
        return already
    if all(value.kind in ("max", "min", "fixed") for value in values):
        return unknown(node, "is monotone only for some values, and its argument is a maximum")
    return mixed(node, f"is not linear in {_phrase(values)}", CURE)


def _may_undo(node: Any, name: str, values: Sequence[Value]) -> bool:
    """Return whether a function may undo the one that made its argument mixed, as in the square of
    a norm, or is a product or quotient of such and another of the same argument."""
    made = [v.reason.node for v in values if v.kind == "mixed" and v.reason is not None]
    scalars = {type(getattr(each.op, "scalar_op", None)).__name__ for each in made if each}
    if name not in ("Mul", "TrueDiv"):
        return bool(scalars & SMOOTH)
    terms = [
        {variable}
        if value.kind != "mixed" or not value.reason or value.reason.node is None
        else {each for each in value.reason.node.inputs if not isinstance(each, Constant)}
        for variable, value in zip(node.inputs, values)
        if value.kind != "fixed"
    ]
    if len(terms) == 1:
        return name == "TrueDiv" and name in scalars
    return len(set().union(*terms)) < sum(map(len, terms))


def _phrase(values: Sequence[Value]) -> str:
    reduced = [value for value in values if value.kind != "fixed"]
    if len(reduced) > 1:
        return "several reductions over rows"
    return describe_value(reduced[0])


def describe_value(value: Value) -> str:
    """Return a phrase that describes a value."""
    if value.kind == "sum":
        names: Dict[float, str] = {1.0: "a sum over rows", 0.0: "a mean over rows"}
        return names.get(value.degree, "a sum over rows, scaled by the number of rows")
    if value.kind == "fixed":
        if value.degree == 0 or value.zero:
            return "something that does not depend on the rows"
        proportional = value.degree == 1
        return "proportional to the number of rows" if proportional else _OF_NUMBER
    phrases = {
        "max": "a maximum over rows",
        "min": "a minimum over rows",
        "prod": "a product over rows",
        "position": "the positions of rows, which each rank counts from 0",
        "noise": "random draws",
        "shuffled": "rows in an order that depends on all of them",
    }
    return phrases.get(value.kind, "a row-wise result")


def _added(node: Any, name: str, values: Sequence[Value]) -> Value:
    terms = list(values)
    if name == "Sub":
        flipped = {"max": "min", "min": "max"}
        terms[1] = terms[1]._replace(kind=flipped.get(terms[1].kind, terms[1].kind))
    moved = [term for term in terms if not term.zero]
    if len(moved) == 1 and (name == "Add" or moved[0] is not terms[1]):
        return moved[0]
    already = first_mixed(moved)
    if already is not None:
        return already
    extremes = [term for term in moved if term.kind in ("max", "min")]
    if len(extremes) == 1 and all(term.steady for term in moved if term is not extremes[0]):
        return extremes[0] if _keeps_order(node) else unknown(node, _WRAPS)
    if all(term.kind in ("sum", "fixed") for term in moved):
        degrees = {term.degree for term in moved}
        if len(degrees) == 1:
            return Value("sum", degrees.pop())
        if any(term.steady for term in moved) and any(term.degree == 1 for term in moved):
            text = "adds a term that does not depend on the rows to a sum over rows: it would count"
            return mixed(node, f"{text} once for each rank", _ONCE_PER_RANK)
        text = "adds terms that grow differently with the number of rows (a sum and a mean)"
        return mixed(node, text, "make both sums or both means")
    return mixed(node, "adds reductions over rows of different kinds", CURE)


def _linear(node: Any, name: str, values: Sequence[Value]) -> Optional[Value]:
    first = values[0]
    if name == "Cast" and not _is_wide(node):
        return None
    if name in _LINEAR and first.kind in ("sum", "mixed"):
        return first
    if name == "TrueDiv" and values[1].zero:
        return unknown(node, "divides by zero")
    if name in ("Mul", "TrueDiv"):
        moving = [value for value in values if value.kind != "fixed"]
        whole = moving[0]
        if len(moving) > 1 or (name == "TrueDiv" and whole is not first):
            return None
        degree = degree_of(name, values)
        if whole.kind in ("sum", "mixed"):
            return whole._replace(degree=degree or 0.0)
        factor = next((value for value in values if value is not whole), FIXED)
        if whole.kind in ("max", "min"):
            if not factor.steady or factor.literal is None:
                return unknown(node, "scales a maximum or minimum by a number of unknown sign")
            if not _keeps_order(node):
                return unknown(node, _WRAPS)
            flipped = "min" if whole.kind == "max" else "max"
            return whole._replace(kind=whole.kind if factor.literal > 0 else flipped)
        text = "multiplies a product over rows: the factor would count once for each rank"
        return mixed(node, text, "multiply after the call")
    return None


def known_linear(node: Any, name: str) -> str:
    """Return the name of a scalar function; "" for a cast that loses fractions."""
    return "" if name == "Cast" and not _is_wide(node) else name


_WRAPS = "may exceed the range of its integers, and its argument is a maximum or minimum"
_OF_NUMBER = "a function of the number of rows"


def _keeps_order(node: Any) -> bool:
    """Return whether the results are floats, which do not wrap around as integers do."""
    return str(node.outputs[0].dtype).startswith("float")


def _has_floats(node: Any) -> bool:
    return any(str(v.dtype).startswith("float") for v in node.inputs)


def _keeps_order_in_cast(node: Any) -> bool:
    """Return whether a cast keeps all values of its dtype in order: no integer wraps around."""
    source, target = str(node.inputs[0].dtype), str(node.outputs[0].dtype)
    return _keeps_order(node) or bool(np.can_cast(source, target, "safe"))


def _is_wide(node: Any) -> bool:
    """Return whether a cast loses no fractions, so that it can be applied to parts of a sum."""
    target, source = str(node.outputs[0].dtype), str(node.inputs[0].dtype)
    whole = ("int", "uint", "bool")
    return target.startswith(("float", "complex")) or (
        source.startswith(whole) and target != "bool"
    )


def _extremes(node: Any, name: str, values: Sequence[Value]) -> Optional[Value]:
    """Return the value of a function that can be combined from maxima or minima over rows."""
    moving = [value for value in values if value.kind != "fixed"]
    kinds = {value.kind for value in moving}
    if len(kinds) != 1 or not kinds <= {"max", "min"}:
        return None
    if not all(value.steady for value in values if value.kind == "fixed"):
        return None
    if name in ("AND", "OR") and all(v.dtype == "bool" for v in node.inputs):
        name = "Minimum" if name == "AND" else "Maximum"
    whole = moving[0]
    flipped = Value("min" if whole.kind == "max" else "max")
    if name == "Cast":
        return whole if _keeps_order_in_cast(node) else None
    if name in _INCREASING or (name in _INCREASING_FROM and whole.kind == "min"):
        return whole
    if name == "Neg" and not _keeps_order(node):
        return unknown(node, _WRAPS)
    if name in _DECREASING:
        return flipped
    if name in ("Maximum", "Minimum"):
        return whole if len(moving) == 1 or whole.kind == name[:3].lower() else None
    if name == "Clip" and len(moving) == 1 and whole is values[0]:
        low, high = (value.literal for value in values[1:])
        return whole if low is not None and high is not None and low <= high else None
    if name in ("GT", "GE", "LT", "LE") and len(moving) == 1:
        rising = (name in ("GT", "GE")) == (whole is values[0])
        result = whole if rising else flipped
        # Comparisons with NaN are false, and the NaN of one rank has to decide for all.
        exact = result.kind == "min" or not _has_floats(node)
        return result if exact else None
    return None


def _products(node: Any, name: str, values: Sequence[Value]) -> Optional[Value]:
    """Return the value of a function of a product over rows, or that is one."""
    first = values[0]
    if name in ("Exp", "Exp2") and first.kind == "sum" and first.degree == 1:
        return Value("prod")
    if name == "Pow" and _keeps_order(node) and (first.literal or 0) > 0:
        return Value("prod") if values[1].kind == "sum" and values[1].degree == 1 else None
    if name == "Pow" and first.kind == "prod" and values[1].kind == "fixed":
        power = values[1].literal
        if power is not None and power.is_integer() and (power >= 0 or _keeps_order(node)):
            return first
        return unknown(node, "is a power of a product over rows that is not known to be whole")
    if name == "TrueDiv" and first.literal == 1 and values[1].kind == "prod":
        return values[1] if str(node.inputs[1].dtype).startswith("float") else None
    if first.kind == "prod" and name in ("Log", "Sqrt"):
        return unknown(
            node, "is NaN where a rank's product is negative, and that of all may not be"
        )
    if first.kind == "prod" and name in _OF_PRODUCTS:
        return first
    if name in ("Mul", "TrueDiv") and all(value.kind == "prod" for value in values):
        return first
    return None


@rule("IfElse")
def ifelse(node: Any, values: List[Value]) -> List[Value]:
    """Return one of two lists of values."""
    count = node.op.n_outs
    if not values[0].steady:
        return [unknown(node, "chooses by a value that depends on the rows")] * count
    return [union(node, [values[1 + i], values[1 + count + i]]) for i in range(count)]


def union(node: Any, values: Sequence[Value]) -> Value:
    """Return the value of entries that come from any of the values."""
    spoiled = obstacle(node, values) or first_mixed(values)
    if spoiled is not None:
        return spoiled
    spread = [value for value in values if value.axis is not None]
    if 0 < len(spread) < len(values):
        return unknown(node, "puts rows together with a fixed number of rows")
    moved = [value for value in values if not value.zero] or list(values[:1])
    kinds = {value.kind for value in moved}
    if kinds <= {"sum", "fixed"} and len({value.degree for value in moved}) == 1:
        literal = values[0].literal if len({value.literal for value in values}) == 1 else None
        return Value("sum" if "sum" in kinds else "fixed", moved[0].degree, literal=literal)
    if all(value.kind in ("max", "min") or value.steady for value in values):
        if len(kinds - {"fixed"}) == 1:
            return Value((kinds - {"fixed"}).pop())
    if kinds == {"prod"} and len(moved) == len(values):
        return moved[0]
    same = len({value.axis for value in values}) == len({value.degree for value in moved}) == 1
    if kinds == {"rows"} and same:
        layout = merge_layouts(node, [value.layout for value in values])
        if not isinstance(layout, Value):
            return moved[0]._replace(layout=layout, literal=None)
    return unknown(node, "puts together values of different kinds")


@rule("AllReduce")
def all_reduce(node: Any, values: List[Value]) -> Union[Value, Sequence[Value]]:
    """Return a sum or average over ranks, times a power of the rank's share of the rows."""
    value, op = plain(values[0]), node.op
    wanted = 1.0 if op.op == "sum" else 0.0
    if op.op in ("gather", "before"):
        if op.op == "gather" and value == rows():
            return [FIXED, FIXED]
        return [unknown(node, "puts together, or counts, what are not the rows in order"), FIXED]
    if value.zero:
        return [value, FIXED]
    if value.kind in ("sum", "fixed"):
        if value.degree == wanted:
            return [Value("fixed", float(op.power)), FIXED]
        if value.steady:
            text = "adds up a value that does not depend on the rows: it counts once for each rank"
            return [mixed(node, text, "reduce it with 'avg'"), FIXED]
        average = op.op == "avg"
        text = "averages a value that is no mean" if average else "adds up a value that is no sum"
        cure = "reduce a mean over rows with 'avg', or a sum with 'sum'"
        return [mixed(node, text, cure), FIXED]
    return [unknown(node, "reduces a value over ranks that was not reduced over rows"), FIXED]
