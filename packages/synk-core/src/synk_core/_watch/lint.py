"""Find mistakes of a data-parallel program that no single call can show. Pure.

The master has all functions and the order of calls and collectives, so it can follow each shared
variable: equal on all ranks or not, and since when. A finding is a function that reads a variable
as if it were equal while it is not. Legal but unusual programs (parameters averaged only now and
then, ranks that keep some state of their own) get a warning at most; uncertain cases get nothing.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from itertools import dropwhile
from typing import (
    Callable,
    Dict,
    FrozenSet,
    List,
    Mapping,
    Optional,
    Sequence,
    Set,
    Tuple,
)

from synk_core._graph.facts import Event, FunctionFacts
from synk_core._plan.collectives import EQUALIZING

from .findings import ERROR, WARNING, Finding, labels

MOST_LISTED = 3
"""Variables named in one finding; the others are counted."""


def lint(
    functions: Sequence[FunctionFacts],
    events: Sequence[Event] = (),
    names: Optional[Mapping[int, str]] = None,
    size: Optional[int] = None,
    truncated: bool = False,
    unequal: FrozenSet[int] = frozenset(),
    forms: Optional[Mapping[int, str]] = None,
    let_drift: FrozenSet[int] = frozenset(),
) -> List[Finding]:
    """Look for mistakes in a program.

    Args:
        functions: all functions.
        events: what was done, oldest first. Without it only what functions alone give away is
            reported.
        names: of shared variables, by number.
        size: the number of ranks, where known. A single rank makes no such mistakes.
        truncated: whether `events` may begin in the middle of a program.
        unequal: variables of which ranks have different values now.
        forms: dtype and shape of shared variables, by number.
        let_drift: variables that the program lets drift between synchronisations.

    Returns:
        Errors first, each finding once.
    """
    if size == 1:
        return []
    if truncated:
        # Before these, other ranks may have been given values, too.
        events = list(dropwhile(lambda event: event.kind == "set_value", events))
    label = labels(functions, names or {}, forms or {})
    found = _static_findings(functions, label)
    # With what only they and it itself consume: gradients, and the state of the local update rule.
    let_drift = _with_stages(let_drift, functions, own_state=True)
    rehearsal = _Replay(functions, label, size, frozenset(), let_drift)
    rehearsal.run(events)
    # Variables averaged now and then may be read in between; the rehearsal has found them.
    averaged = _with_stages(frozenset(rehearsal.averaged) | let_drift, functions)
    replay = _Replay(functions, label, size, averaged, let_drift)
    replay.run(events)
    found += replay.all_findings({(f.variables[0], f.functions[-1]) for f in found})
    found += _unexplained(functions, label, unequal - replay.known_to_differ, truncated)
    return sorted(found, key=lambda finding: finding.severity != ERROR)


def _static_findings(
    functions: Sequence[FunctionFacts], label: Callable[[int], str]
) -> List[Finding]:
    found = []
    for f in functions:
        for variable in sorted(f.sliceable):
            name = label(variable)
            for g in functions:
                pair = (f.function_id, g.function_id)
                if g is f or (variable in g.sliceable and variable not in g.updates):
                    continue
                if variable in g.updates:
                    message = (
                        f"{name} is sliceable in {f.name}, where it is rows of data, and {g.name} "
                        f"updates it. On each rank that changes the rank's own rows; keep what is "
                        f"learned in another shared variable, or drop it from sliceable_shareds"
                    )
                    found.append(Finding("sliceable-updated", WARNING, message, (variable,), pair))
                elif variable in g.reads:
                    message = (
                        f"{name} is sliceable in {f.name}, but {g.name} reads it as a whole: each "
                        f"rank computes with its own rows, and ranks count equally whatever their "
                        f"number. List it in sliceable_shareds of {g.name} too"
                    )
                    rule = "sliceable-read-whole"
                    found.append(Finding(rule, WARNING, message, (variable,), pair))
    return found


def _with_stages(
    variables: FrozenSet[int], functions: Sequence[FunctionFacts], own_state: bool = False
) -> FrozenSet[int]:
    """Return `variables` and those that only these consume: computed anew in each call, or with
    `own_state` also from their own values, if no output is."""
    found = set(variables)
    targets = {v for f in functions for v in f.updates}
    if own_state:
        targets.difference_update(*(f.shown for f in functions))
    while True:
        consumers = {v: {u for f in functions for u in f.consumers(v)} for v in targets - found}
        others = {v: used - {v} if own_state else used for v, used in consumers.items()}
        more = {v for v, used in others.items() if used and used <= found}
        if not more:
            return frozenset(found)
        found |= more


@dataclass
class _Divergence:
    """Why a variable is not equal on all ranks.

    `kind` is "update" (by `writer`, from the rank's own rows), "reduce", "set_value", "scatter",
    or "derived" from another difference, which was reported already; `on_master` if the master's
    value is the right one, since all that it was computed from was reduced there.
    """

    kind: str
    writer: Optional[FunctionFacts] = None
    ranks: Set[Optional[int]] = field(default_factory=set)
    count: int = 0
    on_master: bool = False


def _unexplained(
    functions: Sequence[FunctionFacts],
    label: Callable[[int], str],
    variables: FrozenSet[int],
    truncated: bool,
) -> List[Finding]:
    """Return what differs between ranks, although nothing that was recorded makes it differ."""
    found = []
    for variable in sorted(variables):
        readers = [f for f in functions if variable in f.reads and variable not in f.sliceable]
        if not readers:
            continue
        name = label(variable)
        message = (
            f"{name}, which {', '.join(f.name for f in readers)} reads, differs between ranks, and "
            f"nothing that was recorded explains it; its own set_value() reaches the master only: "
            f"call broadcast({name}) after it"
        )
        severity = WARNING if truncated else ERROR
        numbers = tuple(f.function_id for f in readers)
        found.append(Finding("replicas-differ", severity, message, (variable,), numbers))
    return found


class _Replay:
    """The program once more, variable by variable."""

    def __init__(
        self,
        functions: Sequence[FunctionFacts],
        label: Callable[[int], str],
        size: Optional[int],
        averaged: FrozenSet[int],
        let_drift: FrozenSet[int],
    ) -> None:
        self._functions: Dict[Optional[int], FunctionFacts] = {f.function_id: f for f in functions}
        self._label = label
        self._size = size
        self._known_averaged = averaged
        self._let_drift = let_drift
        self._differs: Dict[int, _Divergence] = {}
        self._found: Dict[Tuple[str, int, Tuple[int, ...]], Finding] = {}
        self._drifting: Dict[int, FunctionFacts] = {}
        self._combined: Set[int] = set()
        self._gathered: Set[int] = set()
        self.averaged: Set[int] = set()

    @property
    def known_to_differ(self) -> FrozenSet[int]:
        """What differs between ranks at the end, by the record."""
        return frozenset(self._differs)

    def run(self, events: Sequence[Event]) -> None:
        for event in events:
            if event.kind == "call":
                function = self._functions.get(event.function_id)
                if function is not None:
                    self._call(function)
                continue
            for variable in event.variables:
                self._collective(event, variable)

    def all_findings(self, known: Set[Tuple[int, int]]) -> List[Finding]:
        """Return what was found, but for scattered variables in `known` (variable, reader)."""
        errors = {f.variables[0] for f in self._found.values() if f.severity == ERROR}
        explained = self._combined | self._known_averaged | errors
        drifts = {v: writer for v, writer in self._drifting.items() if v not in explained}
        found = [
            finding
            for finding in self._found.values()
            if (
                finding.rule != "scattered-read"
                or (finding.variables[0], finding.functions[-1]) not in known
            )
            # The drift is the cause of what others read.
            and (finding.severity == ERROR or finding.variables[0] not in drifts)
        ]
        return found + self._drifts(drifts)

    def _drifts(self, drifts: Mapping[int, FunctionFacts]) -> List[Finding]:
        """Return a finding for each function and rule, whatever the number of variables."""
        grouped: Dict[Tuple[str, int], List[int]] = {}
        for variable, writer in drifts.items():
            if self._parts_models(writer, variable):
                grouped.setdefault(("replicas-drift", writer.function_id), []).append(variable)
            elif variable not in self._gathered:
                grouped.setdefault(("own-averages", writer.function_id), []).append(variable)
        found = []
        for (rule, number), variables in grouped.items():
            writer = self._functions[number]
            # The parameters first: their loss is what the user looks at.
            variables.sort(key=lambda v: (v not in writer.shown, v))
            names = self._listed(variables)
            message = f"rank-local updates of {names} by {writer.name} are never averaged"
            if rule == "own-averages":
                them = "it" if len(variables) == 1 else "them"
                message += f"; all_reduce() {them} before using or storing {them}"
            else:
                message += _cure_of_drift(writer)
            found.append(Finding(rule, WARNING, message, tuple(variables), (number,)))
        return found

    def _parts_models(self, writer: FunctionFacts, variable: int) -> bool:
        """Return whether a drift makes the ranks' results differ.

        A rank's own state, as that of a recurrent network, is intended if every variable computed
        from it is averaged.
        """
        others = set(writer.consumers(variable)) - {variable}
        return bool(others - self._known_averaged) or (variable in writer.shown and not others)

    def _listed(self, variables: Sequence[int]) -> str:
        names = [self._label(variable) for variable in variables[:MOST_LISTED]]
        more = len(variables) - len(names)
        names += [f"{more} more"] if more else []
        return " and ".join([", ".join(names[:-1]), names[-1]] if names[1:] else names)

    def _collective(self, event: Event, variable: int) -> None:
        kind, before = event.kind, self._differs.get(variable)
        if kind in EQUALIZING:
            if before is not None and before.kind in ("update", "derived", "reduce"):
                self._combined.add(variable)
                on_master = before.kind == "reduce" or before.on_master
                if kind == "all_reduce" or (kind == "broadcast" and on_master):
                    self.averaged.add(variable)
            self._differs.pop(variable, None)
        elif kind == "scatter":
            self._differs[variable] = _Divergence(kind)
        elif kind == "reduce":
            self._combined.add(variable)
            if before is None or before.kind in ("update", "derived", "reduce"):
                writer = None if before is None else before.writer
                self._differs[variable] = _Divergence(kind, writer)
        elif kind in ("gather", "get_value"):
            self._gathered.add(variable)
        elif kind == "set_value":
            self._set_value(event, variable, before)

    def _set_value(self, event: Event, variable: int, before: Optional[_Divergence]) -> None:
        if before is None or before.kind != "set_value":
            before = self._differs[variable] = _Divergence("set_value")
        before.ranks.add(event.rank)
        before.count += 1
        done = before.count if None in before.ranks else len(before.ranks)
        if self._size is not None and done >= self._size:
            # Every rank was given a value, so it is intended.
            del self._differs[variable]

    def _call(self, function: FunctionFacts) -> None:
        for variable in sorted(function.reads - function.sliceable):
            difference = self._differs.get(variable)
            if difference is None or difference.kind == "derived":
                continue
            consumers = function.consumers(variable)
            if variable in self._let_drift and consumers:
                if difference.writer is function or self._let_drift.issuperset(consumers):
                    continue
            if difference.kind == "update" and difference.writer is function:
                self._drifting.setdefault(variable, function)
            else:
                self._read(function, variable, difference)
        differing = {v for v in function.reads - function.sliceable if v in self._differs}
        on_masters = {
            v for v in differing if self._differs[v].kind == "reduce" or self._differs[v].on_master
        }
        for variable in function.updates:
            if variable in function.rank_dependent_updates:
                self._differs[variable] = _Divergence("update", function)
            elif sources := differing & function.sources.get(variable, function.reads):
                # Of what may drift, no difference was reported already.
                kind, writer = (
                    ("update", function) if variable in self._let_drift else ("derived", None)
                )
                on_master = sources <= on_masters
                self._differs[variable] = _Divergence(kind, writer, on_master=on_master)
            else:
                self._differs.pop(variable, None)

    def _read(self, reader: FunctionFacts, variable: int, difference: _Divergence) -> None:
        """`reader` reads a variable that is not equal on all ranks, which it did not write."""
        consumers = reader.consumers(variable)
        if not consumers and not reader.has_rows:
            # It only returns what the ranks have, reduced over them.
            self._gathered.add(variable)
            return
        averaged_later = self._known_averaged & reader.rank_dependent_updates
        if consumers and difference.kind == "update" and averaged_later.issuperset(consumers):
            # One stage of a computation on the rank's own rows, averaged at its end.
            return
        name, writer = self._label(variable), difference.writer
        excused = not consumers or self._is_averaged(variable, consumers, writer)
        severity = WARNING if excused else ERROR
        if difference.kind == "update" and writer is not None:
            rule = "unreduced-read"
            message = (
                f"{reader.name} reads {name}, which {writer.name} computed on each rank from the "
                f"rank's own rows, and no all_reduce() came between; call "
                + (
                    f"settle() of its synchronisation rule before {reader.name}"
                    if variable in self._let_drift
                    else f"all_reduce({name}) after {writer.name}"
                )
            )
        elif difference.kind == "reduce":
            rule = "reduced-on-master-only"
            by = "" if writer in (None, reader) else f", computed by {writer.name},"
            if writer is reader:
                severity = WARNING
            message = (
                f"{reader.name} reads {name}{by} after reduce(), which gave the result to the "
                f"master only; use all_reduce(), or broadcast() it afterwards"
            )
        elif difference.kind == "set_value":
            rule = "set-on-one-rank"
            severity = ERROR if difference.count == 1 else WARNING
            where = "one rank only" if difference.count == 1 else "some ranks"
            message = (
                f"{reader.name} reads {name}, which set_value() changed on {where}; use "
                f"broadcast() to give all ranks the same value"
            )
        else:
            rule, severity = "scattered-read", WARNING
            message = (
                f"{reader.name} reads {name} as if it were the same on all ranks, but each rank "
                f"has its own rows of it since scatter(); list it in sliceable_shareds of "
                f"{reader.name}"
            )
        if severity == ERROR and rule != "set-on-one-rank":
            targets = ", ".join(self._label(u) for u in consumers)
            message += f". Until then {targets} will differ between ranks"
        pair = (reader.function_id,) if writer is None else (writer.function_id, reader.function_id)
        self._found.setdefault(
            (rule, variable, pair), Finding(rule, severity, message, (variable,), pair)
        )

    def _is_averaged(
        self, variable: int, consumers: Sequence[int], writer: Optional[FunctionFacts]
    ) -> bool:
        """Return whether the results of the read are averaged at some time: it may be intended.

        Averaging the variable itself at times excuses nothing if each call writes it anew, like a
        gradient: then this time was forgotten.
        """
        known = self._known_averaged
        carried = writer is not None and variable in writer.consumers(variable)
        return bool(known.intersection(consumers)) or (carried and variable in known)


def _cure_of_drift(writer: FunctionFacts) -> str:
    place = ""
    if writer.built_at is not None:
        place = f" ({os.path.basename(writer.built_at[0])}:{writer.built_at[1]})"
    return (
        f", so the ranks train different models. To take the steps of a single process, build "
        f"{writer.name}{place} with make_train_function(loss, params, inputs, updates.adam) of "
        f"synkhronos.extensions, or with another of its update rules. For plain gradient descent, "
        f"all_reduce() the updated variables after each call, with weights= this function. If you "
        f"average them later on purpose, use a rule of synkhronos.extensions.sync"
    )
