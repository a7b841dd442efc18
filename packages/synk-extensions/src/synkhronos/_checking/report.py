"""Print the tables at the end, on standard error; standard output belongs to the script."""

from __future__ import annotations

from typing import List, Tuple

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from synk_core import Verdict

from .watch import Checked, Watch

_COLOURS = {
    "exact": "green",
    "unknown": "yellow",
    "differs": "yellow",
    "wrong": "red",
    "accepted": "yellow",
}


def problems(watch: Watch) -> List[str]:
    """Return a short description of each error; the exit status depends on them."""
    wrong = [
        f"{function.name}: output {verdict.position}"
        for function, verdict, word in _verdicts(watch)
        if word == "wrong"
    ]
    errors = [f.rule for f in watch.findings.values() if watch.counts(f)]
    return [*wrong, *errors]


def print_report(watch: Watch) -> None:
    """Print the results."""
    out = Console(stderr=True, highlight=False)
    out.print()
    if watch.functions:
        table = Table(title="Outputs, updates", title_justify="left", box=None, pad_edge=False)
        for column in ("function", "output", "op", "verdict", "why, and the cure"):
            table.add_column(column, overflow="fold")
        for function, verdict, word in _verdicts(watch):
            table.add_row(
                escape(function.name),
                escape(verdict.output),
                escape(str(verdict.op)),
                f"[{_COLOURS.get(word, 'default')}]{word}[/]",
                escape(verdict.reason),
            )
        out.print(table)
    else:
        out.print("The script has built no function with synkhronos: there was nothing to check.")
    if watch.findings:
        out.print()
        table = Table(title="Lint", title_justify="left", box=None, pad_edge=False)
        for column in ("", "rule", "what"):
            table.add_column(column, overflow="fold")
        for finding in watch.findings.values():
            colour = "red" if finding.severity == "error" else "yellow"
            severity = f"[{colour}]{finding.severity}[/]"
            table.add_row(severity, escape(finding.rule), escape(finding.message))
        out.print(table)
    elif watch.functions:
        out.print("\nLint has found nothing.")
    for note in watch.notes:
        out.print(f"[yellow]{escape(note)}[/]")
    wrong = problems(watch)
    if wrong:
        out.print(f"\n[red]Wrong: {escape('; '.join(wrong))}[/]")


def _verdicts(watch: Watch) -> List[Tuple[Checked, Verdict, str]]:
    """Return each verdict with its word; "accepted" if the script filters its warning out."""
    return [
        (function, verdict, _word(function, verdict))
        for function in watch.functions
        for verdict in function.verdicts
    ]


def _word(function: Checked, verdict: Verdict) -> str:
    return "accepted" if verdict.verdict == "wrong" and function.accepted else verdict.verdict
