"""What a program has done so far, and what `lint()` makes of it."""

from __future__ import annotations

import itertools
from collections import deque
from typing import Any, Deque, Dict, FrozenSet, Iterable, Iterator, List, Set, Tuple

from ._facts import Event, FunctionFacts, facts_of
from ._lint import ERROR, Finding, Findings, lint
from ._shared_vars import VariableRegistry
from ._spec import FunctionSpec, unnamed
from ._warn import warn_user
from .exceptions import LintWarning

EVENTS = 10_000
"""Calls and collectives that are looked back on."""

MOST_GONE = 1000
"""Beyond so many functions that nobody has any more, those of which no call is looked back on are
forgotten."""

REMINDERS = (100, EVENTS)
"""After so many the program is looked through, unasked; and again when it ends."""

TOLD = frozenset({"unreduced-read", "replicas-drift", "reduced-on-master-only"})
"""Rules of which users are reminded: their gradients or parameters are no longer common. Of a
drift nobody can be certain; what the others find counts if it is an error."""


class History:
    """The calls and collectives of a program, oldest first.

    Args:
        registry: the shared variables.
        specs: of functions, by number.
        size: number of ranks.

    Attributes:
        on: whether what is done belongs to the program: not while `verify()` or `lint()` works.
    """

    def __init__(
        self, registry: VariableRegistry, specs: Dict[int, FunctionSpec], size: int
    ) -> None:
        self.on = True
        self._registry = registry
        self._specs = specs
        self._gone: Dict[int, FunctionFacts] = {}
        self._names: Dict[int, str] = {}
        self._strangers = itertools.count(-1, -1)
        self._size = size
        self._hidden: Set[int] = set()
        self._events: Deque[Event] = deque(maxlen=EVENTS)
        self._reminders: List[int] = list(REMINDERS)
        self._told: Set[Finding] = set()

    def __len__(self) -> int:
        return len(self._events)

    def hide(self, function_id: int) -> None:
        """Leave a function out if it was not built by the program."""
        if not self.on:
            self._hidden.add(function_id)

    def let_go(self, function_id: int) -> None:
        """Nobody has a function any more: keep of its graph what is needed to judge the program."""
        spec = self._specs.get(function_id)
        if spec is None:
            return  # the runtime has ended
        if any(event.function_id == function_id for event in self._events):
            try:
                self._gone[function_id] = facts_of(spec, self._known_number, function_id)
            except Exception as error:  # noqa: BLE001 - no program shall fail for lint's own mistake
                _warn_of_own_mistake(error)
            self._names.update(self._names_now())
            if len(self._gone) > MOST_GONE:
                called = {event.function_id for event in self._events}
                self._gone = {n: facts for n, facts in self._gone.items() if n in called}
                used = set().union(*(f.reads | f.updates for f in self._gone.values()))
                self._names = {n: name for n, name in self._names.items() if n in used}
        self._hidden.discard(function_id)

    def _known_number(self, variable: Any) -> int:
        """A variable's number; of one that no rank has, one that nothing else has."""
        number = self._registry.known_number(variable.container.storage)
        return next(self._strangers) if number is None else number

    def _names_now(self) -> Dict[int, str]:
        named = {number: self._registry.name_of(number) for number in self._registry.variables}
        return {number: name for number, name in named.items() if name}

    def note(self, events: Iterable[Event]) -> None:
        """Take in what was done."""
        if not self.on:
            return
        self._events.extend(events)
        if self._reminders and len(self._events) >= self._reminders[0]:
            del self._reminders[0]
            self.remind()

    def latest(self) -> Iterator[Event]:
        """What was done, the last of it first."""
        return reversed(self._events)

    def updated_by(self, function_id: int) -> Tuple[str, FrozenSet[int]]:
        """The name of a function that was called, and the variables that it updates."""
        facts = self._gone.get(function_id)
        if facts is not None:
            return facts.name, facts.updates
        spec = self._specs.get(function_id)
        if spec is None:
            return "", frozenset()
        updates = frozenset(self._known_number(target) for target, _, _ in spec.accumulated)
        return spec.name or unnamed(function_id), updates

    def findings(self, unequal: FrozenSet[int] = frozenset()) -> Findings:
        """What `lint()` finds, given the variables that are known to differ between ranks."""
        facts = dict(self._gone)
        for number, spec in self._specs.items():
            if number not in self._hidden:
                facts[number] = facts_of(spec, self._registry.number_of, number)
        names = {**self._names, **self._names_now()}
        truncated = len(self._events) == EVENTS
        events = tuple(self._events)
        in_order = [facts[number] for number in sorted(facts)]
        return Findings(lint(in_order, events, names, self._size, truncated, unequal))

    def remind(self) -> None:
        """Warn, once, of what lets the ranks' parameters part, if the program has updates."""
        updates = [spec.accumulated for spec in self._specs.values()]
        if self._size == 1 or not (any(updates) or any(f.updates for f in self._gone.values())):
            return
        try:
            findings = [
                finding
                for finding in self.findings()
                if finding.rule in TOLD
                and (finding.severity == ERROR or finding.rule == "replicas-drift")
            ]
        except Exception as error:  # noqa: BLE001 - no program shall fail for lint's own mistake
            _warn_of_own_mistake(error)
            return
        news = [finding for finding in findings if finding not in self._told]
        self._told.update(news)
        if news:
            text = "\n".join(str(finding) for finding in news)
            warn_user(f"lint() finds in this program:\n{text}", LintWarning)


def _warn_of_own_mistake(error: Exception) -> None:
    warn_user(f"lint() failed ({type(error).__name__}: {error}); please report it", LintWarning)
