"""Find how each variable of a graph depends on the rows: the values, and the walk over the graph.

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

The degree is needed for gradients of means: they spread 1/n over the rows, so each row has degree
-1, and their sum has degree 0, that of a mean. Frequent operations have rules (`scalars`,
`tensors`, `nets`); all others are unknown, and have to be proved by numbers.
"""

from __future__ import annotations

from typing import Any, Callable, Dict, NamedTuple, Optional, Sequence, Set, Tuple, Union

import numpy as np

from synk_core._graph.leaves import in_order, is_row_share
from synk_core._graph.random_streams import is_draw
from synk_core._graph.reduce_op import AllReduce
from synk_core.engine import NAME, Apply, Constant, Variable

ROW = "row"
"""Layout of an axis with one entry per row. Any other names an unknown number per row, equal for
equal layouts. A fixed value that is the length of such an axis has its layout."""


class Reason(NamedTuple):
    """The node that makes a value mixed or unknown, with a text about it and the cure."""

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


class Unfollowed(ValueError):
    """A rule does not follow a node, for the reason in the text."""


FAILED = "has a form that this check does not expect"


def refuse(unfollowed: bool, text: str = "does what this check does not follow") -> None:
    """In a rule, make the value of the node unknown, for the reason in the text."""
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

_RULES: Dict[str, Tuple[Optional[Handler], Sequence[str]]] = {}


def rule(*names: str, takes: Sequence[str] = ()) -> Callable[[Handler], Handler]:
    """Register the rule of the engine's own operations with these class names.

    Args:
        takes: kinds of inputs besides fixed, of rows, and reduced: "position", "items" (else short
            vectors are plain values), or "all". A node with others is unknown. A rule gets mixed
            inputs as row-wise ones or sums, and the results are mixed.
    """

    def register(handler: Handler) -> Handler:
        _RULES.update((name, (handler, takes)) for name in names)
        return handler

    return register


def scalar_name(node: Any) -> str:
    """Return the name of an elementwise operation's scalar function; "" of other operations."""
    scalar = getattr(node.op, "scalar_op", None) if node is not None else None
    return "" if scalar is None or hasattr(node.op, "axis") else type(scalar).__name__


def _leaf(variable: Variable) -> Value:
    """Return the value of a shared variable, an input without rows, or a constant."""
    if not isinstance(variable, Constant):
        return Value("fixed", 1.0) if is_row_share(variable) else FIXED
    if not isinstance(variable.data, (np.ndarray, np.number, np.bool_, int, float)):
        return FIXED
    array = np.asarray(variable.data)
    if array.ndim == 1 and array.size <= 16 and array.dtype.kind in "iu":
        return FIXED._replace(items=tuple(FIXED._replace(literal=float(n)) for n in array))
    equal = array.size and array.dtype.kind in "biuf" and (array == array.flat[0]).all()
    return FIXED._replace(literal=float(array.flat[0])) if equal else FIXED


class Walk:
    """Values of variables, found in topological order without recursion, from `known` ones (of
    scattered inputs). Variables that are neither known nor computed are fixed.

    `marks` has "draws" of variables that depend on random draws, and "meets" of those that depend
    on a reduction over ranks.
    """

    def __init__(self, known: Dict[Any, Value]) -> None:
        self.values: Dict[Any, Value] = dict(known)
        self.marks: Dict[Any, Set[str]] = {}

    def value(self, variable: Any) -> Value:
        """Return the value of a variable, after those of all its ancestors."""
        for each in in_order(variable, self.values, lambda v: v.owner.inputs if v.owner else ()):
            if each.owner is None:
                self.values[each] = _leaf(each)
            else:
                self._compute(each.owner)
        return self.values[variable]

    def _compute(self, node: Apply) -> None:
        values, is_meeting = [self.values[v] for v in node.inputs], type(node.op) is AllReduce
        try:
            result = _result(node, values)
        except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
            result = unknown(node, str(error) if isinstance(error, Unfollowed) else FAILED)
        results = [result] * len(node.outputs) if isinstance(result, Value) else result
        # Of values that do not depend on rows, ranks gather one each.
        if all(value.steady for value in values) and not is_meeting:
            results = [FIXED if value.kind == "unknown" else value for value in results]
        marks = {mark for v in node.inputs for mark in self.marks.get(v, ())}
        marks.update(["draws"] * is_draw(node.op), ["meets"] * is_meeting)
        for output, value in zip(node.outputs, results):
            # A variable may have a value already, because givens may replace results, too.
            self.values.setdefault(output, value)
            self.marks[output] = marks


def _result(node: Any, values: Sequence[Value]) -> Union[Value, Sequence[Value]]:
    """Return the value of a node's outputs, or that of each, by those of its inputs."""
    names = [base.__name__ for base in type(node.op).__mro__]
    # The graph that an operation is made of says more than its name.
    names.sort(key=lambda name: name != "OpFromGraph")
    known = type(node.op).__module__.split(".")[0] in (NAME, "pymc", "synk_core", "synkhronos")
    found = (_RULES[name] for name in names if known and name in _RULES)
    handler, takes = next(found, (None, ()))
    if handler is not None and "all" in takes:
        return handler(node, values)
    if "items" not in takes:
        values = [plain(value) for value in values]
    if scalar_name(node) == "Second" and all(node.inputs[0].broadcastable):
        return values[1]
    kinds = [value.kind for value in values]
    if "unknown" in kinds:
        return values[kinds.index("unknown")]
    if handler is None:
        return unknown(node)
    by_place = "position" in kinds and "position" not in takes
    refuse(by_place, "computes with the positions of rows, which each rank counts from 0")
    return _of_mixed(node, handler, values) if "mixed" in kinds else handler(node, values)


def _of_mixed(node: Any, handler: Handler, values: Sequence[Value]) -> Any:
    """Return the values of a node some of whose inputs are mixed: those of rows or sums, mixed."""
    given = [value for value in values if value.kind == "mixed"]
    reason, name = given[0].reason, scalar_name(node)
    if any(value.layout == "unshaped" for value in given):
        return Value("unknown", reason=reason)
    like = [
        v._replace(kind="sum" if v.axis is None else "rows", reason=None) if v in given else v
        for v in values
    ]
    result = handler(node, like)
    # Shapes do not depend on entries, nor does a value that fills a shape.
    if type(node.op).__name__.startswith("Shape") or (name == "Second" and values[1] is like[1]):
        return result
    results = [result] if isinstance(result, Value) else result
    undoes = name and _may_undo(values, given, results[0])
    refuse(bool(undoes), "may undo what was done to a value that was reduced over rows")
    refuse(any(value.zero for value in results), "is zero unless a rank's part is infinite")
    spoiled = [
        v if v.kind == "unknown" else Value("mixed", v.degree, v.axis, v.layout, reason=reason)
        for v in results
    ]
    return spoiled[0] if isinstance(result, Value) else spoiled


def _may_undo(values: Sequence[Value], given: Sequence[Value], result: Value) -> bool:
    """Return whether a scalar function may undo the cause of mixed arguments, as in the square of a
    root, the mean added to differences from it, or a variance added to a square of the mean."""
    if result.axis is not None:
        return any(v.axis is not None for v in given) and any(v.kind in REDUCED for v in values)
    if result.kind not in ("mixed", "prod"):
        return len({id(value.reason) for value in given}) > 1
    return any(v.reason is not None and v.reason.text.startswith("is not linear") for v in given)
