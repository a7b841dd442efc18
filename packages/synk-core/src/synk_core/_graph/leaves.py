"""The leaves of a function's values: the inputs and shared variables that they are computed from;
and the facts about them that proofs need.

The graph is walked as the user wrote it, with givens in place, and so are the default updates of
the shared variables that it reaches. The walk has its own stack, so depth does not matter, and a
set of leaves is the bits of one int, so size hardly does.
"""

from __future__ import annotations

from collections.abc import Container, Iterator
from functools import reduce
from operator import or_
from typing import Any, Callable, Dict, Iterable, List, NamedTuple, Optional, Sequence, Tuple

import numpy as np

from synk_core._plan.ops import ROWLESS_OP
from synk_core._warn import Place
from synk_core.engine import Constant, DimShuffle, Elemwise, Mul, Second, SharedVariable, library

from .random_streams import is_random_state
from .reduce_op import AllReduce, is_reduced
from .spec import FunctionSpec, expression_of, unnamed
from .still import Fixed

Leaves = Tuple[Any, ...]


class UpdateLineage(NamedTuple):
    """An update, and the leaves of its new value; `since_reduced` are those but of in-graph
    reductions, equal on all ranks: only by these can the ranks' new values differ."""

    target: Any
    value: Any
    leaves: Leaves
    since_reduced: Leaves


class Lineage(NamedTuple):
    """The leaves of each output of a function, and its updates: those of random states and default
    updates, too."""

    outputs: Sequence[Leaves]
    updates: Sequence[UpdateLineage]
    has_reductions: bool


def lineage_of(spec: FunctionSpec) -> Lineage:
    """Return the leaves of a function's outputs and updates.

    A given's replacement is walked with all givens in place, whatever their order: at worst that
    finds a leaf too many.
    """
    walk = _LeafSets(spec)
    values = [(target, value) for target, value, _ in spec.updates]
    no_defaults = spec.kwargs.get("no_default_updates") or ()
    if no_defaults is not True:
        seen = {id(target) for target, _ in values} | {id(variable) for variable in no_defaults}
        todo = [*spec.outputs, *(value for _, value in values)]
        # A default update may reach further variables that have one.
        while todo:
            for variable in walk.leaves(walk.sets_of(todo.pop()).every):
                default = getattr(variable, "default_update", None)
                if default is not None and id(variable) not in seen:
                    seen.add(id(variable))
                    values.append((variable, expression_of(variable, default)))
                    todo.append(values[-1][1])
    outputs = [walk.leaves(walk.sets_of(variable).bare) for variable in spec.outputs]
    updates = []
    for target, value in values:
        sets = walk.sets_of(value)
        updates.append(UpdateLineage(target, value, walk.leaves(sets.bare), walk.leaves(sets.own)))
    return Lineage(outputs, updates, walk.has_reductions)


def replicated_updates(spec: FunctionSpec) -> List[Tuple[Any, str]]:
    """Return the updates that in-graph reductions make equal on all ranks, each with its op over
    slices; none if the graph has no reductions."""
    lineage = lineage_of(spec)
    if not lineage.has_reductions:
        return []
    alike = {id(u.target) for u in lineage.updates if not differs_by_rank(u.since_reduced, spec)}
    named = zip(spec.accumulated, ops_of_parts(spec)[1])
    return [(target, op) for (target, _, _), op in named if id(target) in alike]


def rowless_updates(spec: FunctionSpec) -> List[Tuple[Any, Any]]:
    """Return the updates, default ones included, that do not depend on rows: (target, new value).

    Every rank makes them, also one without rows.
    """
    return [
        (target, value)
        for target, value, leaves, since_reduced in lineage_of(spec).updates
        if leaves == since_reduced and not depends_on_rows(leaves, spec)
    ]


def ops_of_parts(spec: FunctionSpec) -> Tuple[Tuple[Optional[str], ...], Tuple[str, ...]]:
    """Return the ops that combine slices and ranks, of outputs and of updates that accumulate."""
    walk = _LeafSets(spec)
    pairs = [*zip(spec.outputs, spec.output_ops), *((v, op) for _, v, op in spec.accumulated)]
    ops: List[Any] = [
        ROWLESS_OP if op == "avg" and walk.is_rowless(value) else op for value, op in pairs
    ]
    return tuple(ops[: len(spec.outputs)]), tuple(ops[len(spec.outputs) :])


def draws(leaves: Leaves) -> bool:
    """Return whether random numbers are drawn for a value with these leaves."""
    return any(is_random_state(leaf) for leaf in leaves)


def differs_by_rank(leaves: Leaves, spec: FunctionSpec) -> bool:
    """Return whether a value differs between ranks although all shared variables are equal."""
    return depends_on_rows(leaves, spec) or draws(leaves)


def depends_on_rows(leaves: Leaves, spec: FunctionSpec) -> bool:
    """Return whether a value with these leaves is computed from rows, or from their number."""
    own = {id(variable) for variable in spec.variables[: spec.n_scattered]}
    own.update(id(variable) for variable in spec.sliceable)
    return any(id(leaf) in own or is_row_share(leaf) for leaf in leaves)


def new_row_share() -> Any:
    """Return a shared scalar of 1 for which `is_row_share` is true, also after its runtime ends."""
    one = np.asarray(1.0, dtype=library.config.floatX)
    variable = library.shared(one, name="row_share")
    variable.tag.synk_row_share = True
    return variable


def is_row_share(variable: Any) -> bool:
    """Return whether a variable is a runtime's `row_share()`, which the runtime sets itself."""
    return bool(getattr(variable.tag, "synk_row_share", False))


class FunctionFacts(NamedTuple):
    """The properties of a function, with variables by their numbers, but states of random streams
    and `row_share()`, which should differ between ranks.

    Attributes:
        reads: sources of outputs and updates.
        rank_dependent_updates: updated variables whose new value is computed from the rank's own
            rows, random numbers, or `row_share()`.
        sources: for each update, the variables that its new value is computed from.
        has_rows: whether it has scattered inputs or sliceable variables.
        shown: sources of its outputs.
        built_at: the user's line.
    """

    function_id: int
    name: str
    reads: frozenset[int]
    rank_dependent_updates: frozenset[int]
    sliceable: frozenset[int]
    sources: Dict[int, frozenset[int]]
    has_rows: bool
    shown: frozenset[int]
    built_at: Optional[Place]

    def consumers(self, variable: int) -> List[int]:
        return sorted(u for u, read in self.sources.items() if variable in read)


def facts_of(spec: FunctionSpec, numbers: Callable[[Any], int], function_id: int) -> FunctionFacts:
    """Return the facts of a function from its graph."""
    lineage = lineage_of(spec)

    def numbered(variables: Iterable[Any]) -> frozenset[int]:
        return frozenset(
            numbers(variable)
            for variable in variables
            if isinstance(variable, SharedVariable)
            and not is_random_state(variable)
            and not is_row_share(variable)
        )

    updates = [update for update in lineage.updates if not is_random_state(update.target)]
    everything = [*lineage.outputs, *(update.leaves for update in lineage.updates)]
    return FunctionFacts(
        function_id=function_id,
        name=spec.name or unnamed(function_id),
        reads=numbered(leaf for leaves in everything for leaf in leaves),
        rank_dependent_updates=numbered(
            update.target for update in updates if differs_by_rank(update.since_reduced, spec)
        ),
        sliceable=numbered(spec.sliceable),
        sources={numbers(update.target): numbered(update.leaves) for update in updates},
        has_rows=bool(spec.n_scattered or spec.sliceable),
        shown=numbered(leaf for leaves in lineage.outputs for leaf in leaves),
        built_at=spec.built_at,
    )


def _takes_only_a_shape(node: Any) -> bool:
    """Return whether a node is like ``zeros_like(s)`` of a shared variable s, which only gives the
    shape."""
    first = node.inputs[0] if node.inputs else None
    has_default = getattr(first, "default_update", None) is not None
    return _computes(node, Second) and isinstance(first, SharedVariable) and not has_default


def _is_nothing(node: Any) -> bool:
    """Return whether a node is ``0 * s``, which Lasagne's batch normalization uses to have s in the
    graph, and with it the default update of s."""
    return _computes(node, Mul) and any(map(_is_zero, node.inputs))


def _computes(node: Any, scalar: Any) -> bool:
    return isinstance(node.op, Elemwise) and isinstance(node.op.scalar_op, scalar)


def _is_zero(variable: Any) -> bool:
    while variable.owner is not None and isinstance(variable.owner.op, DimShuffle):
        (variable,) = variable.owner.inputs
    return isinstance(variable, Constant) and not np.any(variable.data)


class _Sets(NamedTuple):
    """Sets of a value's leaves, as bits; the lowest: an in-graph reduction is behind the value.

    Attributes:
        every: all leaves.
        bare: those but of values that are multiplied by zero.
        own: those of `bare` but of in-graph reductions over ranks.
    """

    every: int
    bare: int
    own: int


def in_order(root: Any, done: Container[Any], parents: Callable[[Any], Any]) -> Iterator[Any]:
    """Yield the variables behind `root`, and itself, that are not `done`, each after its parents
    but in a cycle. The caller makes each one done."""
    entered, stack = set(), [root]
    while stack:
        variable = stack.pop()
        if variable in done:
            continue
        entered.add(variable)
        waiting = [p for p in parents(variable) if p not in done and p not in entered]
        if waiting:
            stack += [variable, *waiting]
        else:
            yield variable


class _LeafSets:
    """Sets of leaves for every variable seen so far."""

    def __init__(self, spec: FunctionSpec) -> None:
        self.has_reductions = False
        self._spec = spec
        self._givens: Dict[Any, Any] = dict(spec.givens)
        self._sets: Dict[Any, _Sets] = {}
        self._places: Dict[Any, int] = {}

    def leaves(self, bits: int) -> Leaves:
        return tuple(leaf for leaf, place in self._places.items() if bits >> place & 1)

    def is_rowless(self, variable: Any) -> bool:
        every = self.sets_of(variable).every
        return not (every & 1 or differs_by_rank(self.leaves(every), self._spec))

    def sets_of(self, root: Any) -> _Sets:
        sets = self._sets
        for variable in in_order(root, sets, self._parents):
            # In a replacement that is computed from the replaced s, as {s: 2 * s}, s is itself.
            known = [sets.get(p) or self._leaf(p) for p in self._parents(variable)]
            sets[variable] = self._joined(variable, known or [self._leaf(variable)])
        return sets[root]

    def _joined(self, variable: Any, parents: Sequence[_Sets]) -> _Sets:
        every, bare, own = (reduce(or_, bits) for bits in zip(*parents))
        if variable.owner is not None and variable not in self._givens:
            every |= isinstance(variable.owner.op, AllReduce)
            bare, own = (0, 0) if _is_nothing(variable.owner) else (bare, own)
            if is_reduced(variable):
                self.has_reductions, own = True, 0
        return _Sets(every, bare, own)

    def _parents(self, variable: Any) -> Sequence[Any]:
        if variable in self._givens:
            return [self._givens[variable]]
        owner = variable.owner
        if owner is None or isinstance(owner.op, Fixed):  # nothing that is drawn
            return []
        if _takes_only_a_shape(owner):
            return list(owner.inputs[1:])
        if type(owner.op).__name__ == "AbstractBatchNormTrain":
            # The old running averages (inputs 5 and 6) only go into the new ones (outputs 3 and 4).
            place = owner.outputs.index(variable) - 3
            return owner.inputs[:5] + (owner.inputs[5 + place :][:1] if place >= 0 else [])
        return list(owner.inputs)

    def _leaf(self, leaf: Any) -> _Sets:
        if isinstance(leaf, Constant):
            return _Sets(0, 0, 0)
        place = self._places.setdefault(leaf, len(self._places) + 1)
        return _Sets(*[1 << place] * 3)
