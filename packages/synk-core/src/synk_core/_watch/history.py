"""Record the calls and collectives of a program, and pass them to `lint()`."""

from __future__ import annotations

import itertools
from collections import deque
from typing import Any, Deque, Dict, FrozenSet, Iterable, Iterator, List, Optional, Set, Tuple

from synk_core._graph.facts import Event, FunctionFacts, facts_of
from synk_core._graph.shared import VariableRegistry, value_of
from synk_core._graph.spec import FunctionSpec, unnamed
from synk_core._graph.values import is_array
from synk_core._plan.collectives import WRITING
from synk_core._warn import warn_user
from synk_core.exceptions import LintWarning

from .findings import ERROR, Findings
from .lint import lint
from .stats import Performed

EVENTS = 10_000
"""Calls and collectives kept for `lint()`."""

MOST_GONE = 1000
"""Deleted functions kept; beyond that only those with a call among the kept events."""

REMINDERS = (100, EVENTS)
"""Events after which the program is checked unasked; it is checked again when it ends. A function
whose updates let the ranks drift apart is reported at its second call already."""

DRIFT = "replicas-drift"

REMINDED = frozenset({"unreduced-read", DRIFT, "reduced-on-master-only"})
"""Rules that users are reminded of: gradients or parameters are no longer common to all ranks. A
drift is never certain, so its warning counts; of the other rules only errors do."""


class CallHistory:
    """The calls and collectives of a program, oldest first.

    Args:
        registry: the shared variables.
        specs: of functions, by number.
        size: number of ranks.

    Attributes:
        on: whether acts belong to the program; False while `verify()` or `lint()` works.
    """

    def __init__(
        self, registry: VariableRegistry, specs: Dict[int, FunctionSpec], size: int
    ) -> None:
        self.on = True
        self._registry = registry
        self._specs = specs
        self._gone: Dict[int, FunctionFacts] = {}
        self._names: Dict[int, str] = {}
        self._forms: Dict[int, str] = {}
        # The variables that each function lets drift (empty once reported), and the functions that
        # were called since those variables were last combined.
        self._drifting: Dict[Optional[int], FrozenSet[int]] = {}
        self._moved: Set[Optional[int]] = set()
        self._unregistered = itertools.count(-1, -1)
        self._size = size
        self._let_drift: Set[int] = set()
        self._hidden: Set[int] = set()
        self._events: Deque[Event] = deque(maxlen=EVENTS)
        self._reminders: List[int] = list(REMINDERS)
        self._reported: Set[Tuple[str, FrozenSet[int], Tuple[int, ...]]] = set()

    def __len__(self) -> int:
        return len(self._events)

    def hide(self, function_id: int) -> None:
        """Leave a function out if it was not built by the program."""
        if not self.on:
            self._hidden.add(function_id)

    def let_drift(self, variables: Iterable[int]) -> None:
        """Report no drift of these variables from now on, nor of what only they consume."""
        self._let_drift.update(variables)

    def forget(self, function_id: int) -> None:
        """Drop a deleted function; keep the facts of its graph that `lint()` needs."""
        spec = self._specs.get(function_id)
        if spec is None:
            return  # the runtime has ended
        self._drifting.pop(function_id, None)
        self._moved.discard(function_id)
        if any(event.function_id == function_id for event in self._events):
            try:
                self._gone[function_id] = facts_of(spec, self._known_number, function_id)
            except Exception as error:  # noqa: BLE001 - no program shall fail for lint's own mistake
                _warn_of_own_mistake(error)
            self._names.update(self._names_now())
            self._forms.update(self._forms_now())
            if len(self._gone) > MOST_GONE:
                called = {event.function_id for event in self._events}
                self._gone = {n: facts for n, facts in self._gone.items() if n in called}
                used = set().union(*(f.reads | f.updates for f in list(self._gone.values())))
                self._names = {n: name for n, name in self._names.items() if n in used}
                self._forms = {n: form for n, form in self._forms.items() if n in used}
        self._hidden.discard(function_id)

    def _known_number(self, variable: Any) -> int:
        """Return the variable's number; a unique negative one if no rank has it."""
        number = self._registry.known_number(variable.container.storage)
        return next(self._unregistered) if number is None else number

    def _names_now(self) -> Dict[int, str]:
        named = {number: self._registry.name_of(number) for number in (*self._registry.variables,)}
        return {number: name for number, name in named.items() if name}

    def _forms_now(self) -> Dict[int, str]:
        values = {number: value_of(v) for number, v in list(self._registry.variables.items())}
        arrays = {number: value for number, value in values.items() if is_array(value)}
        return {n: f"{value.dtype} {tuple(value.shape)}" for n, value in arrays.items()}

    def observe(self, performed: Performed) -> None:
        """Add the acts of an order; warn of replicas that drift apart."""
        if not self.on:
            return
        for act in performed.prepared:
            event = act.event
            self._events.append(event)
            if event.function_id is None:
                self._combined(event)
            elif self._has_drifted(event.function_id):
                self._drifting[event.function_id] = frozenset()
                self.remind(event.function_id)
        if self._reminders and len(self._events) >= self._reminders[0]:
            del self._reminders[0]
            self.remind()

    def _combined(self, event: Event) -> None:
        if self._moved and event.kind in WRITING:
            drifting = self._drifting
            self._moved = {f for f in self._moved if drifting[f].isdisjoint(event.variables)}

    def _has_drifted(self, number: int) -> bool:
        """Return whether a function lets variables drift that were not combined since its call."""
        if number not in self._drifting:
            self._drifting[number] = self._drifting_of(number)
        if not self._drifting[number]:
            return False
        again = number in self._moved
        self._moved.add(number)
        return again

    def _drifting_of(self, number: int) -> FrozenSet[int]:
        spec = self._specs.get(number)
        if spec is None or not spec.accumulated or self._size == 1 or number in self._hidden:
            return frozenset()
        try:
            return self._facts_of(number, spec).drifting
        except Exception as error:  # noqa: BLE001 - no program shall fail for lint's own mistake
            _warn_of_own_mistake(error)
            return frozenset()

    def _facts_of(self, number: int, spec: FunctionSpec) -> FunctionFacts:
        return facts_of(spec, self._registry.number_of, number)

    def latest(self) -> Iterator[Event]:
        """Return the events, latest first."""
        return reversed(self._events)

    def updated_by(self, function_id: int) -> Tuple[str, FrozenSet[int]]:
        """Return the name of a called function, and the variables that it updates."""
        facts = self._gone.get(function_id)
        if facts is not None:
            return facts.name, facts.updates
        spec = self._specs.get(function_id)
        if spec is None:
            return "", frozenset()
        updates = frozenset(self._known_number(target) for target, _, _ in spec.accumulated)
        return spec.name or unnamed(function_id), updates

    def findings(self, unequal: FrozenSet[int] = frozenset()) -> Findings:
        """Run `lint()`, given the variables that are known to differ between ranks."""
        facts = dict(self._gone)
        for number, spec in list(self._specs.items()):
            if number not in self._hidden:
                facts[number] = self._facts_of(number, spec)
        names = {**self._names, **self._names_now()}
        truncated = len(self._events) == EVENTS
        events = tuple(self._events.copy())
        in_order = [facts[number] for number in sorted(facts)]
        forms = {**self._forms, **self._forms_now()}
        let_drift = frozenset(self._let_drift)
        return Findings(
            lint(in_order, events, names, self._size, truncated, unequal, forms, let_drift)
        )

    def remind(self, function_id: Optional[int] = None) -> None:
        """Warn once of mistakes that make the ranks' parameters differ, if the program has updates.

        Args:
            function_id: report only the drift of this function; by default all findings.
        """
        updates = [spec.accumulated for spec in list(self._specs.values())]
        if self._size == 1 or not (any(updates) or any(f.updates for f in (*self._gone.values(),))):
            return
        try:
            findings = [
                finding
                for finding in self.findings()
                if finding.rule in REMINDED
                and (finding.severity == ERROR or finding.rule == DRIFT)
                and function_id in (None, *finding.functions)
                and (function_id is None or finding.rule == DRIFT)
            ]
        except Exception as error:  # noqa: BLE001 - no program shall fail for lint's own mistake
            _warn_of_own_mistake(error)
            return
        news = [finding for finding in findings if finding.about not in self._reported]
        self._reported.update(finding.about for finding in news)
        if news:
            text = "\n".join(str(finding) for finding in news)
            spec = self._specs.get(news[0].functions[-1])
            place = None if spec is None else spec.built_at
            warn_user(f"lint() finds in this program:\n{text}", LintWarning, place)


def _warn_of_own_mistake(error: Exception) -> None:
    warn_user(f"lint() failed ({type(error).__name__}: {error}); please report it", LintWarning)
