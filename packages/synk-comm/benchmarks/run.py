"""synk-comm beside its peers: every collective in one run, in turns, as times and ratios.

    python packages/synk-comm/benchmarks/run.py --quick
    python packages/synk-comm/benchmarks/run.py --only all_reduce barrier --sizes 4 64K 1M
    python packages/synk-comm/benchmarks/run.py --json r.json --markdown r.md --plot r.png
    python packages/synk-comm/benchmarks/run.py --only broadcast --update r.json --markdown r.md

README.md in this folder tells what is measured and how to read it.
"""

from __future__ import annotations

import argparse
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

from side_by_side import faults, fresh, targets
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
from side_by_side.mpi import mpi_version
from side_by_side.rounds import BUDGET_S, QUICK_BUDGET_S
from synk_benchmarks import machine, program
from synk_benchmarks.contender import choose
from synk_benchmarks.results import NOT_FINISHED, Cell, Result, Row, Run, read_row
from synk_benchmarks.text import KB, MB

ROUNDS, QUICK_ROUNDS = 11, 5
DEATH_ROUNDS, QUICK_DEATH_ROUNDS = 5, 2  # each starts processes anew
QUICK_SIZES = (4, 64 * KB, MB, 16 * MB)
PACKAGES = ("synk-comm", "numpy", "pyzmq", "mpi4py", "torch")


def main() -> int:
    """Measure (or read a file), then show and write what was asked for."""
    options = _options()

    def measure(progress: program.Progress) -> Result:
        return _Measurement(options, progress).result()

    return program.run(options, measure, targets.page, targets.draw, targets.order)


def _options() -> argparse.Namespace:
    names = [*METRICS, *CONTENDERS]
    parser = program.parser(__doc__ or "", names, "5 short rounds, and four sizes")
    add = parser.add_argument
    add("--ranks", nargs="+", type=int, metavar="N", default=list(RANKS), help="2 4 by default")
    add("--sizes", nargs="+", type=_size, metavar="SIZE", help="4 64K 1M ...; 4 to 64M by default")
    add("--rounds", type=int, metavar="N", help=f"{ROUNDS} by default, with --quick {QUICK_ROUNDS}")
    add("--update", type=Path, metavar="FILE", help="put them into what --json wrote before")
    add("--plot", type=Path, metavar="FILE.png", help="draw times over sizes")
    options = parser.parse_args()
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

    def __init__(self, options: argparse.Namespace, progress: program.Progress) -> None:
        self._progress = progress
        self._quick: bool = options.quick
        self._rounds: int = options.rounds or (QUICK_ROUNDS if options.quick else ROUNDS)
        self._ranks: list[int] = options.ranks
        self._sizes: list[int] = options.sizes
        named = [name for name in options.only if name in METRICS]
        self._metrics = [metric for metric in METRICS.values() if metric.name in named or not named]
        self._contenders, self._left_out = choose(CONTENDERS, options.only, OURS)
        for name, reason in self._left_out.items():
            progress.line(f"left out: {name}: {reason}")
        self._rows: list[Row] = []

    def result(self) -> Result:
        """Measure, and collect what was measured even if some of it failed."""
        self._check_memory()
        mpi = {"MPI": mpi_version()} if MPICH in self._contenders else {}
        described = machine.describe(*PACKAGES, **mpi)  # before: its load is what others did
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
        return Result(
            [Run(described, settings, self._left_out)], sorted(self._rows, key=targets.order)
        )

    def _together(self, ranks: int) -> None:
        """Measure what all contenders do in turns, in one job."""
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
            self._left_out[f"{NOT_FINISHED}{ranks} ranks"] = str(error)
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
    row = read_row(told)
    if row.group not in references:
        return row
    cells = {**row.cells, REFERENCE: references[row.group]}
    return replace(row, cells=cells, paired=False)


if __name__ == "__main__":
    sys.exit(main())
