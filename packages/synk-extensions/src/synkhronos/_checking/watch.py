"""Check each runtime of the program: its functions when they are built, and lint at its end."""

from __future__ import annotations

import warnings
import weakref
from dataclasses import dataclass, field, replace
from functools import wraps
from typing import Any, Dict, List, Tuple, Type

from synk_core import Finding, Runtime, Verdict
from synk_core.exceptions import DecompositionWarning, LintWarning, SynkError


@dataclass
class Checked:
    """A function and the verdicts on its outputs.

    Args:
        name: The function's name, or its number in the order of building.
        verdicts: One for each output, and one for each update.
        accepted: Whether the script filters the warning about wrong outputs out.
    """

    name: str
    verdicts: List[Verdict]
    accepted: bool = False


@dataclass
class Watch:
    """The results so far.

    Args:
        functions: The checked functions, in the order of building.
        findings: The findings of lint, in order, each once.
        notes: Reasons for checks that could not be made.
        accepts_lint: Whether the script filters the warnings of lint out.
    """

    functions: List[Checked] = field(default_factory=list)
    findings: Dict[Tuple[str, str], Finding] = field(default_factory=dict)
    accepts_lint: bool = False
    notes: List[str] = field(default_factory=list)
    _open: "weakref.WeakSet[Runtime]" = field(default_factory=weakref.WeakSet)

    def begin(self) -> None:
        """Check all runtimes from now on, for the rest of this process."""
        build, close = Runtime.function, Runtime.close

        @wraps(build)
        def function(runtime: Any, *arguments: Any, **named: Any) -> Any:
            made = build(runtime, *arguments, **named)
            self._open.add(runtime)
            self._check(runtime, made)
            return made

        @wraps(close)
        def closing(runtime: Any) -> None:
            self._lint(runtime)
            with warnings.catch_warnings():
                # The report contains its warnings.
                warnings.simplefilter("ignore", LintWarning)
                close(runtime)

        Runtime.function, Runtime.close = function, closing  # type: ignore[assignment, method-assign]

    def finish(self) -> None:
        """Run lint on runtimes that are still open."""
        for runtime in list(self._open):
            self._lint(runtime)

    def counts(self, finding: Finding) -> bool:
        """Return whether a finding makes the program wrong, because the ranks' models diverge."""
        drift = finding.rule == "replicas-drift" and not self.accepts_lint
        return drift or finding.severity == "error"

    def _check(self, runtime: Any, made: Any) -> None:
        name = made.name or f"function {len(self.functions)}"
        try:
            checked = runtime.check(made)
            updates = (replace(v, output=f"update {v.output}") for v in checked.updates)
        except Exception as error:  # noqa: BLE001 - the script continues, whatever a check raises
            self.notes.append(f"{name} could not be checked: {type(error).__name__}: {error}")
            return
        accepted = _is_filtered(name, checked)
        self.functions.append(Checked(name, [*checked, *updates], accepted))

    def _lint(self, runtime: Any) -> None:
        if runtime not in self._open:
            return
        self._open.discard(runtime)
        try:
            found = [] if runtime.closed else runtime.lint()
        except (SynkError, OSError) as error:
            self.notes.append(f"lint could not look: {type(error).__name__}: {error}")
            return
        if found:
            self.accepts_lint = _is_hidden(str(found[0]), LintWarning)
        for finding in found:
            self.findings[finding.rule, finding.message] = finding


def _is_filtered(name: str, verdicts: List[Verdict]) -> bool:
    """Return whether the script's own filters would hide a warning of what is wrong."""
    wrong = [verdict for verdict in verdicts if verdict.verdict == "wrong"]
    if not wrong:
        return False
    reasons = "\n".join(verdict.reason for verdict in wrong)
    text = f"function {name!r} cannot be split over rows as it is:\n{reasons}"
    return _is_hidden(text, DecompositionWarning)


def _is_hidden(text: str, category: Type[Warning]) -> bool:
    """Return whether the script's own filters would hide a warning."""
    with warnings.catch_warnings(record=True) as shown:
        try:
            warnings.warn(text, category, stacklevel=5)
        except category:
            return False
    return not shown
