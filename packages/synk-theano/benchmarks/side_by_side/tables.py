"""A result as a table: plain text for the terminal, and a page of Markdown."""

from __future__ import annotations

import statistics

from .results import ADDED, AMOUNT, SPEED, Result, Row

HEADER = ("", "ours", "beside", "theirs", "compared", "target")
LEGEND = (
    "Times of one call, medians of all rounds. compared: median of the rounds' own comparisons:\n"
    "'x' is ours / theirs, 'x speed' is theirs / ours, '+' is ours - theirs. ~: the target lies\n"
    "within the middle half of the rounds, so run it again. *: see the remarks."
)
YES, NO = "yes", "NO"
_TEXT = (0, 2)  # columns that are aligned to the left


def plain(result: Result) -> str:
    """The tables and what belongs to them, for a terminal or a file."""
    groups = _groups(result)
    table = [HEADER, *(line for lines in groups.values() for line in lines)]
    widths = [max(len(line[i]) for line in table) for i in range(len(HEADER))]

    def text(line: tuple[str, ...]) -> str:
        cells = zip(range(len(line)), line, widths)
        parts = [cell.ljust(w) if i in _TEXT else cell.rjust(w) for i, cell, w in cells]
        return "  ".join(parts).rstrip()

    out = []
    for name, lines in groups.items():
        out += [f"{name}:", text(HEADER), *map(text, lines), ""]
    remarks = [f"* {remark}" for remark in _remarks(result)]
    return "\n".join([*out, LEGEND, "", summary(result), *remarks, *_left_out(result)]) + "\n"


def markdown(result: Result) -> str:
    """A page that stands for itself: summary, machine, tables, remarks."""
    page = ["# synk-theano beside the plain ways", "", summary(result), "", "## Where", ""]
    page += ["| | |", "|---|---|"]
    page += [
        f"| {name} | {_escaped(value)} |"
        for name, value in {**result.machine, **result.settings}.items()
    ]
    page += ["", "## Numbers", "", _escaped(LEGEND), ""]
    for name, lines in _groups(result).items():
        page += [f"### {name.capitalize()}", "", f"| {' | '.join(HEADER)} |"]
        page.append("|" + "|".join("---" if i in _TEXT else "--:" for i in range(6)) + "|")
        page += [f"| {' | '.join(_marked(cell) for cell in line)} |" for line in lines]
        page.append("")
    notes = [*_remarks(result), *_left_out(result)]
    if notes:
        page += ["## Remarks", "", *(f"- {_escaped(note)}" for note in notes)]
    return "\n".join(page).rstrip() + "\n"


def summary(result: Result) -> str:
    """How many targets were reached."""
    aimed = [row for row in result.rows if row.target is not None]
    reached = sum(_reached(row) == YES for row in aimed)
    text = f"{reached} of {len(aimed)} targets reached."
    if result.settings.get("rounds", "").startswith("quick"):
        text += " A quick run: small sizes and few rounds, no result to quote."
    return text


def amount(value: float, unit: str = "s") -> str:
    """A number in the unit that suits it: 1.31 us, 591 us, 154 ms, 3.8 MB."""
    if unit == "B":
        for factor, name in ((1e6, "MB"), (1e3, "kB")):
            if abs(value) >= factor:
                return f"{value / factor:.3g} {name}"
        return f"{value:.0f} B"
    for factor, name in ((1e9, "ns"), (1e6, "us"), (1e3, "ms")):
        if abs(value) * factor < 999.5:
            return f"{value * factor:.3g} {name}"
    return f"{value:.2f} s"


def _groups(result: Result) -> dict[str, list[tuple[str, ...]]]:
    groups: dict[str, list[tuple[str, ...]]] = {}
    for row in result.rows:
        groups.setdefault(row.group, []).append(_line(row))
    return groups


def _line(row: Row) -> tuple[str, ...]:
    ours, theirs = _cell(row, row.ours), _cell(row, row.theirs)
    value = row.value()
    compared = "" if value is None else _compared(row, value)
    note = "*" if row.note else ""
    return row.what + note, ours, row.beside, theirs, compared, _target(row)


def _cell(row: Row, samples: tuple[float, ...]) -> str:
    if not samples:
        return ""
    median = statistics.median(samples)
    text = amount(median, row.unit)
    return f"{text}, {row.nbytes / median / 1e9:.2f} GB/s" if row.nbytes else text


def _compared(row: Row, value: float) -> str:
    if row.kind == ADDED:
        return f"+{amount(value)}" if value >= 0 else amount(value)
    number = f"{value:.2f}" if value >= 0.0995 else f"{value:.2g}"
    return f"{number} x speed" if row.kind == SPEED else f"{number} x"


def _target(row: Row) -> str:
    if row.target is None:
        return ""
    sign = ">=" if row.target.kind == SPEED else "<="
    in_seconds = row.target.kind in (ADDED, AMOUNT)
    limit = amount(row.target.limit) if in_seconds else f"{row.target.limit:g}"
    return f"{sign} {limit} {_reached(row)}{'~' if row.close() else ''}"


def _reached(row: Row) -> str:
    value = row.value(row.target.kind) if row.target else None
    if row.target is None or value is None:
        return "?"
    return YES if row.target.reached(value) else NO


def _remarks(result: Result) -> list[str]:
    return [f"{row.what}: {row.note}" for row in result.rows if row.note]


def _left_out(result: Result) -> list[str]:
    return [f"left out: {name}: {why}" for name, why in result.left_out.items()]


def _escaped(text: str) -> str:
    return text.replace("|", "\\|").replace("*", "\\*").replace("~", "\\~").replace("_", "\\_")


def _marked(text: str) -> str:
    return f"**{_escaped(text)}**" if text.rstrip("~").endswith(f" {NO}") else _escaped(text)
