"""What a program has done so far, and what `lint()` makes of it."""

from __future__ import annotations

from collections import deque
from typing import Deque, FrozenSet, Iterable, Iterator, List, Mapping, Set

from ._facts import Event, facts_of
from ._lint import ERROR, Finding, Findings, lint
from ._shared_vars import VariableRegistry
from ._spec import FunctionSpec
from ._warn import warn_user
from .exceptions import LintWarning

EVENTS = 10_000
"""Calls and collectives that are looked back on."""

REMINDERS = (100, EVENTS)
"""After so many the program is looked through, unasked; and again when it ends."""

TOLD = frozenset({"unreduced-read", "replicas-drift", "reduced-on-master-only"})
"""Rules of which users are reminded: their gradients or parameters are no longer common. Of a
drift nobody can be certain; what the others find counts if it is an error."""


class History:
    """The calls and collectives of a program, oldest first.

    Args:
        registry: the shared variables.
        specs: of all functions, by number.
        size: number of ranks.

    Attributes:
        on: whether what is done belongs to the program: not while `verify()` or `lint()` works.
    """

    def __init__(
        self, registry: VariableRegistry, specs: Mapping[int, FunctionSpec], size: int
    ) -> None:
        self.on = True
        self._registry = registry
        self._specs = specs
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

    def findings(self, unequal: FrozenSet[int] = frozenset()) -> Findings:
        """What `lint()` finds, given the variables that are known to differ between ranks."""
        facts = [
            facts_of(spec, self._registry.number_of, number)
            for number, spec in self._specs.items()
            if number not in self._hidden
        ]
        names = {number: v.name for number, v in enumerate(self._registry) if v.name}
        truncated = len(self._events) == EVENTS
        events = tuple(self._events)
        return Findings(lint(facts, events, names, self._size, truncated, unequal))

    def remind(self) -> None:
        """Warn, once, of what lets the ranks' parameters part, if the program has updates."""
        if self._size == 1 or not any(spec.accumulated for spec in self._specs.values()):
            return
        try:
            findings = [
                finding
                for finding in self.findings()
                if finding.rule in TOLD
                and (finding.severity == ERROR or finding.rule == "replicas-drift")
            ]
        except Exception as error:  # noqa: BLE001 - no program shall fail for lint's own mistake
            text = f"lint() failed ({type(error).__name__}: {error}); please report it"
            warn_user(text, LintWarning)
            return
        news = [finding for finding in findings if finding not in self._told]
        self._told.update(news)
        if news:
            text = "\n".join(str(finding) for finding in news)
            warn_user(f"lint() finds in this program:\n{text}", LintWarning)
