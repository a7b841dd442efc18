"""A result as a table: for the terminal, plain or by rich, and as a page of Markdown."""

from __future__ import annotations

import shutil
from typing import TextIO

from .contenders import OURS
from .results import BYTES, SECONDS, Cell, Result
from .targets import NO, UNKNOWN, YES, Verdict, judge

LEGEND = (
    "Medians of all rounds. Ratio: synk-shm to the peer named beside it, the median of the\n"
    "rounds' own ratios; below 1 is better, except for the number of arrays. A ~ marks a target\n"
    "that lies within the middle half of the rounds: run it again. * has a remark below."
)


def show(result: Result, stream: TextIO) -> None:
    """Write the table to a terminal or file, with rich if that is installed."""
    header, lines = _lines(result)
    try:
        from rich.box import SIMPLE_HEAD
        from rich.console import Console
        from rich.table import Table
        from rich.text import Text
    except ImportError:
        stream.write(_plain(header, lines))
    else:
        table = Table(box=SIMPLE_HEAD, header_style="bold", pad_edge=False, padding=(0, 1, 0, 0))
        for name in header:
            table.add_column(name, justify="left" if name in _LEFT else "right", no_wrap=True)
        styles = {YES: "green", NO: "bold red", UNKNOWN: "yellow"}
        group = None
        for found, cells in lines:
            if group not in (None, found.row.group):
                table.add_section()
            group = found.row.group
            *rest, reached = cells
            table.add_row(*map(Text, rest), Text(reached, styles.get(found.reached, "")))
        width = max(shutil.get_terminal_size().columns, _width(header, lines))
        Console(file=stream, width=width).print(table)
    for text in [LEGEND, *_summary(result), *_notes(result)]:
        stream.write(text + "\n")


def markdown(result: Result, plot: str | None = None) -> str:
    """A page that stands for itself: summary, machine, table, remarks.

    Args:
        plot: where the picture is, relative to the page.
    """
    header, lines = _lines(result)
    page = ["# synk-shm beside its peers", "", *_summary(result), ""]
    if plot:
        page += [f"![ratios of each metric]({plot})", ""]
    page += ["## Where", "", "| | |", "|---|---|"]
    page += [f"| {name} | {_escaped(value)} |" for name, value in result.machine.items()]
    page += [f"| {name} | {value} |" for name, value in result.settings.items()]
    page += [f"| left out: {name} | {_escaped(value)} |" for name, value in result.left_out.items()]
    page += ["", "## Numbers", "", LEGEND.replace("* has", "\\* has").replace("~", "\\~"), ""]
    page.append(f"| {' | '.join(header)} |")
    page.append("|" + "|".join("---" if name in _LEFT else "--:" for name in header) + "|")
    for found, cells in lines:
        mark = "**" if found.reached == NO else ""
        *rest, reached = map(_escaped, cells)
        page.append(f"| {' | '.join(rest)} | {mark}{reached}{mark} |")
    remarks = _notes(result)
    if remarks:
        page += ["", "## Remarks", "", *(f"- {_escaped(line)}" for line in remarks)]
    return "\n".join(page) + "\n"


def seconds(value: float) -> str:
    """A time in the unit that suits it: 13.1 us, 591 us, 154 ms."""
    for factor, unit in ((1e9, "ns"), (1e6, "us"), (1e3, "ms")):
        if abs(value) * factor < 999.5 or unit == "ms":
            return f"{value * factor:.3g} {unit}" if value * factor < 999.5 else _long(value)
    return _long(value)


_LEFT = ("metric", "to", "target", "reached")


def _lines(result: Result) -> tuple[list[str], list[tuple[Verdict, list[str]]]]:
    """The header, and for every line the verdict behind it and its texts."""
    header = ["metric", *result.contenders, "ratio", "to", "target", "reached"]
    lines = []
    before = None
    for found in judge(result):
        row = found.row
        cells = [row.cells.get(name, Cell()) for name in result.contenders]
        if before is row:  # a second target: the numbers have been said
            who = "" if found.ours == OURS else f"  {found.ours}"
            first = [who, *("" for _ in cells)]
        else:
            first = [row.label, *(_cell(cell, row.unit) for cell in cells)]
        before = row
        ratio = _ratio(found.ratio.value) if found.ratio else ""
        reached = found.reached + (" ~" if found.close else "")
        lines.append((found, [*first, ratio, found.peer, found.target, reached]))
    return header, lines


def _cell(cell: Cell, unit: str) -> str:
    value = cell.value
    if value is None:
        return "failed*" if _worth_telling(cell) else "-"
    text = seconds(value) if unit == SECONDS else _count(value) + (" B" if unit == BYTES else "")
    if cell.at_least:
        text = ">= " + text
    return text + ("*" if _worth_telling(cell) else "")


def _worth_telling(cell: Cell) -> bool:
    """Whether a remark belongs below the table: not for what is simply not offered."""
    return bool(cell.note) and (cell.value is not None or cell.note.startswith("failed"))


def _notes(result: Result) -> list[str]:
    lines = []
    for row in result.rows:
        told: dict[str, list[str]] = {}
        for name, cell in row.cells.items():
            if _worth_telling(cell):
                told.setdefault(cell.note, []).append(name)
        lines += [f"* {row.label}: {', '.join(who)}: {note}" for note, who in told.items()]
    return lines


def _summary(result: Result) -> list[str]:
    verdicts = [found for found in judge(result) if found.target]
    count = {word: sum(found.reached == word for found in verdicts) for word in (YES, NO, UNKNOWN)}
    text = f"{count[YES]} of {len(verdicts)} targets reached, {count[NO]} not"
    if count[UNKNOWN]:
        text += f", {count[UNKNOWN]} not measured"
    if result.settings.get("rounds") == "quick":
        text += " (a quick run: no result to quote)"
    if result.settings.get("large arrays") != "256 MB":
        text += " (the targets are meant for large arrays of 256 MB)"
    return [text + "."]


def _ratio(value: float) -> str:
    return f"1/{round(1 / value)}" if 0 < value < 0.01 else f"{value:.2f}"


def _count(value: float) -> str:
    return f"{value:,.0f}" if value == int(value) else f"{value:,.1f}"


def _long(value: float) -> str:
    return f"{value:.2f} s"


def _escaped(text: str) -> str:
    return text.replace("|", "\\|").replace("*", "\\*").replace("~", "\\~")


def _plain(header: list[str], lines: list[tuple[Verdict, list[str]]]) -> str:
    table = [header, *(cells for _, cells in lines)]
    widths = [max(len(cells[i]) for cells in table) for i in range(len(header))]

    def text(cells: list[str]) -> str:
        parts = [
            cell.ljust(width) if name in _LEFT else cell.rjust(width)
            for cell, width, name in zip(cells, widths, header)
        ]
        return "  ".join(parts).rstrip()

    out = [text(header), "-" * (sum(widths) + 2 * len(widths) - 2)]
    group = None
    for found, cells in lines:
        if group not in (None, found.row.group):
            out.append("")
        group = found.row.group
        out.append(text(cells))
    return "\n".join(out) + "\n\n"


def _width(header: list[str], lines: list[tuple[Verdict, list[str]]]) -> int:
    """What rich needs not to cut anything: the texts, and three characters between columns."""
    table = [header, *(cells for _, cells in lines)]
    return sum(max(len(cells[i]) for cells in table) + 3 for i in range(len(header))) + 1
