"""The targets of synk-shm, and how a result is shown."""

from __future__ import annotations

import sys
from pathlib import Path

from synk_benchmarks import plot
from synk_benchmarks.results import Cell, Result, Row, compare
from synk_benchmarks.tables import Page, Table, cell_text, remarks_on
from synk_benchmarks.targets import BEST, Target, Verdict, summary
from synk_benchmarks.text import number

from .contenders import CONTENDERS, OURS, NumPy, RawArray, SharedArray, Stdlib

PEERS = [name for name, contender in CONTENDERS.items() if contender.peer]
STYLES = {
    "SharedMemory": ("#444444", "o"),
    "SharedArray": ("#d98c00", "s"),
    "RawArray": ("#7a9e3f", "^"),
    "joblib": ("#8a5aa8", "D"),
    "NumPy": ("#999999", "x"),
}
LEGEND = (
    "Medians of all rounds. Ratio: synk-shm to the peer named beside it, the median of the\n"
    "rounds' own ratios; below 1 is better, except for the number of arrays. A ~ marks a target\n"
    "that lies within the middle half of the rounds: run it again. * has a remark below."
)
MILLISECOND = 1e-3

TARGETS: tuple[Target, ...] = (
    Target("create/1K", 1.6, SharedArray.name),
    Target("create/1K", 0.75, Stdlib.name),
    Target("create/1M", 0.95, SharedArray.name),
    Target("create/large", 0.6, SharedArray.name),
    Target("again/1K", 0.6, SharedArray.name),
    Target("again/1M", 1.2, RawArray.name),
    Target("share/1M", 0.7, SharedArray.name),
    Target("share/large", 0.65, SharedArray.name),
    Target("attach/1K", 1.8, SharedArray.name),
    Target("attach/1K", 0.7, Stdlib.name),
    *(Target(f"bytes/{what}", 120) for what in ("message", "handle", "view")),
    *(Target(f"pass/{size}", 0.85, Stdlib.name) for size in ("1K", "1M", "large")),
    Target("pass/large", 1 / 5000, NumPy.name),
    *(Target(f"handle/{size}", 0.85, Stdlib.name) for size in ("1K", "1M", "large")),
    # Equal to ordinary memory, or faster.
    Target("compute", 1.03, NumPy.name),
    Target("grow/large", 0.35, BEST),
    # From 3.13 on Python keeps no descriptor for a mapped file.
    Target("arrays/1024", 0.95, SharedArray.name, at_least=True)
    if sys.version_info >= (3, 13)
    else Target("arrays/1024", 1000, at_least=True),
    Target("import/time", 3 * MILLISECOND),
    Target("import/helpers", 0),
    *(Target(f"left/{what}", 0) for what in ("creator", "group-next", "exit", "complaints")),
    Target("sigbus/dies", 0),
)


def judge(row: Row) -> list[Verdict]:
    """Judge a row by each of its targets."""
    return [target.judge(row, OURS, PEERS) for target in TARGETS if target.holds_for(row)]


def page(result: Result) -> Page:
    """Show a result: a line for each row and target."""
    columns = result.columns(list(CONTENDERS))
    lines, groups = [], []
    for row in result.rows:
        cells = [cell_text(row.cells.get(name, Cell()), row.unit) for name in columns]
        named = [row.label, *cells]
        verdicts: list[Verdict | None] = [*judge(row)] or [None]
        for verdict in verdicts:
            lines.append([*named, *_compared(row, verdict)])
            groups.append(row.group)
            named = [""] * len(named)  # a second target: the numbers stand above
    header = ["metric", *columns, "ratio", "to", "target"]
    texts = (0, len(header) - 2, len(header) - 1)
    text = summary(result, _verdicts(result))
    if any(run.settings.get("large arrays") != "256 MB" for run in result.runs):
        text += " The targets are meant for large arrays of 256 MB."
    remarks = remarks_on(result, lambda row: row.label)
    table = Table(header, lines, texts, groups)
    return Page(f"{OURS} beside its peers", result, [table], text, LEGEND, remarks)


def draw(result: Result, path: Path) -> None:
    """Write the picture of ratios."""
    lines = plot.lines_of(result, _verdicts(result), OURS, PEERS)
    plot.draw_ratios(result, lines, STYLES, OURS, path)


def _verdicts(result: Result) -> list[Verdict]:
    return [verdict for row in result.rows for verdict in judge(row)]


def _compared(row: Row, verdict: Verdict | None) -> list[str]:
    """Return the ratio, its peer (without a target the best one), and the target."""
    to = verdict.to if verdict and verdict.to else row.best(PEERS)
    found = compare(row, OURS, to)
    ratio, target = number(found.value) if found else "", ""
    if verdict:
        target = verdict.text if verdict.to else f"ours {verdict.text}"
    return [ratio, to if found or (verdict and verdict.to) else "", target]
