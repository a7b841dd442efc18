"""Follow which shared variables the ranks may have different values of, and what wrote them.

The master has the graphs of all functions and sees every call and collective, so it knows of each
variable whether the ranks should agree on it.
"""

from __future__ import annotations

import os
from functools import lru_cache
from typing import Any, Dict, FrozenSet, List, NamedTuple, Optional, Tuple

from synk_core._graph.leaves import FunctionFacts, facts_of
from synk_core._graph.shared import VariableRegistry
from synk_core._graph.spec import FunctionSpec
from synk_core._master.record import Record
from synk_core._plan.collectives import EQUALIZING
from synk_core._wire.messages import Call, Collective

MOST_KNOWN = 10_000
"""Effects of acts on states that are remembered: training loops repeat them."""


class Parted(NamedTuple):
    """A variable whose values may differ between ranks, and why.

    Attributes:
        kind: "update" (by `writer`, from each rank's own rows), "derived" from such a variable,
            "reduce", "set_value" (of `ranks`), or "scatter".
    """

    variable: int
    kind: str
    writer: Optional[int] = None
    ranks: FrozenSet[int] = frozenset()


class _State(NamedTuple):
    """Variables whose values may differ, and those that collectives have made equal again."""

    parted: FrozenSet[Parted] = frozenset()
    averaged: FrozenSet[int] = frozenset()

    @property
    def by_number(self) -> Dict[int, Parted]:
        return {one.variable: one for one in self.parted}


class Origins:
    """An observer of the calls and collectives of a program."""

    def __init__(
        self, registry: VariableRegistry, specs: Dict[int, FunctionSpec], size: int
    ) -> None:
        self._registry, self._specs, self._size = registry, specs, size
        self._facts: Dict[int, FunctionFacts] = {}
        self._state = _State()
        self._after_call = lru_cache(MOST_KNOWN)(self._called)

    def forget_function(self, function_id: int) -> None:
        """Drop the facts of a deleted function."""
        self._facts.pop(function_id, None)
        self._after_call.cache_clear()

    def after(self, record: Record) -> None:
        """Follow the acts of an order."""
        if self._size == 1:
            return
        for prepared in record.acts:
            act = prepared.act
            if isinstance(act, Call):
                self._state = self._after_call(self._state, act.function_id)
            elif isinstance(act, Collective):
                given = act.arguments
                details = given.get("rank"), given.get("in_place")
                self._state = _after_collective(self._state, act.kind, act.variables, *details)

    def to_agree(self, function_id: int, is_first: bool) -> List[int]:
        """Return the variables that a function reads and the ranks should agree on."""
        facts = self.facts(function_id)
        if not facts.has_rows and not facts.sources:
            return []  # it only shows what the ranks have
        read = facts.reads - facts.sliceable
        read -= _with_stages(frozenset(self._registry.drifting), list(self._facts.values()))
        parted = self._state.by_number
        return [
            number
            for number in sorted(read)
            if number not in parted or not self._is_meant(parted[number], facts, is_first)
        ]

    def because(self, variable: int, function_id: int) -> str:
        """Explain why the ranks differ in a variable that a function reads, with the cure."""
        facts, name = self.facts(function_id), self._registry.label(variable)
        found = self._state.by_number.get(variable, Parted(variable, ""))
        reads = f"{facts.name} reads {name!r}"
        if found.kind == "update" and found.writer == function_id:
            return _drift(facts, name)
        if found.kind == "update":
            writer = self.facts(found.writer).name if found.writer in self._specs else "a function"
            return (
                f"{reads}, which {writer} computed on each rank from the rank's own rows, and no "
                f"all_reduce() came between; call all_reduce({name}) after {writer}"
            )
        if found.kind == "reduce":
            return (
                f"{reads} after reduce(), which gave the result to the master only; use "
                f"all_reduce(), or broadcast() it afterwards"
            )
        if found.kind == "set_value":
            return (
                f"{reads}, which set_value() changed on rank {', '.join(map(str, found.ranks))} "
                f"only; use broadcast() to give all ranks the same value"
            )
        return (
            f"{reads}, and no call or collective explains why the ranks have different values: "
            f"its own set_value(), a plain function, and changes of its array in place "
            f"(borrow=True) reach the master only; call broadcast({name}) after them"
        )

    def facts(self, function_id: int) -> FunctionFacts:
        """Return the facts of a function's graph."""
        facts = self._facts.get(function_id)
        if facts is None:
            spec = self._specs[function_id]
            facts = self._facts[function_id] = facts_of(spec, self._number, function_id)
        return facts

    def _number(self, variable: Any) -> int:
        """Return a variable's number; one of its own if no rank has the variable."""
        number = self._registry.known_number(variable.container.storage)
        return -1 - id(variable) if number is None else number

    def _called(self, state: _State, function_id: int) -> _State:
        if function_id not in self._specs:
            return state
        facts, parted = self.facts(function_id), state.by_number
        before = set(parted) - facts.sliceable
        for variable, sources in facts.sources.items():
            if variable in facts.rank_dependent_updates:
                parted[variable] = Parted(variable, "update", function_id)
            elif before & sources:
                parted[variable] = Parted(variable, "derived")
            else:
                parted.pop(variable, None)
        return _State(frozenset(parted.values()), state.averaged)

    def _is_meant(self, one: Parted, facts: FunctionFacts, is_first: bool) -> bool:
        """Return whether a program that reads a variable of different values may be right."""
        averaged, consumers = self._state.averaged, set(facts.consumers(one.variable))
        if one.kind == "set_value":
            return len(one.ranks) == self._size  # each rank was given a value of its own
        if one.kind == "reduce":
            return is_first or bool(consumers & averaged)  # a broadcast() may follow
        if one.kind != "update":
            return True
        if one.writer != facts.function_id:
            # One stage of a computation on the rank's own rows, averaged at its end.
            return bool(consumers) and consumers <= averaged & facts.rank_dependent_updates
        # A rank's own state, as of a recurrent network: all that is computed from it is averaged.
        others = consumers - {one.variable}
        return others <= averaged if others else one.variable not in facts.shown


@lru_cache(MOST_KNOWN)
def _after_collective(
    state: _State, kind: str, variables: Tuple[int, ...], rank: Any, in_place: Any
) -> _State:
    parted, averaged = state.by_number, set(state.averaged)
    for variable in variables:
        old = parted.get(variable, Parted(variable, ""))
        if kind in EQUALIZING:
            parted.pop(variable, None)
            if old.kind in ("update", "derived", "reduce"):
                averaged.add(variable)
        elif kind == "scatter" or (kind == "reduce" and in_place):
            parted[variable] = Parted(variable, kind)
        elif kind == "set_value":
            ranks = old.ranks if old.kind == kind else frozenset()
            parted[variable] = Parted(variable, kind, None, ranks.union([rank]))
    return _State(frozenset(parted.values()), frozenset(averaged))


def _with_stages(variables: FrozenSet[int], functions: List[FunctionFacts]) -> FrozenSet[int]:
    """Return variables, and all that is consumed only by these and itself: gradients, and the state
    of a local update rule."""
    found = set(variables)
    targets = {v for f in functions for v in f.sources}.difference(*(f.shown for f in functions))
    while found:
        consumers = {v: {u for f in functions for u in f.consumers(v)} - {v} for v in targets}
        more = {v for v, used in consumers.items() if used and used <= found} - found
        if not more:
            break
        found |= more
    return frozenset(found)


def _drift(writer: FunctionFacts, name: str) -> str:
    place = ""
    if writer.built_at is not None:
        place = f" ({os.path.basename(writer.built_at[0])}:{writer.built_at[1]})"
    return (
        f"rank-local updates of {name!r} by {writer.name} are never averaged, so the ranks train "
        f"different models. To take the steps of a single process, build {writer.name}{place} with "
        f"make_train_function(loss, params, inputs, updates.adam) of synkhronos.extensions, or "
        f"with another of its update rules. For plain gradient descent, all_reduce() the updated "
        f"variables after each call, with weights= this function. If you average them later on "
        f"purpose, use a rule of synkhronos.extensions.sync, or build it with "
        f"function(..., proof=False)"
    )
