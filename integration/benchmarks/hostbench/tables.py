"""What is aimed at on several hosts, and how a result is shown."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from synk_benchmarks.results import Cell, Result, Row, compare
from synk_benchmarks.tables import Page, Table, cell_text, remarks_on
from synk_benchmarks.targets import Target, Verdict, summary
from synk_benchmarks.text import KB, MB, amount, number, size_name

from . import model
from .model import OURS, PART, THEIRS

BEFORE = "before"
FREE, ONE_HOST = "not limited", "one host"
RECORD = "record"
"""Group of the time for which a rank looks at one record of a round."""
COLUMNS = (OURS, PART, THEIRS, BEFORE)
GROUPS = (
    "order",
    "all_reduce",
    "broadcast",
    "Data, new",
    model.WHOLE,
    model.ROWS,
    "batch",
    model.LINK,
    RECORD,
)
# Of calls on two hosts whose links are as fast as the machine; and of one host, beside what it was.
TARGETS = (
    Target("order", 2.0, THEIRS, ranks=2),
    Target("all_reduce", 2.0, THEIRS, ranks=2, largest=KB),
    Target("all_reduce", 1.3, THEIRS, ranks=2, smallest=MB, largest=MB),
    Target("all_reduce", 1.1, THEIRS, ranks=2, smallest=100 * MB),
    Target("broadcast", 1.1, THEIRS, ranks=2, smallest=100 * MB),
    Target(model.WHOLE, 1.1, THEIRS, ranks=2, smallest=100 * MB),
    *(
        Target(group, 1.05, BEFORE, ranks=2)
        for group in ("order", "all_reduce", "broadcast", "batch")
    ),
)
LEGEND = (
    "Time of one call, median of all rounds; in brackets the quickest. 'to mpi4py': our time to "
    "mpi4py's, in the same processes,\nthe median of the rounds' own ratios, and the ratio of the "
    "quickest; then the target. ~: it lies within the middle half of the rounds.\n"
    "'to before': the ratio of the quickest rounds of two versions, whose processes took turns."
)


def judge(row: Row) -> list[Verdict]:
    """Judge a row by each of its targets."""
    return [
        target.judge(row, OURS)
        for target in TARGETS
        if target.holds_for(row) and target.to in row.cells and row.label in (FREE, ONE_HOST)
    ]


def order(row: Row) -> Any:
    """Sort rows as the table shows them."""
    return row.label == ONE_HOST, GROUPS.index(row.group), row.nbytes, row.ranks, row.label


def page(result: Result) -> Page:
    """Show a result: what was compared; and what the model says, where links were shaped."""
    rows = [row for row in result.rows if row.group != RECORD]
    lines = [_line(row) for row in rows]
    header = [
        "call",
        "size",
        "where",
        *COLUMNS,
        f"to {THEIRS}",
        f"{PART} to {THEIRS}",
        f"to {BEFORE}",
    ]
    groups = [row.group for row in rows]
    tables = [Table(header, lines, (0, 1, 2), groups, "Calls")]
    constants = constants_of(result.rows)
    if constants:
        tables += [_constants_table(constants), _checks_table(result.rows, constants)]
        links = extrapolated(constants)
        tables += [_training_table(links), _parts_table(links)]
    verdicts = [verdict for row in result.rows for verdict in judge(row)]
    return Page(
        f"{OURS} on several hosts",
        result,
        tables,
        summary(result, verdicts),
        LEGEND,
        remarks_on(result, lambda row: f"{row.group} {_size(row)}, {_where(row)}"),
    )


def _line(row: Row) -> list[str]:
    texts = {verdict.to: f" ({verdict.text})" for verdict in judge(row)}
    line = [row.group, _size(row), _where(row)]
    for name in COLUMNS:
        cell = row.cells.get(name, Cell())
        least = f" ({amount(min(cell.samples))})" if cell.samples else ""
        line.append(cell_text(cell, row.unit) + least)
    for ours, name in ((OURS, THEIRS), (PART, THEIRS), (OURS, BEFORE)):
        found = compare(row, ours, name)
        text = f"{number(found.value)}; {number(_quickest(row, ours, name))}" if found else ""
        line.append(text + texts.get(name, "") * (ours == OURS))
    return line


def _quickest(row: Row, ours: str, name: str) -> float:
    return min(row.cells[ours].samples) / min(row.cells[name].samples)


def _where(row: Row) -> str:
    if row.label == ONE_HOST:
        return f"{ONE_HOST}, {row.ranks} ranks"
    return f"{row.ranks} hosts, {row.label}"


def _size(row: Row) -> str:
    return size_name(row.nbytes) if row.nbytes else ""


def constants_of(rows: list[Row]) -> dict[str, model.Costs]:
    """Return the constants of each link that was measured on two hosts."""
    found = {}
    record_s = min((model.quickest(row) for row in rows if row.group == RECORD), default=0.0)
    for label in dict.fromkeys(row.label for row in rows if row.label != ONE_HOST):
        own = [row for row in rows if row.label == label and row.ranks == 2]
        if {model.LINK, "order", "all_reduce", model.ROWS} <= {row.group for row in own}:
            found[label] = model.fitted(own, record_s)
    return found


def extrapolated(constants: dict[str, model.Costs]) -> dict[str, model.Costs]:
    """Return constants of links as clusters have them: of the processor, what was measured."""
    base = constants.get(FREE) or next(iter(constants.values()))
    return {
        "1 Gbit/s, 50 us": model.beyond(base, 1, 50e-6),
        "10 Gbit/s, 30 us": model.beyond(base, 10, 30e-6),
        "100 Gbit/s, 5 us": model.beyond(base, 100, 5e-6),
    }


def _constants_table(constants: dict[str, model.Costs]) -> Table:
    header = [
        "link",
        "latency",
        "rate",
        "a round beside",
        "a reduction beside",
        "rows beside",
        "after a pause",
    ]
    lines = [
        [
            label,
            amount(costs.latency_s),
            f"{costs.rate * 8e-9:.2f} Gbit/s",
            amount(costs.round_s),
            f"{costs.reduce_s * 1e9:.2f} ns/B",
            f"{costs.ship_s * 1e9:.2f} ns/B",
            amount(costs.wake_s),
        ]
        for label, costs in constants.items()
    ]
    return Table(header, lines, (0,), (), "Constants, of two hosts")


def _checks_table(rows: list[Row], constants: dict[str, model.Costs]) -> Table:
    lines, groups = [], []
    for check in model.checks(rows, constants):
        row = check.row
        ratio = number(check.measured / check.predicted)
        lines.append(
            [
                *(row.group, _size(row), row.label, str(row.ranks)),
                *(amount(check.measured), amount(check.predicted), ratio),
            ]
        )
        groups.append(f"{row.group}{row.nbytes}")
    header = ["call", "size", "link", "hosts", "measured", "predicted", "measured / predicted"]
    return Table(header, lines, (0, 1, 2), groups, "The model")


def _training_table(links: dict[str, model.Costs]) -> Table:
    lines, groups = [], []
    for network in model.NETWORKS:
        for label, costs in links.items():
            for variant, without, _ in model.VARIANTS:
                percents = [100 * network.efficiency(costs, n, without) for n in model.RANKS]
                times = [network.step_s * 100 / percent for percent in percents]
                cells = [f"{amount(s)} ({p:.2g}%)" for s, p in zip(times, percents)]
                lines.append([network.name, label, variant, *cells])
                groups.append(f"{network.name}{label}")
    header = ["network", "link", "", *(f"{ranks:,} ranks" for ranks in model.RANKS)]
    return Table(header, lines, (0, 1, 2), groups, "A training step, as the model predicts it")


def _parts_table(links: dict[str, model.Costs]) -> Table:
    lines, groups = [], []
    for network in model.NETWORKS:
        for label, costs in links.items():
            for ranks in model.RANKS:
                parts = network.parts(costs, ranks)
                lines.append([network.name, label, f"{ranks:,}", *map(amount, parts.values())])
                groups.append(f"{network.name}{label}")
    header = ["network", "link", "ranks", *parts]
    return Table(header, lines, (0, 1), groups, "Where the time of a step goes")


def draw(result: Result, path: Path) -> None:
    """Write the picture of what the model says.

    Raises:
        ImportError: matplotlib is not installed.
        ValueError: the result has no constants.
    """
    constants = constants_of(result.rows)
    if not constants:
        raise ValueError("no link was measured on two hosts")
    model.draw(extrapolated(constants), path)
