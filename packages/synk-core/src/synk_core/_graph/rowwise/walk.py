"""How each variable of a graph depends on the rows: the values, and the walk over the graph.

This is an abstract interpretation of the graph as it was written, before any optimization. Let n be
the number of rows of an execution. Each variable gets a `Value`:

=========  ======================================================================================
kind       the variable is
=========  ======================================================================================
fixed      n^degree times something that does not depend on rows (degree 0: parameters, constants;
           degree 1: the number of rows, a row share)
rows       n^degree times a row-wise result: entry i along `axis` depends on one row alone, and
           entries are in the order of rows, the same number for each
sum        n^(degree - 1) times a sum over rows (degree 1: a sum, degree 0: a mean)
max, min   the largest or smallest over rows of a row-wise result
prod       the product over rows of a row-wise result
position   the numbers 0 ... n - 1, along `axis`
mixed      none of these for certain: `reason` has the node that is the cause
unknown    not known: `reason` has the node that the check cannot follow
=========  ======================================================================================

The degree is what makes gradients of means right: they spread 1/n over the rows, so each row has
degree -1, and their sum has degree 0, that of a mean. There are rules for what is frequent
(`scalars`, `tensors`, `nets`); all else is unknown, and has to be proved by numbers.
"""

from __future__ import annotations

from typing import Any, Callable, Dict, List, NamedTuple, Optional, Sequence, Set, Tuple, Union

import numpy as np

from synk_core._graph.random_streams import is_draw
from synk_core._graph.reduce_op import AllReduce
from synk_core.engine import NAME, Apply, Constant, Variable

ROW = "row"
"""Layout of an axis with one entry per row. Any other names an unknown number per row, equal for
equal layouts. A fixed value that is the length of such an axis has its layout."""


class Reason(NamedTuple):
    """The node that made a value mixed or unknown, with a text about it and the cure."""

    node: Any
    text: str
    cure: str = ""


class Value(NamedTuple):
    """How a variable depends on the rows.

    Attributes:
        axis: axis of the rows (of rows and positions; of mixed values with entries for each row).
        literal: number that every entry of a fixed or row-wise value equals, if known.
        items: entries of a short vector (a shape), all fixed. The other fields say nothing then.
    """

    kind: str
    degree: float = 0.0
    axis: Optional[int] = None
    layout: Any = None
    literal: Optional[float] = None
    items: Optional[Tuple[Any, ...]] = None
    reason: Optional[Reason] = None

    @property
    def zero(self) -> bool:
        """Whether every entry is known to be 0, so that it can be added to any value."""
        return self.literal == 0

    @property
    def steady(self) -> bool:
        """Whether it is the same on any part of the rows."""
        is_same = self.kind == "fixed" and (self.degree == 0 or self.zero)
        return is_same and all(item.steady for item in self.items or ())


FIXED = Value("fixed")
REDUCED = ("sum", "max", "min", "prod")


def rows(axis: int, layout: Any = ROW, degree: float = 0.0) -> Value:
    return Value("rows", degree, axis, layout)


def mixed(
    node: Any, text: str, cure: str = "", axis: Optional[int] = None, layout: Any = None
) -> Value:
    """Return a value that parts of the rows do not combine to; without `axis` it has no rows."""
    return Value("mixed", axis=axis, layout=layout, reason=Reason(node, text, cure))


def unknown(node: Any, text: str = "is an operation unknown to this check") -> Value:
    return Value("unknown", reason=Reason(node, text))


class Unfollowed(Exception):
    """A rule does not follow a node, which does what the text says."""


FAILED = "has a form that this check does not expect"


def refuse(unfollowed: bool, text: str = "does what this check does not follow") -> None:
    """Make the value of the node, whose rule calls this, unknown if it does what the text says."""
    if unfollowed:
        raise Unfollowed(text)


def plain(value: Value) -> Value:
    """Return a short vector as one value, without its entries; any other value unchanged."""
    if value.items is None:
        return value
    degrees = {item.degree for item in value.items if not item.zero}
    refuse(len(degrees) > 1, "uses a shape as data")
    return Value("fixed", degrees.pop() if degrees else 0.0)


def merged(values: Sequence[Value]) -> Any:
    """Return the layout of row-wise values of equal length."""
    layouts = [value.layout for value in values if value.axis is not None]
    return ROW if ROW in layouts else layouts[0]


Handler = Callable[..., Union[Value, Sequence[Value]]]
"""Function of a node and its inputs' values that returns its output's, or all outputs', values."""


_Rule = Tuple[Optional[Handler], Sequence[str]]
_RULES: Dict[str, _Rule] = {}


def rule(*names: str, takes: Sequence[str] = ()) -> Callable[[Handler], Handler]:
    """Register the rule of the engine's own operations with these class names.

    Args:
        takes: what inputs may be besides fixed, of rows, and reduced: "position", "items" (else
            short vectors are plain values), or "all". A node with others is unknown. Mixed inputs
            are row-wise or sums to a rule, and what is computed from them is mixed.
    """

    def register(handler: Handler) -> Handler:
        _RULES.update((name, (handler, takes)) for name in names)
        return handler

    return register


def _find_rule(op_class: type) -> _Rule:
    """Return the rule of a class of the engine's or ours, or its parent's; None for users'."""
    names = [base.__name__ for base in op_class.__mro__]
    # The graph that an operation is made of says more than its name.
    names.sort(key=lambda name: name != "OpFromGraph")
    known = op_class.__module__.split(".")[0] in (NAME, "pymc", "synk_core")
    return next((_RULES[name] for name in names if known and name in _RULES), (None, ()))


def scalar_name(node: Any) -> str:
    """Return the name of an elementwise operation's scalar function; "" of other operations."""
    scalar = getattr(node.op, "scalar_op", None) if node is not None else None
    return "" if scalar is None or hasattr(node.op, "axis") else type(scalar).__name__


def _leaf(variable: Variable) -> Value:
    """Return the value of a shared variable, an input without rows, or a constant."""
    if not isinstance(variable, Constant):
        is_share = getattr(variable.tag, "synk_row_share", False)
        return Value("fixed", 1.0) if is_share else FIXED
    if not isinstance(variable.data, (np.ndarray, np.number, np.bool_, int, float)):
        return FIXED
    array = np.asarray(variable.data)
    if array.ndim == 1 and array.size <= 16 and array.dtype.kind in "iu":
        return FIXED._replace(items=tuple(FIXED._replace(literal=float(n)) for n in array))
    equal = array.size and array.dtype.kind in "biuf" and (array == array.flat[0]).all()
    return FIXED._replace(literal=float(array.flat[0])) if equal else FIXED


class Walk:
    """Values of variables, found in topological order without recursion.

    Args:
        known: values to start from (scattered inputs). Variables that are neither in it nor
            computed are fixed.

    Attributes:
        marks: "draws" of variables that depend on random draws, "meets" of those that depend on a
            reduction over ranks.
    """

    def __init__(self, known: Dict[Any, Value]) -> None:
        self.values: Dict[Any, Value] = dict(known)
        self.marks: Dict[Any, Set[str]] = {}

    def value(self, variable: Any) -> Value:
        """Return the value of a variable, after those of all its ancestors."""
        stack: List[Any] = [variable]
        while stack:
            current = stack.pop()
            if current in self.values:
                continue
            inputs = [] if current.owner is None else current.owner.inputs
            missing = [v for v in inputs if v not in self.values]
            if missing:
                stack += [current, *missing]
            elif current.owner is None:
                self.values[current] = _leaf(current)
            else:
                self._compute(current.owner)
        return self.values[variable]

    def _compute(self, node: Apply) -> None:
        values = [self.values[variable] for variable in node.inputs]
        result: Any
        try:
            result = _result(node, values)
        except Unfollowed as reason:
            result = unknown(node, str(reason))
        except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError):
            # The rule does not expect this form of the operation, which must not refuse a function.
            result = unknown(node, FAILED)
        if getattr(result, "kind", "") == "unknown" and all(value.steady for value in values):
            result = FIXED
        marks = {mark for v in node.inputs for mark in self.marks.get(v, ())}
        if is_draw(node.op) or type(node.op) is AllReduce:
            marks.add("draws" if is_draw(node.op) else "meets")
        several = [result] * len(node.outputs) if isinstance(result, Value) else result
        for output, value in zip(node.outputs, several):
            # A variable may have a value already, because givens may replace results, too.
            self.values.setdefault(output, value)
            self.marks[output] = marks


def _result(node: Any, values: Sequence[Value]) -> Union[Value, Sequence[Value]]:
    """Return the value of a node's outputs, or that of each, by those of its inputs."""
    handler, takes = _find_rule(type(node.op))
    if handler is not None and "all" in takes:
        return handler(node, values)
    if "items" not in takes:
        values = [plain(value) for value in values]
    kinds = {value.kind for value in values}
    if scalar_name(node) == "Second" and all(node.inputs[0].broadcastable):
        return values[1]
    if "unknown" in kinds:
        return next(value for value in values if value.kind == "unknown")
    if handler is None:
        return unknown(node)
    by_place = "position" in kinds and "position" not in takes
    refuse(by_place, "computes with the positions of rows, which each rank counts from 0")
    return _of_mixed(node, handler, values) if "mixed" in kinds else handler(node, values)


def _of_mixed(node: Any, handler: Handler, values: Sequence[Value]) -> Any:
    """Return the values of a node some of whose inputs are mixed: those of rows or sums, mixed."""
    given = [value for value in values if value.kind == "mixed"]
    reason = given[0].reason
    if any(value.layout == "unshaped" for value in given):
        return Value("unknown", reason=reason)
    kinds = {value: "sum" if value.axis is None else "rows" for value in given}
    like = [v._replace(kind=kinds[v], reason=None) if v in given else v for v in values]
    result, name = handler(node, like), scalar_name(node)
    outputs = [result] if isinstance(result, Value) else result
    # Shapes do not depend on what entries are, nor does what is filled in a shape.
    if type(node.op).__name__.startswith("Shape") or (name == "Second" and values[1] is like[1]):
        return result
    undoes = name and _may_undo(values, given, outputs[0])
    refuse(bool(undoes), "may undo what was done to a value that was reduced over rows")
    refuse(any(value.zero for value in outputs), "is zero unless a rank's part is infinite")
    spoiled = [Value("mixed", v.degree, v.axis, v.layout, reason=reason) for v in outputs]
    known = [v if v.kind == "unknown" else s for v, s in zip(outputs, spoiled)]
    return known[0] if isinstance(result, Value) else known


def _may_undo(values: Sequence[Value], given: Sequence[Value], result: Value) -> bool:
    """Return whether a scalar function may undo what made its arguments mixed, as in the square of
    a root, the mean added to differences from it, or a variance added to a square of the mean."""
    if result.axis is not None:
        return any(v.axis is not None for v in given) and any(v.kind in REDUCED for v in values)
    if result.kind not in ("mixed", "prod"):
        return len({id(value.reason) for value in given}) > 1
    return any(v.reason is not None and v.reason.text.startswith("is not linear") for v in given)
