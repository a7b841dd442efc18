"""How each variable of a graph depends on the rows: the values, and the walk over the graph.

This is an abstract interpretation of the graph as it was written, before any optimization. Let n be
the number of rows of an execution. Each variable gets a `Value`:

=========  ======================================================================================
kind       the variable is
=========  ======================================================================================
fixed      n^degree times something that does not depend on rows (degree 0: parameters, constants;
           degree 1: the number of rows, a row share)
rows       n^degree times a row-wise result: entry i along `axis` depends on row i alone
sum        n^(degree - 1) times a sum over rows (degree 1: a sum, degree 0: a mean)
max, min   the largest or smallest over rows of a row-wise result
prod       the product over rows of a row-wise result
position   the numbers 0 ... n - 1 along `axis`
noise      random draws, independent of rows, of an unknown shape
shuffled   rows whose order depends on all of them (sorted, for example)
mixed      none of these for certain: `reason` has the node that is the cause
unknown    not known: `reason` has the node that the check cannot follow
=========  ======================================================================================

The degree is what makes gradients of means right: they spread 1/n over the rows, so each row has
degree -1, and their sum has degree 0, that of a mean. The rules are in `elemwise` and `reduced`
(scalar functions), `shape`, `index`, `tensor`, `products`, `nnet` and `scan`; verdicts in `check`.
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

from synk_core._graph.reduce_op import AllReduce
from synk_core.engine import RULED, Apply, Constant, RandomStateType, Variable

ROW = "row"
"""Layout of an axis with one entry per row, in order. Others are:

- ("block", key): several adjacent entries per row;
- ("outer", dims, layout): all rows, several times, as when (time, rows) become one axis;
- ("any", length layout): entries that are equal or drawn, so that they may belong to any row;
- ("reversed", layout), ("joined", layout, ...): in reverse order, one after the other;
- ("several",): of mixed values whose shape is unknown at least in part.

A fixed value that is the length of such an axis has its layout, or ("times", dims, layout) for the
length of a layout times other lengths. Any other identified length has ("dims", identities).
"""


class Reason(NamedTuple):
    """The node that made a value mixed or unknown, with a text about it and the cure."""

    node: Any
    text: str
    cure: str = ""


class Value(NamedTuple):
    """How a variable depends on the rows.

    Attributes:
        axis: axis of the rows (of rows and positions; of mixed and shuffled values if known).
        layout: relation of the entries along `axis` to rows; of a fixed value of degree 1 that is a
            length, the layout of that axis.
        literal: number that every entry of a fixed or row-wise value equals, if known.
        items: entries of a short vector (a shape). The other fields have no meaning then.
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
        return self.kind == "fixed" and (self.degree == 0 or self.zero)


FIXED = Value("fixed")
ZERO = FIXED._replace(literal=0.0)
NOISE = Value("noise")


def rows(axis: int = 0, layout: Any = ROW, degree: float = 0.0) -> Value:
    """Return a row-wise value."""
    return Value("rows", degree, axis, layout)


def mixed(node: Any, text: str, cure: str = "", axis: Optional[int] = None) -> Value:
    """Return a value that parts of the rows do not combine to; without `axis` it has no rows."""
    return Value("mixed", axis=axis, reason=Reason(node, text, cure))


def several(value: Value) -> Value:
    """Return a mixed value of unknown shape: it may have several axes of rows, or parts of one."""
    return value._replace(layout=("several",))


def pairs_of_rows(node: Any) -> Value:
    """Return the value of a node that combines each row with each other row."""
    text = "combines each row with each other row"
    return several(mixed(node, text, "return the rows with 'gather'"))


def along(value: Value, axis: Optional[int], layout: Any) -> Value:
    """Return a mixed value with its rows along `axis`, in `layout` if its shape is known."""
    return value._replace(axis=axis, layout=layout if has_shape(value) else value.layout)


def unknown(node: Any, text: str = "") -> Value:
    """Return a value that the check cannot follow."""
    return Value("unknown", reason=Reason(node, text or "is an operation unknown to this check"))


def plain(value: Value) -> Value:
    """Return a short vector as one value, without its entries; any other value unchanged."""
    if value.items is None:
        return value
    if all(item.kind == "fixed" for item in value.items):
        degrees = {item.degree for item in value.items if not item.zero}
        if len(degrees) <= 1:
            return Value("fixed", degrees.pop() if degrees else 0.0)
    for item in value.items:
        if item.kind == "unknown":
            return item._replace(axis=None)
    return Value("unknown", reason=Reason(None, "a shape is used as data"))


Handler = Callable[..., Union[Value, Sequence[Value]]]
"""Function of a node and its inputs' values that returns its output's, or all outputs', values."""


class _Rule(NamedTuple):
    handler: Handler
    takes: str
    with_walk: bool


_RULES: Dict[str, _Rule] = {}


def rule(
    *names: str, takes: str = "known", with_walk: bool = False
) -> Callable[[Handler], Handler]:
    """Register the rule of the engine's own operations with these class names.

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
    """Return the rule of a class of the engine's or ours, or its parent's; None for users'."""
    if op_class.__module__.split(".")[0] not in (*RULED, "synk_core"):
        return None
    names = [base.__name__ for base in op_class.__mro__]
    # Its graph says more than its name.
    if OF_A_GRAPH in names:
        return _RULES[OF_A_GRAPH]
    return next((_RULES[name] for name in names if name in _RULES), None)


OF_A_GRAPH = "OpFromGraph"
"""Name of the operations that are made of a graph."""


def first_mixed(values: Sequence[Value]) -> Optional[Value]:
    """Return a mixed value among the values, if there is one; first one of unknown shape."""
    found = [value for value in values if value.kind == "mixed"]
    unshaped = [value for value in found if layout_kind(value.layout) == "several"]
    return unshaped[0] if unshaped else found[0] if found else None


def is_accumulated(value: Value) -> bool:
    """Return whether rows were accumulated: the last one, which may be the largest, is of all."""
    made = value.reason.node if value.kind == "mixed" and value.reason is not None else None
    return made is not None and type(made.op).__name__ == "CumOp"


def has_shape(value: Value) -> bool:
    """Return whether it is known which axes have the length of the number of rows."""
    if value.kind == "mixed":
        return layout_kind(value.layout) != "several"
    return value.kind not in ("unknown", "noise")


def first_of(kind: str, values: Iterable[Value]) -> Optional[Value]:
    """Return the first of the values that has this kind, if there is one."""
    return next((value for value in values if value.kind == kind), None)


def obstacle(node: Any, values: Sequence[Value]) -> Optional[Value]:
    """Return the value of a node with unknown or shuffled inputs; None if it has none."""
    spoiled = first_of("unknown", values)
    if spoiled is not None:
        return spoiled._replace(axis=None)
    if first_of("shuffled", values) is not None:
        return unknown(node, "uses rows in an order that depends on all of them")
    return None


def layout_kind(layout: Any) -> str:
    """Return the first word of a layout; "" for one entry per row, in order."""
    return "" if layout is None or isinstance(layout, str) else str(layout[0])


def unruled(node: Any, values: Sequence[Value]) -> Value:
    """Return the value of a node without a rule: fixed if all inputs are."""
    values = [plain(value) for value in values]
    if all(value.steady for value in values):
        return FIXED
    spoiled = obstacle(node, values)
    if spoiled is not None:
        return spoiled
    if all(value.steady or value.kind == "noise" for value in values):
        return NOISE
    already = first_mixed(values)
    return unknown(node) if already is None else Value("unknown", reason=already.reason)


def constant_value(variable: Any) -> Value:
    """Return the value of a constant."""
    data = variable.data
    if not isinstance(data, (np.ndarray, np.number, np.bool_, int, float)):
        return FIXED
    array = np.asarray(data)
    if array.ndim == 1 and array.size <= 16 and array.dtype.kind in "iu":
        return FIXED._replace(items=tuple(_uniform(item) for item in array))
    return _uniform(array)


def _uniform(array: Any) -> Value:
    """Return the value of a constant, with its number if all entries are equal."""
    flat = np.asarray(array).reshape(-1)
    if flat.size and flat.dtype.kind in "biuf" and (flat == flat[0]).all():
        return FIXED._replace(literal=float(flat[0]))
    return FIXED


def find_reshapes(variables: Iterable[Any]) -> Dict[Any, List[Any]]:
    """Return the nodes that reshape a variable, by that variable, among all ancestors."""
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
        reshapes: nodes that reshape a variable, by variable.

    Attributes:
        random: variables that depend on random draws.
        met: variables that depend on a reduction over ranks.
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
        self._kept: List[Any] = []

    def value(self, variable: Any) -> Value:
        """Return the value of a variable, after those of all its ancestors."""
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
        result = self.apply(node, values)
        draws = type(node.op).__name__ in _RANDOM or any(
            v in self.random or isinstance(v.type, RandomStateType) for v in node.inputs
        )
        meets = type(node.op) is AllReduce or any(v in self.met for v in node.inputs)
        for output, value in zip(node.outputs, result):
            # A variable may have a value already, because givens may replace results, too.
            self.values.setdefault(output, value)
            if draws:
                self.random.add(output)
            if meets:
                self.met.add(output)

    def apply(self, node: Apply, values: List[Value]) -> Sequence[Value]:
        """Return the values of a node's outputs, by those of its inputs."""
        result = self._result(node, values)
        return [result] * len(node.outputs) if isinstance(result, Value) else result

    def keep(self, graph: Any) -> None:
        """Keep a graph that is made for the walk: layouts have the ids of its variables."""
        self._kept.append(graph)

    def _result(self, node: Apply, values: List[Value]) -> Union[Value, Sequence[Value]]:
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
            # The rule does not expect this form of the operation, which must not refuse a function.
            return unknown(node, FAILED)


FAILED = "has a form that this check does not expect"

_RANDOM = frozenset(["mrg_uniform", "GPUA_mrg_uniform"])
"""Names of the operations that draw numbers from states without a type of their own."""


def blamed(node: Any, value: Value, given: Iterable[Value]) -> Value:
    """Return a value of a graph inside of a node, with the node as the cause of what is new there.

    Args:
        given: the values that the graph starts from.
    """
    if value.reason is None or any(value.reason is other.reason for other in given):
        return value
    return value._replace(reason=value.reason._replace(node=node))
