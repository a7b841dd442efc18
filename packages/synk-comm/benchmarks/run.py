"""synk-comm beside its peers: every collective in one run, in turns, as times and ratios.

    python packages/synk-comm/benchmarks/run.py --quick
    python packages/synk-comm/benchmarks/run.py --only all_reduce barrier --sizes 4 64K 1M
    python packages/synk-comm/benchmarks/run.py --json r.json --markdown r.md --plot r.png
    python packages/synk-comm/benchmarks/run.py --only broadcast --update r.json --markdown r.md

README.md in this folder tells what is measured and how to read it.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

from side_by_side import faults, fresh, machine, plot, tables
from side_by_side.contenders import CONTENDERS
from side_by_side.job import JobError, run_job
from side_by_side.metrics import (
    DEATHS,
    IMPORTS,
    JOB,
    METRICS,
    MPICH,
    OURS,
    RANKS,
    REFERENCE,
    SIZES,
    parse_size,
)
from side_by_side.results import Cell, Result, Row, Run, in_order, load, merged
from side_by_side.rounds import BUDGET_S, QUICK_BUDGET_S

ROUNDS, QUICK_ROUNDS = 11, 5
DEATH_ROUNDS, QUICK_DEATH_ROUNDS = 5, 2  # each starts processes anew
QUICK_SIZES = (4, 64 << 10, 1 << 20, 16 << 20)


class Progress:
    """One line on stderr that replaces itself on a terminal, and is left out elsewhere."""

    def __init__(self) -> None:
        self._shown = sys.stderr.isatty()

    def __call__(self, text: str) -> None:
        """Show this in place of what was there."""
        if self._shown:
            sys.stderr.write(f"\r\033[K{text[:100]}")
            sys.stderr.flush()

    def line(self, text: str) -> None:
        """A line that stays."""
        self("")
        sys.stderr.write(text + "\n")
        sys.stderr.flush()


def main() -> int:
    """Measure (or read a file), then show and write what was asked for."""
    options = _options()
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    progress = Progress()
    try:
        return _go(options, progress)
    except KeyboardInterrupt:
        progress.line("interrupted; nothing was written")
        return 128 + signal.SIGINT


def _go(options: argparse.Namespace, progress: Progress) -> int:
    try:
        old = load(options.update) if options.update and options.update.exists() else None
        result = load(options.read) if options.read else _Measurement(options, progress).result()
    except (OSError, ValueError) as error:
        sys.exit(str(error))
    complete = not any(name.startswith("not finished") for name in result.runs[-1].left_out)
    if options.update:
        result = merged(old, result) if old else result
        result.save(options.update)
    if options.json:
        result.save(options.json)
    if options.plot:
        try:
            plot.draw(result, options.plot)
        except ImportError:
            progress.line("no plot: pip install matplotlib")
        except ValueError as error:
            progress.line(f"no plot: {error}")
    if options.markdown:
        picture = options.plot and os.path.relpath(options.plot, options.markdown.parent)
        options.markdown.parent.mkdir(parents=True, exist_ok=True)
        options.markdown.write_text(tables.markdown(result, picture), encoding="utf-8")
    sys.stdout.write(tables.plain(result))
    return 0 if complete else 1


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    names = ", ".join([*METRICS, *CONTENDERS])
    parser.add_argument("--quick", action="store_true", help="5 short rounds, and four sizes")
    parser.add_argument(
        "--only", nargs="+", metavar="NAME", default=[], help=f"metrics or contenders: {names}"
    )
    parser.add_argument(
        "--ranks", nargs="+", type=int, metavar="N", default=list(RANKS), help="2 4 by default"
    )
    parser.add_argument(
        "--sizes", nargs="+", type=_size, metavar="SIZE", help="4 64K 1M ...; 4 to 64M by default"
    )
    parser.add_argument(
        "--rounds", type=int, metavar="N", help=f"{ROUNDS} by default, with --quick {QUICK_ROUNDS}"
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all samples")
    parser.add_argument(
        "--update", type=Path, metavar="FILE", help="put them into what --json wrote before"
    )
    parser.add_argument("--markdown", type=Path, metavar="FILE", help="write a page")
    parser.add_argument("--plot", type=Path, metavar="FILE.png", help="draw times over sizes")
    parser.add_argument(
        "--read", type=Path, metavar="FILE", help="show what --json wrote, measuring nothing"
    )
    options = parser.parse_args()
    unknown = [name for name in options.only if name not in METRICS and name not in CONTENDERS]
    if unknown:
        parser.error(f"there is no {' and no '.join(unknown)}; --only takes {names}")
    if min(options.ranks) < 2 or len(set(options.ranks)) != len(options.ranks):
        parser.error("--ranks takes different numbers from 2 on")
    if options.rounds is not None and options.rounds < 1:
        parser.error("--rounds takes a number from 1 on")
    options.sizes = sorted(set(options.sizes or (QUICK_SIZES if options.quick else SIZES)))
    return options


def _size(text: str) -> int:
    try:
        return parse_size(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


class _Measurement:
    """Everything that was asked for, one number of ranks after the other."""

    def __init__(self, options: argparse.Namespace, progress: Progress) -> None:
        self._progress = progress
        self._quick: bool = options.quick
        self._rounds: int = options.rounds or (QUICK_ROUNDS if options.quick else ROUNDS)
        self._ranks: list[int] = options.ranks
        self._sizes: list[int] = options.sizes
        named = [name for name in options.only if name in METRICS]
        self._metrics = [metric for metric in METRICS.values() if metric.name in named or not named]
        self._left_out: dict[str, str] = {}
        self._contenders = self._choose([name for name in options.only if name in CONTENDERS])
        self._rows: list[Row] = []

    def _choose(self, named: list[str]) -> list[str]:
        """Who takes part: we always do. Who cannot is left out, with what would help."""
        wanted = [name for name in CONTENDERS if name in named or name == OURS or not named]
        for name in wanted:
            reason = CONTENDERS[name].missing()
            if reason and name == OURS:
                raise ValueError(f"synk_comm cannot be imported: {reason}")
            if reason:
                self._left_out[name] = reason
                self._progress.line(f"left out: {name}: {reason}")
        return [name for name in wanted if name not in self._left_out]

    def result(self) -> Result:
        """Measure, and collect what was measured even if some of it failed."""
        self._check_memory()
        described = machine.describe()  # before: its load is what others did
        begin = time.monotonic()
        for ranks in self._ranks:
            self._together(ranks)
            self._deaths(ranks)
        if any(metric.where == IMPORTS for metric in self._metrics):
            self._progress("imports")
            self._rows.append(fresh.imports(self._rounds))
        settings = {
            "rounds": f"quick, {self._rounds}" if self._quick else str(self._rounds),
            "took": f"{time.monotonic() - begin:.0f} s",
        }
        return Result([Run(described, settings, self._left_out)], in_order(self._rows))

    def _together(self, ranks: int) -> None:
        """What all contenders do in turns, in one job."""
        chosen = [metric for metric in self._metrics if metric.where == JOB]
        if not chosen:
            return
        cells: dict[str, Cell] = {}
        if any(metric.name == "barrier" for metric in chosen):
            self._progress(f"{ranks} ranks: multiprocessing.Barrier")
            cells["barrier"] = fresh.python_barrier(ranks, self._rounds)

        def hear(kind: str, value: Any) -> None:
            if kind == "say":
                self._progress(value)
            elif kind == "row":
                self._rows.append(_row(value, cells))

        order = {
            "do": "measure",
            "ranks": ranks,
            "contenders": self._contenders,
            "rounds": self._rounds,
            "budget_s": QUICK_BUDGET_S if self._quick else BUDGET_S,
            "metrics": [(metric.name, metric.sizes(self._sizes)) for metric in chosen],
        }
        begin = time.monotonic()
        try:
            run_job(order, mpi=MPICH in self._contenders, hear=hear)
        except JobError as error:
            # The rows that there are, are good; what comes after them is missing.
            self._left_out[f"not finished: {ranks} ranks"] = str(error)
        self._progress.line(f"{ranks} ranks: {time.monotonic() - begin:.0f} s")

    def _deaths(self, ranks: int) -> None:
        if any(metric.where == DEATHS for metric in self._metrics):
            self._progress(f"{ranks} ranks: a dead peer")
            rounds = min(self._rounds, QUICK_DEATH_ROUNDS if self._quick else DEATH_ROUNDS)
            self._rows.append(faults.dead_peer(ranks, self._contenders, rounds))

    def _check_memory(self) -> None:
        """Refuse what would not fit: a rank has up to three arrays of a block for each rank."""
        needed = max(ranks * (3 * ranks + 1) for ranks in self._ranks) * max(self._sizes)
        free = machine.memory_free()
        if free and needed > free:
            raise ValueError(
                f"{max(self._ranks)} ranks with blocks of {max(self._sizes) >> 20} MB need about "
                f"{needed >> 20} MB of memory, {free >> 20} MB are free; take smaller --sizes"
            )


def _row(told: dict[str, Any], references: dict[str, Cell]) -> Row:
    cells = {
        name: Cell(tuple(samples), note) for name, (samples, note) in told.pop("cells").items()
    }
    apart = told["metric"] in references
    if apart:
        cells[REFERENCE] = references[told["metric"]]
    return Row(**told, cells=cells, paired=not apart)


if __name__ == "__main__":
    sys.exit(main())
