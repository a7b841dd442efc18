"""A result as a table: plain text for the terminal, and a page of Markdown."""

from __future__ import annotations

from .cases import FUSED
from .metrics import COLUMNS, METRICS, size_name
from .results import Cell, Result, Row
from .targets import NO, UNKNOWN, YES, Target, Verdict, judge, tally

LEGEND = (
    "Time of one call, the slowest rank's, median of all rounds. Size: bytes that a rank gives, or "
    "of one block.\n"
    "'to X': our time to X's, the median of the rounds' own ratios; below 1 is better. In brackets "
    "the target, and\n"
    "whether it was reached; ~: it lies within the middle half of the rounds, so run it again. "
    "*: see the remarks.\n"
    "reference: np.copyto by all ranks at once, as many bytes as each receives; but for"
)
_LEFT = 2  # columns that are text


def plain(result: Result) -> str:
    """The table and what belongs to it, for a terminal or a file."""
    header, groups = _lines(result)
    table = [header, *(line for group in groups for line in group)]
    widths = [max(len(line[i]) for line in table) for i in range(len(header))]

    def text(line: list[str]) -> str:
        parts = [
            cell.ljust(width) if place < _LEFT else cell.rjust(width)
            for place, (cell, width) in enumerate(zip(line, widths))
        ]
        return "  ".join(parts).rstrip()

    out = [text(header), "-" * (sum(widths) + 2 * len(widths) - 2)]
    for group in groups:
        out += [*map(text, group), ""]
    notes = [f"* {note}" for note in _notes(result)]
    return "\n".join([*out, _legend(), "", *_summary(result), *notes, *_left_out(result)]) + "\n"


def markdown(result: Result, plot: str | None = None) -> str:
    """A page that stands for itself: summary, machine, table, remarks.

    Args:
        plot: where the picture is, relative to the page.
    """
    page = ["# synk-comm beside its peers", "", *_summary(result), ""]
    if plot:
        page += [f"![time of each collective over the size]({plot})", ""]
    for number, run in enumerate(result.runs, 1):
        page += [f"## Where{f', run {number}' if len(result.runs) > 1 else ''}", ""]
        facts = {**run.machine, **run.settings}
        facts.update({f"left out: {name}": why for name, why in run.left_out.items()})
        page += ["| | |", "|---|---|"]
        page += [f"| {name} | {_escaped(value)} |" for name, value in facts.items()]
        if len(result.runs) > 1:
            names = dict.fromkeys(row.metric for row in result.rows if row.run == number - 1)
            page.append(f"| rows | {', '.join(names)} |")
        page.append("")
    header, groups = _lines(result)
    page += ["## Numbers", "", _escaped(_legend()), ""]
    page.append(f"| {' | '.join(header)} |")
    page.append("|" + "|".join("---" if i < _LEFT else "--:" for i in range(len(header))) + "|")
    for line in (line for group in groups for line in group):
        page.append(f"| {' | '.join(_marked(_escaped(cell)) for cell in line)} |")
    notes = _notes(result)
    if notes:
        page += ["", "## Remarks", "", *(f"- {_escaped(note)}" for note in notes)]
    return "\n".join(page) + "\n"


def seconds(value: float) -> str:
    """A time in the unit that suits it: 1.31 us, 591 us, 154 ms."""
    for factor, unit in ((1e9, "ns"), (1e6, "us"), (1e3, "ms")):
        if abs(value) * factor < 999.5:
            return f"{value * factor:.3g} {unit}"
    return f"{value:.2f} s"


def title(row: Row) -> str:
    """What a row is called: all_reduce 64 KB, 2 ranks."""
    ranks = f", {row.ranks} ranks" if row.ranks else ""
    return f"{row.metric} {_size(row)}".rstrip() + ranks


def _lines(result: Result) -> tuple[list[str], list[list[list[str]]]]:
    """The header, and the lines in groups of one metric and number of ranks."""
    header = ["collective", "size", *COLUMNS, *(f"to {name}" for name in COLUMNS[1:])]
    groups: dict[tuple[str, int], list[list[str]]] = {}
    for row in result.rows:
        verdicts = {found.to: found for found in judge(row)}
        name = f"{row.metric}, {row.ranks} ranks" if row.ranks else row.metric
        own = verdicts.pop("", None)
        cells = [_cell(row.cells.get(column, Cell())) for column in COLUMNS]
        if own is not None:
            cells[0] += f" {_target(own)}"
        ratios = [_verdict(verdicts.get(column)) for column in COLUMNS[1:]]
        groups.setdefault((row.metric, row.ranks), []).append([name, _size(row), *cells, *ratios])
    return header, list(groups.values())


def _size(row: Row) -> str:
    if row.metric == "fused":
        return f"{FUSED} x 1 KB"
    return size_name(row.nbytes) if row.nbytes else ""


def _cell(cell: Cell) -> str:
    if cell.value is None:
        return f"{_short(cell.note)}*" if _worth_telling(cell) else "-"
    return seconds(cell.value) + ("*" if cell.note else "")


def _short(note: str) -> str:
    return note.partition(":")[0] if ":" in note else "-"


def _verdict(found: Verdict | None) -> str:
    if found is None:
        return ""
    ratio = _number(found.ratio.value) if found.ratio else "-"
    return f"{ratio} {_target(found)}" if found.target else ratio


def _target(found: Verdict) -> str:
    assert found.target is not None  # noqa: S101 - callers have looked
    return f"({_limit(found.target)} {found.reached}{'~' if found.close else ''})"


def _limit(target: Target) -> str:
    return f"<= {target.limit:g}" if target.to else f"<= {seconds(target.limit)}"


def _number(ratio: float) -> str:
    return f"{ratio:.2f}" if ratio >= 0.0995 else f"{ratio:.2g}"


def _worth_telling(cell: Cell) -> bool:
    """Whether a remark belongs below the table: not for what is simply not offered."""
    return bool(cell.note) and cell.note != "not offered"


def _notes(result: Result) -> list[str]:
    """Each remark once, with the rows that it is about."""
    told: dict[tuple[str, str], list[Row]] = {}
    for row in result.rows:
        for name, cell in row.cells.items():
            if _worth_telling(cell):
                told.setdefault((name, cell.note), []).append(row)
    lines = []
    for (name, note), rows in told.items():
        where = title(rows[0]) if len(rows) == 1 else f"{title(rows[0])} and {len(rows) - 1} more"
        lines.append(f"{where}: {name}: {note}")
    return lines


def _summary(result: Result) -> list[str]:
    count = tally(result)
    text = f"{count[YES]} of {sum(count.values())} targets reached, {count[NO]} not"
    if count[UNKNOWN]:
        text += f", {count[UNKNOWN]} not measured"
    if any(run.settings.get("rounds", "").startswith("quick") for run in result.runs):
        text += " (a quick run: no result to quote)"
    return [f"{text}."]


def _left_out(result: Result) -> list[str]:
    return [f"left out: {name}: {why}" for run in result.runs for name, why in run.left_out.items()]


def _legend() -> str:
    others = [
        f"{name}: {metric.reference}"
        for name, metric in METRICS.items()
        if metric.reference and not metric.sized
    ]
    return f"{LEGEND} {'; '.join(others)}."


def _escaped(text: str) -> str:
    return text.replace("|", "\\|").replace("*", "\\*").replace("~", "\\~").replace("_", "\\_")


def _marked(text: str) -> str:
    return f"**{text}**" if f" {NO}" in text else text
