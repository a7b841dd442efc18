"""Show rows as Markdown: a table for each group, ours first, and our ratio to each other."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from .results import KB, MB, SECONDS, Cell, Row, ratio

LEGEND = (
    "Medians of all rounds. 'to X': our number to X's, the median of the rounds' own ratios; "
    "below 1 is better. *: see the remarks."
)


@dataclass
class Table:
    """A table; its first column is text, all others are numbers."""

    title: str
    header: Sequence[str]
    lines: list[list[str]] = field(default_factory=list)

    def markdown(self) -> str:
        """Return it as Markdown that can be read as it is."""
        lines = [[_escaped(cell) for cell in line] for line in (self.header, *self.lines)]
        widths = [max(3, *map(len, column)) for column in zip(*lines)]
        lines.insert(1, ["-" * widths[0], *(f"{'-' * (width - 1)}:" for width in widths[1:])])
        texts = [
            " | ".join([line[0].ljust(widths[0]), *map(str.rjust, line[1:], widths[1:])])
            for line in lines
        ]
        return "\n".join([f"### {self.title}", "", *(f"| {text} |" for text in texts), ""])


@dataclass
class Page:
    """All that is shown of a run; remarks are on single numbers, and on what was left out."""

    title: str
    facts: Mapping[str, str]
    tables: list[Table]
    remarks: list[str] = field(default_factory=list)

    def markdown(self) -> str:
        """Return it as Markdown, a page that stands for itself."""
        facts = [f"| {_escaped(name)} | {_escaped(fact)} |" for name, fact in self.facts.items()]
        page = [f"# {self.title}", "", "| | |", "|---|---|", *facts, "", _escaped(LEGEND), ""]
        page += [table.markdown() for table in self.tables]
        page += [f"- {_escaped(remark)}" for remark in self.remarks]
        return "\n".join(page).rstrip() + "\n"


def page(
    title: str,
    facts: Mapping[str, str],
    rows: Sequence[Row],
    left_out: Sequence[str],
    ours: str = "",
) -> Page:
    """Return the page of rows: a table for each group."""
    groups = dict.fromkeys(row.group for row in rows)
    tables = [table_of(name, [row for row in rows if row.group == name], ours) for name in groups]
    return Page(title, facts, tables, [*_remarks(rows), *left_out])


def table_of(title: str, rows: Sequence[Row], ours: str = "") -> Table:
    """Return the table of a group's rows; ours is by default the contender of the first cell."""
    names = list(dict.fromkeys(name for row in rows for name in row.cells))
    names.sort(key=lambda name: name != ours)
    table = Table(title, ["", *names, *(f"to {name}" for name in names[1:])])
    for row in rows:
        cells = [cell_text(row.cells.get(name, Cell()), row.unit) for name in names]
        ratios = [ratio(row, names[0], name) for name in names[1:]]
        texts = ["" if found is None else number(found) for found in ratios]
        table.lines.append([row.label, *cells, *texts])
    return table


def cell_text(cell: Cell, unit: str) -> str:
    """Return a contender's number, or in a word why there is none; * if there is a remark."""
    if cell.value is None:
        return f"{cell.note.partition(':')[0]}*" if ":" in cell.note else "-"
    return amount(cell.value, unit) + ("*" if cell.note else "")


def _remarks(rows: Sequence[Row]) -> list[str]:
    """Return each remark once, with the first row that it is about."""
    told: dict[tuple[str, str], list[str]] = {}
    for row in rows:
        for name, cell in row.cells.items():
            if cell.note and (cell.value is not None or ":" in cell.note):
                told.setdefault((name, cell.note), []).append(f"{row.group}, {row.label}")
    return [
        f"{labels[0]}{f' and {len(labels) - 1} more' if labels[1:] else ''}: {name}: {note}"
        for (name, note), labels in told.items()
    ]


def amount(value: float, unit: str = SECONDS) -> str:
    """Write a number in the unit that suits it: 1.31 us, 154 ms, 1,175 B, 3.8 MB."""
    if unit == SECONDS:
        for factor, name in ((1e9, "ns"), (1e6, "us"), (1e3, "ms")):
            if abs(value) * factor < 999.5:
                return f"{value * factor:.3g} {name}"
        return f"{value:.2f} s"
    if abs(value) >= 1e4:
        for factor, name in ((1e9, "GB"), (1e6, "MB"), (1e3, "kB")):
            if abs(value) >= factor:
                return f"{value / factor:.3g} {name}"
    count = f"{value:,.0f}" if value == int(value) else f"{value:,.1f}"
    return f"{count} B"


def number(value: float) -> str:
    """Write a ratio: 2.09, 0.047, 1/152."""
    if 0 < value < 0.01:
        return f"1/{round(1 / value)}"
    return f"{value:.2f}" if abs(value) >= 0.0995 else f"{value:.2g}"


def size_name(nbytes: int) -> str:
    """Write a size in powers of two, as everywhere: 4 B, 64 KB, 1 MB."""
    for unit, name in ((MB, "MB"), (KB, "KB")):
        if nbytes >= unit and nbytes % unit == 0:
            return f"{nbytes // unit} {name}"
    return f"{nbytes} B"


def _escaped(text: str) -> str:
    # Within a word, an underscore is no emphasis.
    return re.sub(r"[|*~]|(?<!\w)_|_(?!\w)", r"\\\g<0>", text)
