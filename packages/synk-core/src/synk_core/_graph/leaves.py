"""The leaves of a function's values: the inputs and shared variables that they are computed from.

The graph is walked as the user wrote it, with givens in place, and so are the default updates of
the shared variables that it reaches. The walk has its own stack, so depth does not matter, and a
set of leaves is the bits of one int, so size hardly does.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Dict, List, Optional, Sequence, Tuple

import numpy as np

from synk_core._plan.ops import ROWLESS_OP
from synk_core.engine import (
    BatchNormTrain,
    Constant,
    DimShuffle,
    Elemwise,
    Mul,
    Second,
    SharedVariable,
    library,
)

from .random_streams import is_random_state
from .reduce_op import AllReduce, is_reduced
from .spec import FunctionSpec
from .still import Fixed

Leaves = Tuple[Any, ...]


@dataclass(frozen=True)
class Lineage:
    """The leaves of a function's outputs and updates.

    Attributes:
        outputs: for each output the inputs and shared variables that it is computed from.
        updates: (shared variable, leaves of its new value) for each update, those of random states
            and default updates included.
        since_reduced: as `updates`, without the leaves of in-graph reductions over ranks, whose
            results are equal on all ranks: what the ranks' new values can differ by.
    """

    outputs: Tuple[Leaves, ...]
    updates: Tuple[Tuple[Any, Leaves], ...]
    since_reduced: Tuple[Tuple[Any, Leaves], ...]
    has_reductions: bool


def lineage_of(spec: FunctionSpec) -> Lineage:
    """Return the leaves of a function's outputs and updates.

    A given's replacement is walked with all givens in place, whatever their order: at worst that
    finds a leaf too many.
    """
    walk = _LeafSets(spec)
    outputs = tuple(walk.leaves(variable) for variable in spec.outputs)
    values = [(target, value) for target, value, _ in spec.updates]
    updates = [(target, walk.leaves(value)) for target, value in values]
    no_defaults = spec.kwargs.get("no_default_updates") or ()
    if no_defaults is not True:
        seen = {id(target) for target, _ in updates} | {id(variable) for variable in no_defaults}
        reached = _shared([*outputs, *(leaves for _, leaves in updates)])
        # A default update may reach further variables that have one.
        while reached:
            variable = reached.pop()
            if id(variable) in seen or getattr(variable, "default_update", None) is None:
                continue
            seen.add(id(variable))
            leaves = walk.leaves(variable.default_update)
            values.append((variable, variable.default_update))
            updates.append((variable, leaves))
            reached.extend(_shared([leaves]))
    if walk.has_zeros:
        # So far they were needed, for the default updates of variables that zero multiplies.
        bare = _LeafSets(spec, behind_zeros=False)
        outputs = tuple(bare.leaves(variable) for variable in spec.outputs)
        updates = [(target, bare.leaves(value)) for target, value in values]
    followed = tuple(updates)
    if not walk.has_reductions:
        return Lineage(outputs, followed, followed, False)
    short = _LeafSets(spec, behind_reductions=False)
    since_reduced = tuple((target, short.leaves(value)) for target, value in values)
    return Lineage(outputs, followed, since_reduced, True)


def replicated_updates(spec: FunctionSpec) -> List[Tuple[Any, str]]:
    """Return the updates that in-graph reductions make equal on all ranks, each with its op over
    slices; none if the graph has no reductions.
    """
    lineage = lineage_of(spec)
    if not lineage.has_reductions:
        return []
    alike = {id(t) for t, leaves in lineage.since_reduced if not differs_by_rank(leaves, spec)}
    named = zip(spec.accumulated, ops_of_parts(spec)[1])
    return [(target, op) for (target, _, _), op in named if id(target) in alike]


def rowless_updates(spec: FunctionSpec) -> List[Tuple[Any, Any]]:
    """Return the updates, default ones included, that do not depend on rows: (target, new value).

    Every rank makes them, also one without rows.
    """
    lineage = lineage_of(spec)
    values = {id(target): value for target, value, _ in spec.updates}
    return [
        (target, values.get(id(target), getattr(target, "default_update", None)))
        for (target, leaves), (_, short) in zip(lineage.updates, lineage.since_reduced)
        if leaves == short and not depends_on_rows(leaves, spec)
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
    """Return whether a value differs between ranks although all shared variables are equal.

    It does if it is computed from scattered inputs, sliceable shared variables, random numbers,
    or `row_share()`.
    """
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


def _shared(several: Sequence[Leaves]) -> List[Any]:
    return [leaf for leaves in several for leaf in leaves if isinstance(leaf, SharedVariable)]


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


class _LeafSets:
    """Sets of leaves, as bits, for every variable seen so far.

    Args:
        behind_reductions: include the leaves of in-graph reductions over ranks.
        behind_zeros: include the leaves of values that are multiplied by zero.
    """

    def __init__(
        self, spec: FunctionSpec, behind_reductions: bool = True, behind_zeros: bool = True
    ) -> None:
        self.has_reductions = self.has_zeros = False
        self._behind_reductions = behind_reductions
        self._behind_zeros = behind_zeros
        self._givens = {id(key): value for key, value in spec.givens}
        # Keeps all variables alive whose ids are keys here, but for default updates, which their
        # variables keep alive.
        self._spec = spec
        self._sets: Dict[int, int] = {}
        self._leaves: List[Any] = [None]  # its bit: an in-graph reduction is behind the value
        self._bits: Dict[int, int] = {}

    def leaves(self, variable: Any) -> Leaves:
        found = self._set_of(variable) & ~1
        return tuple(leaf for place, leaf in enumerate(self._leaves) if found >> place & 1)

    def is_rowless(self, variable: Any) -> bool:
        leaves = self.leaves(variable)
        return not (self._set_of(variable) & 1 or differs_by_rank(leaves, self._spec))

    def _set_of(self, root: Any) -> int:
        sets = self._sets
        entered = set()
        stack = [root]
        while stack:
            variable = stack[-1]
            key = id(variable)
            if key in sets:
                stack.pop()
                continue
            if self._is_end(variable):
                sets[key] = 0
                continue
            parents = self._parents(variable)
            if key not in entered:
                entered.add(key)
                waiting = [p for p in parents if id(p) not in sets and id(p) not in entered]
                if waiting:
                    stack.extend(waiting)
                    continue
            found = 0 if parents else self._bit(variable)
            found |= variable.owner is not None and isinstance(variable.owner.op, AllReduce)
            for parent in parents:
                # In a replacement that is computed from what it replaces, such as {s: 2 * s}, s is
                # the variable itself.
                known = sets.get(id(parent))
                found |= self._bit(parent) if known is None else known
            sets[key] = found
            stack.pop()
        return sets[id(root)]

    def _is_end(self, variable: Any) -> bool:
        if not self._behind_reductions and is_reduced(variable):
            return True
        if variable.owner is None or not _is_nothing(variable.owner):
            return False
        self.has_zeros = True
        return not self._behind_zeros

    def _parents(self, variable: Any) -> Sequence[Any]:
        if id(variable) in self._givens:
            return [self._givens[id(variable)]]
        if is_reduced(variable):
            self.has_reductions = True
        owner = variable.owner
        if owner is None:
            return []
        if isinstance(owner.op, Fixed):
            return []  # nothing that is drawn
        if _takes_only_a_shape(owner):
            return list(owner.inputs[1:])
        if isinstance(owner.op, BatchNormTrain):
            # The old running averages (inputs 5 and 6) only go into the new ones (outputs 3 and 4).
            place = owner.outputs.index(variable) - 3
            return owner.inputs[:5] + (owner.inputs[5 + place :][:1] if place >= 0 else [])
        return list(owner.inputs)

    def _bit(self, leaf: Any) -> int:
        if isinstance(leaf, Constant):
            return 0
        place = self._bits.get(id(leaf))
        if place is None:
            place = self._bits[id(leaf)] = len(self._leaves)
            self._leaves.append(leaf)
        return 1 << place
