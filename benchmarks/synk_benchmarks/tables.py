"""Show a result: as plain text for a terminal, and as a page of Markdown."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Callable

from .results import Cell, Result, Row
from .targets import NO
from .text import amount


@dataclass
class Table:
    """A table.

    Attributes:
        header: names of the columns.
        lines: of cells.
        texts: which columns are text and aligned to the left.
        groups: for each line what it belongs to, with a gap where that changes; or nothing.
        title: above it, where there are several.
    """

    header: Sequence[str]
    lines: list[list[str]]
    texts: Sequence[int] = (0,)
    groups: Sequence[object] = ()
    title: str = ""

    def plain(self) -> str:
        """Return it for a terminal."""
        widths = [max(map(len, column)) for column in zip(self.header, *self.lines)]
        out = [f"{self.title}:"] if self.title else []
        out += [self._aligned(self.header, widths), "-" * (sum(widths) + 2 * len(widths) - 2)]
        for place, line in enumerate(self.lines):
            if self.groups and place and self.groups[place] != self.groups[place - 1]:
                out.append("")
            out.append(self._aligned(line, widths))
        return "\n".join(out) + "\n"

    def markdown(self) -> str:
        """Return it for a page; missed targets are bold."""
        out = [f"### {self.title}", ""] if self.title else []
        out.append(f"| {' | '.join(map(_escaped, self.header))} |")
        marks = ("---" if i in self.texts else "--:" for i in range(len(self.header)))
        out.append(f"|{'|'.join(marks)}|")
        out += [f"| {' | '.join(map(_marked, line))} |" for line in self.lines]
        return "\n".join(out) + "\n"

    def _aligned(self, line: Sequence[str], widths: list[int]) -> str:
        parts = [
            cell.ljust(width) if place in self.texts else cell.rjust(width)
            for place, (cell, width) in enumerate(zip(line, widths))
        ]
        return "  ".join(parts).rstrip()


@dataclass
class Page:
    """All that is shown of a result.

    Attributes:
        title: of the page.
        result: what it shows.
        tables: of it.
        summary: a sentence or two; may be empty.
        legend: how the tables are to be read; may be empty.
        remarks: lines on single numbers.
    """

    title: str
    result: Result
    tables: list[Table]
    summary: str = ""
    legend: str = ""
    remarks: list[str] = field(default_factory=list)

    def plain(self) -> str:
        """Return it for a terminal or a file."""
        remarks = [f"* {remark}" for remark in self.remarks]
        rest = [self.legend and f"{self.legend}\n", self.summary, *remarks, *self.result.left_out]
        return "\n".join([*(table.plain() for table in self.tables), *filter(None, rest)]) + "\n"

    def markdown(self, picture: str | None = None) -> str:
        """Return a page that stands for itself.

        Args:
            picture: where it is, relative to the page.
        """
        page = [f"# {self.title}", "", *([self.summary, ""] if self.summary else [])]
        if picture:
            page += [f"![{self.title}]({picture})", ""]
        runs = self.result.runs
        for number, run in enumerate(runs):
            page += [f"## Where{f', run {number + 1}' if len(runs) > 1 else ''}", ""]
            page += ["| | |", "|---|---|"]
            page += [f"| {_escaped(name)} | {_escaped(fact)} |" for name, fact in run.facts.items()]
            if len(runs) > 1:
                groups = dict.fromkeys(row.group for row in self.result.rows if row.run == number)
                page.append(f"| rows | {_escaped(', '.join(groups))} |")
            page.append("")
        page += ["## Numbers", "", *([_escaped(self.legend, "\n"), ""] if self.legend else [])]
        page += [table.markdown() for table in self.tables]
        remarks = [*self.remarks, *self.result.left_out]
        if remarks:
            page += ["## Remarks", "", *(f"- {_escaped(remark)}" for remark in remarks)]
        return "\n".join(page).rstrip() + "\n"


def cell_text(cell: Cell, unit: str) -> str:
    """Return a contender's number, or in a word why there is none; * where there is a remark."""
    star = "*" if _worth_telling(cell) else ""
    if cell.value is None:
        return f"{cell.note.partition(':')[0]}*" if star else "-"
    return f"{'>= ' if cell.at_least else ''}{amount(cell.value, unit)}{star}"


def remarks_on(result: Result, title: Callable[[Row], str]) -> list[str]:
    """Return each remark once, with the rows and contenders that it is about."""
    told: dict[tuple[str, str], list[Row]] = {}
    for row in result.rows:
        notes: dict[str, list[str]] = {}
        for name, cell in row.cells.items():
            if _worth_telling(cell):
                notes.setdefault(cell.note, []).append(name)
        for note, names in notes.items():
            told.setdefault((", ".join(names), note), []).append(row)
    lines = []
    for (who, note), rows in told.items():
        more = f" and {len(rows) - 1} more" if len(rows) > 1 else ""
        lines.append(f"{title(rows[0]).strip()}{more}: {who}: {note}")
    return lines


def _worth_telling(cell: Cell) -> bool:
    """Return whether there is a remark: what is simply not offered has a note without a colon."""
    return bool(cell.note) and (cell.value is not None or ":" in cell.note)


def _escaped(text: str, newline: str = " ") -> str:
    # Within a word, an underscore is no emphasis.
    return re.sub(r"[|*~]|(?<!\w)_|_(?!\w)", r"\\\g<0>", text).replace("\n", newline)


def _marked(text: str) -> str:
    missed = re.search(rf"(^| ){NO}\b", text)
    return f"**{_escaped(text)}**" if missed else _escaped(text)
