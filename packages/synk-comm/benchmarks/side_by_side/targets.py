"""What synk-comm aims at, and how a result is shown."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from synk_benchmarks import plot
from synk_benchmarks.results import Cell, Result, Row, compare
from synk_benchmarks.tables import Page, Table, cell_text, remarks_on
from synk_benchmarks.targets import Target, Verdict, summary
from synk_benchmarks.text import KB, MB, number, size_name

from .cases import FUSED
from .metrics import COLUMNS, GLOO, METRICS, MPICH, OURS, REFERENCE

STYLES = {
    OURS: ("#1b6ca8", "o"),
    MPICH: ("#d98c00", "s"),
    GLOO: ("#7a9e3f", "^"),
    REFERENCE: ("#999999", "x"),
}
LEGEND = (
    "Time of one call, the slowest rank's, median of all rounds. Size: bytes that a rank gives, or "
    "of one block.\n"
    "'to X': our time to X's, the median of the rounds' own ratios; below 1 is better. In brackets "
    "the target, and\n"
    "whether it was reached; ~: it lies within the middle half of the rounds, so run it again. "
    "*: see the remarks.\n"
    "reference: np.copyto by all ranks at once, as many bytes as each receives; but for"
)

# The targets for four ranks are meant for machines with two cores, where ranks share them.
TARGETS: tuple[Target, ...] = (
    Target("all_reduce", 0.9, MPICH, ranks=2, smallest=4, largest=4 * KB),
    Target("all_reduce", 0.5, MPICH, ranks=2, smallest=16 * KB, largest=MB),
    Target("all_reduce", 0.6, MPICH, ranks=2, smallest=4 * MB, largest=16 * MB),
    Target("all_reduce", 0.3, MPICH, ranks=2, smallest=64 * MB),
    Target("all_reduce", 0.05, GLOO, ranks=2, smallest=4, largest=256 * KB),
    Target("all_reduce", 0.15, GLOO, ranks=2, smallest=MB, largest=4 * MB),
    Target("all_reduce", 0.3, GLOO, ranks=2, smallest=16 * MB),
    Target("all_reduce", 1.2, REFERENCE, ranks=2, smallest=64 * MB),
    Target("all_reduce_shared", 0.75, REFERENCE, ranks=2, smallest=64 * MB),
    Target("all_reduce", 1.0, MPICH, ranks=4, smallest=4, largest=4),
    Target("all_reduce", 0.6, MPICH, ranks=4, smallest=KB, largest=16 * MB),
    Target("all_reduce", 0.35, MPICH, ranks=4, smallest=64 * MB),
    Target("barrier", 0.4, MPICH, ranks=2),
    Target("barrier", 0.02, REFERENCE, ranks=2),
    Target("broadcast", 0.5, MPICH, ranks=2, smallest=64 * KB, largest=64 * KB),
    Target("broadcast", 0.6, MPICH, ranks=2, smallest=MB, largest=MB),
    Target("broadcast", 1.05, MPICH, ranks=2, smallest=64 * MB, largest=64 * MB),
    Target("all_gather", 1.1, MPICH, ranks=2),
    Target("fused", 0.4, REFERENCE, ranks=2),
    Target("all_reduce_zmq", 1.0, GLOO, ranks=2, smallest=16 * MB, largest=16 * MB),
    Target("mismatch", 10e-3),
    Target("dead_peer", 50e-3),
    Target("import", 1.3, REFERENCE),
)


def judge(row: Row) -> list[Verdict]:
    """Judge a row by each of its targets."""
    return [target.judge(row, OURS) for target in TARGETS if target.holds_for(row)]


def order(row: Row) -> Any:
    """Sort rows as the table shows them: by metric, ranks and size."""
    return list(METRICS).index(row.group), row.ranks, row.nbytes


def page(result: Result) -> Page:
    """Show a result: a line for each row, and in it a comparison with each other column."""
    lines, groups = [], []
    for row in result.rows:
        texts = {verdict.to: f" ({verdict.text})" for verdict in judge(row)}
        cells = [cell_text(row.cells.get(name, Cell()), row.unit) for name in COLUMNS]
        cells[0] += texts.get("", "")
        ratios = [_ratio(row, name, texts.get(name, "")) for name in COLUMNS[1:]]
        named = f"{row.group}, {row.ranks} ranks" if row.ranks else row.group
        lines.append([named, _size(row), *cells, *ratios])
        groups.append(named)
    header = ["collective", "size", *COLUMNS, *(f"to {name}" for name in COLUMNS[1:])]
    verdicts = [verdict for row in result.rows for verdict in judge(row)]
    references = [
        f"{name}: {metric.reference}"
        for name, metric in METRICS.items()
        if metric.reference and not metric.sized
    ]
    return Page(
        f"{OURS} beside its peers",
        result,
        [Table(header, lines, (0, 1), groups)],
        summary(result, verdicts),
        f"{LEGEND} {'; '.join(references)}.",
        remarks_on(result, _title),
    )


def draw(result: Result, path: Path) -> None:
    """Write the picture of times over sizes."""
    plot.draw_times(result, STYLES, OURS, path)


def _ratio(row: Row, name: str, target: str) -> str:
    found = compare(row, OURS, name)
    return f"{number(found.value)}{target}" if found else f"-{target}" if target else ""


def _title(row: Row) -> str:
    """Name a row in a remark: all_reduce 64 KB, 2 ranks."""
    ranks = f", {row.ranks} ranks" if row.ranks else ""
    return f"{row.group} {_size(row)}".rstrip() + ranks


def _size(row: Row) -> str:
    if row.group == "fused":
        return f"{FUSED} x 1 KB"
    return size_name(row.nbytes) if row.nbytes else ""
