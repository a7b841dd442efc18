"""What synk-theano aims at, and how a result is shown."""

from __future__ import annotations

from synk_benchmarks.results import ADDED, OURS, SPEED, Cell, Result, Row, compare
from synk_benchmarks.tables import Page, Table, cell_text, remarks_on
from synk_benchmarks.targets import Target, Verdict, summary
from synk_benchmarks.text import amount, number

PLAIN, BARRIERS, ONE, PICKLE = "plain Theano", "two Barrier waits", "one process", "plain pickle"
THREADED = "one process, BLAS with a thread for each rank"
"""What ours is beside."""
CALLS = ("Data", "ndarray", "Data, batch=slice", "Data, batch=index", "ndarray, batch=index")
PROBLEMS = ("six matrix products", "a step of two convolutions", "the sum of an array")
TARGETS: tuple[Target, ...] = (
    *(Target(f"calls/{what}/{PLAIN}", 40e-6, PLAIN, ADDED) for what in CALLS),
    *(Target(f"calls/{what}/{BARRIERS}", 0.25, BARRIERS) for what in CALLS[:2]),
    *(Target(f"scaling/{what}/{ONE}", 0.95, ONE, SPEED) for what in PROBLEMS[:2]),
    Target(f"distribution/ResNet-50 to 4 workers/{PICKLE}", 5.0),
)
HEADER = ("", "ours", "beside", "theirs", "compared", "target")
LEGEND = (
    "Times of one call, medians of all rounds. compared: median of the rounds' own comparisons:\n"
    "'x' is ours / theirs, 'x speed' is theirs / ours, '+' is ours - theirs. ~: the target lies\n"
    "within the middle half of the rounds, so run it again. *: see the remarks."
)


def page(result: Result) -> Page:
    """Show a result: a table for each part, and in it a line for each row."""
    tables: dict[str, Table] = {}
    verdicts = []
    for row in result.rows:
        found = _judge(row)
        verdicts += found
        table = tables.setdefault(row.group, Table(HEADER, [], (0, 2), (), row.group.capitalize()))
        table.lines.append(_line(row, found))
    return Page(
        "synk-theano beside the plain ways",
        result,
        list(tables.values()),
        summary(result, verdicts),
        LEGEND,
        remarks_on(result, lambda row: row.label),
    )


def _judge(row: Row) -> list[Verdict]:
    return [target.judge(row, OURS) for target in TARGETS if target.holds_for(row)]


def _line(row: Row, verdicts: list[Verdict]) -> list[str]:
    theirs = next(name for name in row.cells if name != OURS)
    found = compare(row, OURS, theirs, row.kind)
    compared = _compared(row.kind, found.value) if found else ""
    target = " ".join(verdict.text for verdict in verdicts)
    ours, other = (_cell(row, row.cells[name]) for name in (OURS, theirs))
    return [row.label, ours, theirs, other, compared, target]


def _cell(row: Row, cell: Cell) -> str:
    text = cell_text(cell, row.unit)
    rate = row.nbytes / cell.value if cell.value else 0
    return f"{text}, {rate / 1e9:.2f} GB/s" if rate else text


def _compared(kind: str, value: float) -> str:
    if kind == ADDED:
        return f"{'+' if value >= 0 else ''}{amount(value)}"
    return f"{number(value)} x speed" if kind == SPEED else f"{number(value)} x"
