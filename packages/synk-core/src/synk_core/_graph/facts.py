"""The facts of a function that proofs need."""

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
