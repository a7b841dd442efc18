"""The findings of `lint()`, and the names of variables in them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Callable, FrozenSet, List, Mapping, Optional, Sequence, Tuple

from synk_core._graph.facts import FunctionFacts

ERROR, WARNING = "error", "warning"


@dataclass(frozen=True)
class Finding:
    """A mistake ("error"), or a possible one ("warning").

    Attributes:
        rule: "unreduced-read", "reduced-on-master-only", "set-on-one-rank", "replicas-drift",
            "own-averages" (a drift on which only the variable's own next value depends),
            "scattered-read", "replicas-differ", "sliceable-updated" or "sliceable-read-whole".
        variables: numbers of the shared variables concerned.
        functions: numbers of the functions concerned: who wrote, then who read.
    """

    rule: str
    severity: str
    message: str
    variables: Tuple[int, ...]
    functions: Tuple[int, ...]

    @property
    def about(self) -> Tuple[str, FrozenSet[int], Tuple[int, ...]]:
        """The same for the same mistake, whatever else it came with."""
        return self.rule, frozenset(self.variables), self.functions

    def __str__(self) -> str:
        return f"{self.severity} [{self.rule}]: {self.message}"


class Findings(List[Finding]):
    """The findings, errors first; as text, a report."""

    def __str__(self) -> str:
        return "\n".join(str(finding) for finding in self) or "nothing found"


def labels(
    functions: Sequence[FunctionFacts], names: Mapping[int, str], forms: Mapping[int, str]
) -> Callable[[int], str]:
    """How variables are called in messages: by name, where that is not enough by their number and
    form too; without a name, by what they are a moment of, as adam() has them."""
    known = {n for f in functions for n in f.reads | f.updates | f.sliceable} | set(names)
    given = [names[n] for n in known if names.get(n)]

    def label(number: int) -> str:
        name, form = names.get(number), forms.get(number, "")
        if name:
            if given.count(name) == 1:
                return repr(name)
            return f"{name!r} (shared variable {number}{form and ', ' + form})"
        owner = owner_of(number) if form else None
        if owner is not None:
            return f"a {form} moment of {label(owner)}"
        return f"shared variable {number}{form and f' ({form})'}"

    def owner_of(number: int) -> Optional[int]:
        """Return the only variable that it goes into, except itself, if that has the same form."""
        owners = {u for f in functions if number in f.updates for u in f.consumers(number)}
        owners.discard(number)
        if len(owners) != 1 or any(number in f.shown for f in functions):
            return None
        (owner,) = owners
        return owner if forms.get(owner) == forms[number] else None

    return label
