"""What proofs know of a function."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Callable, FrozenSet, Iterable, List, Mapping, Optional

from synk_core._warn import Place
from synk_core.engine import SharedVariable

from .leaves import differs_by_rank, is_row_share, lineage_of
from .random_streams import is_random_state
from .spec import FunctionSpec, unnamed


@dataclass(frozen=True)
class FunctionFacts:
    """The properties of a function; variables are given by their numbers.

    States of random streams and `row_share()` are left out: they should differ between ranks.

    Attributes:
        reads: variables that outputs and updates are computed from.
        rank_dependent_updates: updated variables whose new value is computed from the rank's own
            rows, random numbers, or `row_share()`.
        sources: for each update, the variables that its new value is computed from.
        has_rows: whether it has scattered inputs or sliceable variables.
        shown: variables that its outputs are computed from.
        built_at: the user's line.
    """

    function_id: int
    name: str
    reads: FrozenSet[int]
    rank_dependent_updates: FrozenSet[int]
    sliceable: FrozenSet[int]
    sources: Mapping[int, FrozenSet[int]]
    has_rows: bool
    shown: FrozenSet[int]
    built_at: Optional[Place]

    @property
    def updates(self) -> FrozenSet[int]:
        return frozenset(self.sources)

    def consumers(self, variable: int) -> List[int]:
        """Return the variables whose new value is computed from `variable`."""
        return sorted(u for u, read in self.sources.items() if variable in read)


def facts_of(spec: FunctionSpec, numbers: Callable[[Any], int], function_id: int) -> FunctionFacts:
    """Return the facts of a function from its graph."""
    lineage = lineage_of(spec)

    def numbered(variables: Iterable[Any]) -> FrozenSet[int]:
        return frozenset(
            numbers(variable)
            for variable in variables
            if isinstance(variable, SharedVariable)
            and not is_random_state(variable)
            and not is_row_share(variable)
        )

    updates = [(t, leaves) for t, leaves in lineage.updates if not is_random_state(t)]
    everything = [*lineage.outputs, *(leaves for _, leaves in lineage.updates)]
    return FunctionFacts(
        function_id=function_id,
        name=spec.name or unnamed(function_id),
        reads=numbered(leaf for leaves in everything for leaf in leaves),
        rank_dependent_updates=numbered(
            target
            for target, leaves in lineage.since_reduced
            if not is_random_state(target) and differs_by_rank(leaves, spec)
        ),
        sliceable=numbered(spec.sliceable),
        sources={numbers(target): numbered(leaves) for target, leaves in updates},
        has_rows=bool(spec.n_scattered or spec.sliceable),
        shown=numbered(leaf for leaves in lineage.outputs for leaf in leaves),
        built_at=spec.built_at,
    )
