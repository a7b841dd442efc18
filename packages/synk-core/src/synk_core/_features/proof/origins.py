"""Follow which shared variables the ranks may have different values of, and who wrote them.

The master has the graphs of all functions and sees every call and collective, so it knows of each
variable whether the ranks should agree on it. What a call or collective makes of that depends on
what was known before alone; it is looked up if it has happened before, as in any training loop.
"""

from __future__ import annotations

import os
from typing import Any, Dict, FrozenSet, Hashable, List, NamedTuple, Optional, Union

from synk_core._graph.leaves import FunctionFacts, facts_of
from synk_core._graph.shared import VariableRegistry
from synk_core._graph.spec import FunctionSpec
from synk_core._master.record import Record
from synk_core._plan.collectives import EQUALIZING
from synk_core._wire.messages import Call, Collective

MOST_KNOWN = 10_000
"""Effects that are remembered."""


class Parted(NamedTuple):
    """A variable whose values may differ between ranks, and why.

    Attributes:
        kind: "update" (by `writer`, from each rank's own rows), "derived" from such a variable,
            "reduce", "set_value", or "scatter".
        ranks: those that set_value() reached.
    """

    variable: int
    kind: str
    writer: Optional[int] = None
    ranks: FrozenSet[int] = frozenset()


class _State(NamedTuple):
    """What is known at one time.

    Attributes:
        averaged: variables that were combined over the ranks after these had updated them.
    """

    parted: FrozenSet[Parted] = frozenset()
    averaged: FrozenSet[int] = frozenset()


class Origins:
    """Follows the calls and collectives of a program.

    Args:
        specs: of functions, by number.
    """

    def __init__(
        self, registry: VariableRegistry, specs: Dict[int, FunctionSpec], size: int
    ) -> None:
        self._registry = registry
        self._specs = specs
        self._size = size
        self._facts: Dict[int, FunctionFacts] = {}
        self._state = _State()
        self._known: Dict[Hashable, _State] = {}

    def forget_function(self, function_id: int) -> None:
        """Drop the facts of a deleted function."""
        self._facts.pop(function_id, None)
        self._known.clear()

    def after(self, record: Record) -> None:
        """Follow the acts of an order."""
        if self._size == 1:
            return
        for prepared in record.acts:
            act = prepared.act
            what: Hashable
            if isinstance(act, Call):
                what = act.function_id
            elif isinstance(act, Collective):
                more = act.arguments.get("rank"), act.arguments.get("in_place")
                what = act.kind, act.variables, more
            else:
                continue
            after = self._known.get((self._state, what))
            if after is None:
                after = self._after(act)
                if len(self._known) >= MOST_KNOWN:
                    self._known.clear()
                self._known[self._state, what] = after
            self._state = after

    def to_agree(self, function_id: int, is_first: bool) -> List[int]:
        """Return the variables that a function reads and the ranks should agree on."""
        facts = self.facts(function_id)
        if not facts.has_rows and not facts.updates:
            return []  # it only shows what the ranks have
        read = facts.reads - facts.sliceable
        meant = frozenset(self._registry.drifting)
        read -= _with_stages(meant, list(self._facts.values()))
        parted = {one.variable: one for one in self._state.parted}
        return [
            number
            for number in sorted(read)
            if number not in parted or not self._is_meant(parted[number], facts, is_first)
        ]

    def because(self, variable: int, function_id: int) -> str:
        """Explain why the ranks differ in a variable that a function reads, with the cure."""
        facts, name = self.facts(function_id), self._registry.label(variable)
        found = next((one for one in self._state.parted if one.variable == variable), None)
        reads = f"{facts.name} reads {name!r}"
        if found is not None and found.kind == "update":
            if found.writer == function_id:
                return f"rank-local updates of {name!r} by {facts.name} are never averaged" + (
                    _cure_of_drift(facts)
                )
            writer = self.facts(found.writer).name if found.writer in self._specs else "a function"
            return (
                f"{reads}, which {writer} computed on each rank from the rank's own rows, and no "
                f"all_reduce() came between; call all_reduce({name}) after {writer}"
            )
        if found is not None and found.kind == "reduce":
            return (
                f"{reads} after reduce(), which gave the result to the master only; use "
                f"all_reduce(), or broadcast() it afterwards"
            )
        if found is not None and found.kind == "set_value":
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

    def _after(self, act: Union[Call, Collective]) -> _State:
        parted = {one.variable: one for one in self._state.parted}
        averaged = set(self._state.averaged)
        if isinstance(act, Call):
            if act.function_id in self._specs:
                self._call(self.facts(act.function_id), parted)
            return _State(frozenset(parted.values()), frozenset(averaged))
        kind, given = act.kind, act.arguments
        for variable in act.variables:
            old = parted.get(variable)
            if kind in EQUALIZING:
                parted.pop(variable, None)
                if old is not None and old.kind in ("update", "derived", "reduce"):
                    averaged.add(variable)
            elif kind == "scatter":
                parted[variable] = Parted(variable, kind)
            elif kind == "reduce" and given["in_place"]:
                writer = None if old is None else old.writer
                parted[variable] = Parted(variable, kind, writer)
            elif kind == "set_value":
                ranks = old.ranks if old is not None and old.kind == kind else frozenset()
                parted[variable] = Parted(variable, kind, None, ranks.union([given["rank"]]))
        return _State(frozenset(parted.values()), frozenset(averaged))

    @staticmethod
    def _call(facts: FunctionFacts, parted: Dict[int, Parted]) -> None:
        before = set(parted) - facts.sliceable
        for variable in facts.updates:
            if variable in facts.rank_dependent_updates:
                parted[variable] = Parted(variable, "update", facts.function_id)
            elif before & facts.sources.get(variable, facts.reads):
                parted[variable] = Parted(variable, "derived")
            else:
                parted.pop(variable, None)

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


def _with_stages(variables: FrozenSet[int], functions: List[FunctionFacts]) -> FrozenSet[int]:
    """Return variables, and those that only these consume, and they themselves: gradients, and the
    state of a local update rule."""
    found = set(variables)
    targets = {v for f in functions for v in f.updates}.difference(*(f.shown for f in functions))
    while found:
        consumers = {v: {u for f in functions for u in f.consumers(v)} - {v} for v in targets}
        more = {v for v, used in consumers.items() if used and used <= found} - found
        if not more:
            break
        found |= more
    return frozenset(found)


def _cure_of_drift(writer: FunctionFacts) -> str:
    place = ""
    if writer.built_at is not None:
        place = f" ({os.path.basename(writer.built_at[0])}:{writer.built_at[1]})"
    return (
        f", so the ranks train different models. To take the steps of a single process, build "
        f"{writer.name}{place} with make_train_function(loss, params, inputs, updates.adam) of "
        f"synkhronos.extensions, or with another of its update rules. For plain gradient descent, "
        f"all_reduce() the updated variables after each call, with weights= this function. If you "
        f"average them later on purpose, use a rule of synkhronos.extensions.sync, or build it "
        f"with function(..., proof=False)"
    )
