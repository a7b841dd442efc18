"""Run a benchmark from the command line: options, progress, parts, and the page of a run."""

from __future__ import annotations

import argparse
import signal
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from .results import Row, joined
from .tables import Table, page

NOT_MEASURED = "not measured: "


def say(text: str) -> None:
    """Show a line of progress."""
    sys.stderr.write(text + "\n")
    sys.stderr.flush()


def parser(doc: str, only: Iterable[str], quick: str, rounds: int = 0) -> argparse.ArgumentParser:
    """Return a parser with the options of all benchmarks, with ``--rounds`` unless that is 0."""
    made = argparse.ArgumentParser(
        description=doc, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    names = list(only)
    add = made.add_argument
    add("--quick", action="store_true", help=quick)
    shown = ", ".join(repr(name) if " " in name else name for name in names)
    choice = _choice(names, shown)
    add("--only", nargs="+", metavar="NAME", type=choice, default=[], help=shown)
    add("--markdown", type=Path, metavar="FILE", help="write a page")
    if rounds:
        add("--rounds", type=positive, metavar="N", help=f"{rounds} by default, --quick: 3")
    return made


def chosen(
    contenders: Mapping[str, Any], only: Sequence[str], ours: str
) -> tuple[list[str], dict[str, str]]:
    """Return who takes part, and why others who were wanted cannot; ours always does."""
    named = [name for name in only if name in contenders]
    wanted = [name for name in contenders if name in (*named, ours) or not named]
    why = {name: contenders[name].missing() for name in wanted}
    return [n for n in wanted if not why[n]], {n: reason for n, reason in why.items() if reason}


def positive(text: str) -> int:
    """Read an option that is a number from 1 on."""
    if not text.isdigit() or not int(text):
        raise argparse.ArgumentTypeError(f"got {text!r}, expected a number from 1 on")
    return int(text)


def _choice(names: Sequence[str], shown: str) -> Callable[[str], str]:
    def known(name: str) -> str:
        if name not in names:
            raise argparse.ArgumentTypeError(f"there is no {name}; it takes {shown}")
        return name

    return known


def run(
    title: str,
    facts: Mapping[str, str],
    parts: Mapping[str, Callable[[], Iterable[Row]]],
    options: argparse.Namespace,
    left_out: Mapping[str, str] | None = None,
    ours: str = "",
    more: Callable[[Sequence[Row]], Sequence[Table]] = lambda _rows: (),
) -> int:
    """Measure the parts one after the other, show the page, and write it if that was asked for.

    A part that breaks is left out, and the page says why. Ctrl-C and SIGTERM end the run; the page
    has what was measured before. Ours is the first column, by default that of a table's first cell.
    """
    rows: list[Row] = []
    lines = [f"left out: {name}: {why}" for name, why in (left_out or {}).items()]
    status = 0
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    began = time.monotonic()
    try:
        for name, measure in parts.items():
            begin = time.monotonic()
            try:
                for row in measure():  # those before a failure count
                    rows.append(row)
            except Exception as error:  # noqa: BLE001 - one part that breaks must not end the run
                lines.append(f"{NOT_MEASURED}{name}: {type(error).__name__}: {error}")
                status = 1
            say(f"{name}: {time.monotonic() - begin:.1f} s")
    except KeyboardInterrupt:
        lines.append(f"{NOT_MEASURED}the rest: interrupted")
        status = 128 + signal.SIGINT
    facts = {**facts, "took": f"{time.monotonic() - began:.0f} s"}
    if getattr(options, "quick", False):
        facts["rounds"] = "quick: no result to quote"
    shown = page(title, facts, joined(rows), lines, ours)
    shown.tables += more(rows)
    if options.markdown:
        options.markdown.parent.mkdir(parents=True, exist_ok=True)
        options.markdown.write_text(shown.markdown(), encoding="utf-8")
    sys.stdout.write(shown.markdown())
    return status
