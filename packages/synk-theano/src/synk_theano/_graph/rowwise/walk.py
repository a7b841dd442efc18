"""What each variable of a graph has to do with the rows: the values, and the walk over the graph.

An abstract interpretation of the graph as it was written, before any optimization. Let n be the
number of rows that an execution sees. Each variable gets a `Value`:

=========  ======================================================================================
kind       the variable is
=========  ======================================================================================
fixed      n^degree times something that no row has to do with (degree 0: parameters, constants;
           degree 1: the number of rows, a row share)
rows       n^degree times a row-wise result: entry i along `axis` depends on row i alone
sum        n^(degree - 1) times a sum over rows (degree 1: a sum, degree 0: a mean)
max, min   the largest or smallest over rows of a row-wise result
prod       the product over rows of a row-wise result
position   the numbers 0 ... n - 1 along `axis`
noise      draws that no row has to do with, of a shape that is not known
shuffled   rows whose order depends on all of them (sorted, for example)
mixed      none of these for certain: `note` says which node spoiled it
unknown    not known: `note` says which node was not understood
=========  ======================================================================================

The degree makes gradients of means come out right: they spread 1/n over the rows, so each row has
degree -1, and summing them up gives degree 0, a mean. The rules are in
`elemwise` and `reduced` (scalar functions), `shape`, `index`,
`tensor`, `products`, `nnet` and `scan`; verdicts in `check`.
"""

from __future__ import annotations

from typing import (
    Any,
    Callable,
    Dict,
    Iterable,
    List,
    NamedTuple,
    Optional,
    Sequence,
    Set,
    Tuple,
    Union,
)

import numpy as np
from theano.gof import Apply, Constant, Variable

from synk_theano._graph.reduce_op import AllReduce

ROW = "row"
"""The layout of an axis with one entry per row, in order. Others:

- ("block", key): several adjacent entries per row;
- ("outer", dims, layout): all rows, several times, as when (time, rows) is made one axis;
- ("any", length layout): entries that are alike or drawn, so that they may belong to any row;
- ("reversed", layout), ("joined", layout, ...): in reverse order, one after the other;
- ("several",): of mixed values whose shape is not known, or known only in part.

A fixed value that is the length of such an axis has its layout, or ("times", dims, layout) for the
length of a layout times other lengths; and any other length that can be told from others has
("dims", identities)."""


class Note(NamedTuple):
    """What is to be said about a node that spoiled a value, or was not understood."""

    node: Any
    text: str
    cure: str = ""


class Value(NamedTuple):
    """What a variable has to do with the rows.

    Attributes:
        axis: where rows lie (rows, position; of mixed and shuffled if it is known).
        layout: how entries along `axis` belong to rows; of a fixed value of degree 1: of which
            layout it is the length, if it is one.
        literal: of fixed values and rows, the number that every entry is, where known.
        items: of a short vector (a shape), its entries. The other fields say nothing then.
    """

    kind: str
    degree: float = 0.0
    axis: Optional[int] = None
    layout: Any = None
    literal: Optional[float] = None
    items: Optional[Tuple[Any, ...]] = None
    note: Optional[Note] = None

    @property
    def zero(self) -> bool:
        """Whether every entry is known to be 0: it can be added to anything."""
        return self.literal == 0

    @property
    def steady(self) -> bool:
        """Whether it is the same on any part of the rows."""
        return self.kind == "fixed" and (self.degree == 0 or self.zero)


FIXED = Value("fixed")
ZERO = FIXED._replace(literal=0.0)
NOISE = Value("noise")


def rows(axis: int = 0, layout: Any = ROW, degree: float = 0.0) -> Value:
    """A row-wise value."""
    return Value("rows", degree, axis, layout)


def mixed(node: Any, text: str, cure: str = "", axis: Optional[int] = None) -> Value:
    """A value that parts of the rows do not combine to; without an axis, none is that of rows."""
    return Value("mixed", axis=axis, note=Note(node, text, cure))


def several(value: Value) -> Value:
    """A mixed value of unknown shape: it may have several axes of rows, or parts of one."""
    return value._replace(layout=("several",))


def pairs_of_rows(node: Any) -> Value:
    """Return the value of a node that combines each row with each other row."""
    text = "combines each row with each other row"
    return several(mixed(node, text, "return the rows with 'gather'"))


def along(value: Value, axis: Optional[int], layout: Any) -> Value:
    """Return a mixed value with its rows along `axis`, in `layout` if its shape is known."""
    return value._replace(axis=axis, layout=layout if has_shape(value) else value.layout)


def unknown(node: Any, text: str = "") -> Value:
    """A value that nothing can be said about."""
    return Value("unknown", note=Note(node, text or "is not an operation that this check knows"))


def plain(value: Value) -> Value:
    """Forget the entries of a short vector."""
    if value.items is None:
        return value
    if all(item.kind == "fixed" for item in value.items):
        degrees = {item.degree for item in value.items if not item.zero}
        if len(degrees) <= 1:
            return Value("fixed", degrees.pop() if degrees else 0.0)
    for item in value.items:
        if item.kind == "unknown":
            return item._replace(axis=None)
    return Value("unknown", note=Note(None, "a shape is used as data"))


Handler = Callable[..., Union[Value, Sequence[Value]]]
"""From a node and its inputs' values to its output's value, or to all outputs' values."""


class _Rule(NamedTuple):
    handler: Handler
    takes: str
    with_walk: bool


_RULES: Dict[str, _Rule] = {}


def rule(
    *names: str, takes: str = "known", with_walk: bool = False
) -> Callable[[Handler], Handler]:
    """Register the rule of Theano's own operations with these class names.

    Args:
        takes: the inputs that the rule takes: "known" ones; "mixed" ones, too; or "all", unknown
            and shuffled ones and the entries of short vectors included. A node with other inputs is
            unknown.
        with_walk: whether the rule also takes the walk.
    """

    def register(handler: Handler) -> Handler:
        for name in names:
            _RULES[name] = _Rule(handler, takes, with_walk)
        return handler

    return register


def _find_rule(op_class: type) -> Optional[_Rule]:
    """The rule for a class of Theano or ours, or of a parent; none for what users derive."""
    if op_class.__module__.split(".")[0] not in ("theano", "synk_theano"):
        return None
    for base in op_class.__mro__:
        if base.__name__ in _RULES:
            return _RULES[base.__name__]
    return None


def first_mixed(values: Sequence[Value]) -> Optional[Value]:
    """A mixed value among the values, if there is one: the one whose shape is known least."""
    found = [value for value in values if value.kind == "mixed"]
    unshaped = [value for value in found if layout_kind(value.layout) == "several"]
    return unshaped[0] if unshaped else found[0] if found else None


def has_shape(value: Value) -> bool:
    """Whether it is known which of the axes are as long as the number of rows."""
    if value.kind == "mixed":
        return layout_kind(value.layout) != "several"
    return value.kind not in ("unknown", "noise")


def first_of(kind: str, values: Iterable[Value]) -> Optional[Value]:
    """The first of the values that is of a kind."""
    return next((value for value in values if value.kind == kind), None)


def obstacle(node: Any, values: Sequence[Value]) -> Optional[Value]:
    """What a node becomes if inputs are unknown or shuffled; None if none is."""
    spoiled = first_of("unknown", values)
    if spoiled is not None:
        return spoiled._replace(axis=None)
    if first_of("shuffled", values) is not None:
        return unknown(node, "uses rows in an order that depends on all of them")
    return None


def layout_kind(layout: Any) -> str:
    """The first word of a layout; none for one entry per row, in order."""
    return "" if layout is None or isinstance(layout, str) else str(layout[0])


def unruled(node: Any, values: Sequence[Value]) -> Value:
    """The value of a node without a rule: what needs no rows has none."""
    values = [plain(value) for value in values]
    if all(value.steady for value in values):
        return FIXED
    spoiled = obstacle(node, values)
    if spoiled is not None:
        return spoiled
    if all(value.steady or value.kind == "noise" for value in values):
        return NOISE
    already = first_mixed(values)
    return unknown(node) if already is None else Value("unknown", note=already.note)


def constant_value(variable: Any) -> Value:
    """The value of a Theano constant."""
    data = variable.data
    if not isinstance(data, (np.ndarray, np.number, np.bool_, int, float)):
        return FIXED
    array = np.asarray(data)
    if array.ndim == 1 and array.size <= 16 and array.dtype.kind in "iu":
        return FIXED._replace(items=tuple(_uniform(item) for item in array))
    return _uniform(array)


def _uniform(array: Any) -> Value:
    """A constant, with its number if it is the same everywhere."""
    flat = np.asarray(array).reshape(-1)
    if flat.size and flat.dtype.kind in "biuf" and (flat == flat[0]).all():
        return FIXED._replace(literal=float(flat[0]))
    return FIXED


def find_reshapes(variables: Iterable[Any]) -> Dict[Any, List[Any]]:
    """The nodes by which variables, among all that these are computed from, are reshaped."""
    found: Dict[Any, List[Any]] = {}
    seen: Set[Any] = set()
    stack = list(variables)
    while stack:
        node = stack.pop().owner
        if node is not None and node not in seen:
            seen.add(node)
            stack.extend(node.inputs)
            if type(node.op).__name__ == "Reshape":
                found.setdefault(node.inputs[0], []).append(node)
    return found


class Walk:
    """Values of variables, found in topological order without recursion.

    Args:
        known: values to start from (scattered inputs). Variables that are neither in it nor
            computed are fixed.
        reshapes: of variables, the nodes that reshape them.

    Attributes:
        random: variables that random draws are part of.
        met: variables that a reduction over ranks is part of.
    """

    def __init__(
        self,
        known: Optional[Dict[Any, Value]] = None,
        reshapes: Optional[Dict[Any, List[Any]]] = None,
    ) -> None:
        self.values: Dict[Any, Value] = dict(known or {})
        self.reshapes = reshapes or {}
        self.random: Set[Any] = set()
        self.met: Set[Any] = set()
        self._rules: Dict[type, Optional[_Rule]] = {}

    def value(self, variable: Any) -> Value:
        """The value of one variable, with all that it is computed from."""
        stack: List[Any] = [variable]
        while stack:
            current = stack[-1]
            if current in self.values:
                stack.pop()
            elif current.owner is None:
                self.values[current] = self._leaf(current)
                stack.pop()
            else:
                missing = [v for v in current.owner.inputs if v not in self.values]
                if missing:
                    stack.extend(missing)
                else:
                    self._compute(current.owner)
                    stack.pop()
        return self.values[variable]

    @staticmethod
    def _leaf(variable: Variable) -> Value:
        if isinstance(variable, Constant):
            return constant_value(variable)
        if getattr(variable.tag, "synk_row_share", False):
            return Value("fixed", 1.0)
        return FIXED

    def _compute(self, node: Apply) -> None:
        values = [self.values[variable] for variable in node.inputs]
        result = self._apply(node, values)
        if isinstance(result, Value):
            result = [result] * len(node.outputs)
        draws = type(node.op).__name__ in _RANDOM or any(v in self.random for v in node.inputs)
        meets = type(node.op) is AllReduce or any(v in self.met for v in node.inputs)
        for output, value in zip(node.outputs, result):
            # A variable may have a value from the start: givens replace results, too.
            self.values.setdefault(output, value)
            if draws:
                self.random.add(output)
            if meets:
                self.met.add(output)

    def _apply(self, node: Apply, values: List[Value]) -> Union[Value, Sequence[Value]]:
        op_class = type(node.op)
        if op_class not in self._rules:
            self._rules[op_class] = _find_rule(op_class)
        found = self._rules[op_class]
        if found is None:
            return unruled(node, values)
        if found.takes != "all":
            values = [plain(value) for value in values]
            spoiled = obstacle(node, values)
            if spoiled is not None:
                return spoiled
            if found.takes != "mixed" and first_mixed(values) is not None:
                return unruled(node, values)
        extra = (self,) if found.with_walk else ()
        try:
            return found.handler(node, values, *extra)
        except (AttributeError, IndexError, KeyError, TypeError, ValueError):
            # An operation in a form that its rule did not expect: no reason to refuse a function.
            return unknown(node, FAILED)


FAILED = "has a form that this check does not expect"

_RANDOM = frozenset(
    ["RandomFunction", "mrg_uniform", "GPUA_mrg_uniform"]
)  # what draws numbers; all else that is random is computed from it
