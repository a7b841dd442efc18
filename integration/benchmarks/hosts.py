"""Calls on several hosts beside plain mpi4py in the same processes, and on one host.

    python integration/benchmarks/hosts.py --quick
    python integration/benchmarks/hosts.py --hosts 2 4 8 --links 1:200 10:20 --sizes 1K 1M 16M
    python integration/benchmarks/hosts.py --before ../old --json r.json --markdown r.md
    python integration/benchmarks/hosts.py --read r.json --plot scaling.svg

The hosts are simulated on this machine, which needs root: network namespaces, each with its own
/dev/shm, connected by links that are as fast as the machine copies, or of a given rate and delay.
Without root (or with --plain) there are as many ranks that only believe to be on several hosts.
hosts.md in this folder tells what is measured and how to read it.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import subprocess
import sys
import tempfile
import time
import timeit
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from hostbench import network, tables
from hostbench.model import LARGE_NBYTES, OURS, PART, ROWS, THEIRS
from hostbench.network import Link
from hostbench.tables import BEFORE, FREE, ONE_HOST
from synk_benchmarks import machine, program
from synk_benchmarks.results import NOT_FINISHED, Cell, Result, Row, Run, read_row
from synk_benchmarks.text import KB, MB

from synk_testing.mpi import job_command, why_no_mpi

FOLDER = Path(__file__).resolve().parent
ROOT = FOLDER.parents[1]
SIZED = tables.GROUPS[1:-2]
SIZES = {"all_reduce": (KB, MB, 100 * MB), ROWS: (MB, 100 * MB), "batch": (MB,)}
"""Bytes by group; of others the largest."""
LINK_SIZES = (1, LARGE_NBYTES)
ROUNDS, QUICK_ROUNDS, ONE_HOST_TURNS = 9, 3, 4
BUDGET_S, QUICK_BUDGET_S = 0.1, 0.02
LIMIT_S = 400
RECORDS = 1024
FLAGS = "device=cpu,linker=py,optimizer=fast_compile"
PACKAGES = ("synkhronos", "numpy", "mpi4py", "mpich")


def main() -> int:
    """Measure (or read a file), then show and write what was asked for."""
    options = _options()

    def measure(progress: program.Progress) -> Result:
        return _Measurement(options, progress).result()

    return program.run(options, measure, tables.page, tables.draw, tables.order)


def _options() -> argparse.Namespace:
    parser = program.parser(__doc__ or "", tables.GROUPS, "3 short rounds, up to 1 MB")
    add = parser.add_argument
    add("--hosts", nargs="*", type=int, metavar="N", default=[2], help="with a rank each; or none")
    links = "Gbit/s:us of delay, or free (default)"
    add("--links", nargs="+", type=_link, metavar="LINK", default=[Link()], help=links)
    add("--sizes", nargs="+", type=_size, metavar="SIZE", help="1K 1M ...; by default the targets'")
    add("--rounds", type=int, metavar="N", help=f"{ROUNDS} by default, with --quick {QUICK_ROUNDS}")
    add("--plain", action="store_true", help="no namespaces: ranks that believe in several hosts")
    add("--one-host", action="store_true", help="measure one host's shared memory, too")
    add("--before", type=Path, metavar="FOLDER", help="a checkout that one host is compared with")
    add("--update", type=Path, metavar="FILE", help="put them into what --json wrote before")
    add("--plot", type=Path, metavar="FILE.svg", help="draw what the model says of many ranks")
    options = parser.parse_args()
    if min(options.hosts, default=2) < 2:
        parser.error("--hosts takes numbers from 2 on")
    options.rounds = options.rounds or (QUICK_ROUNDS if options.quick else ROUNDS)
    return options


def _link(text: str) -> Link:
    if text == "free":
        return Link()
    gbits, _, delay_us = text.partition(":")
    try:
        return Link(float(gbits), float(delay_us or 0))
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text}: expected free, or as in 10:200") from None


def _size(text: str) -> int:
    factor = {"K": KB, "M": MB}.get(text[-1:].upper(), 1)
    digits = text if factor == 1 else text[:-1]
    if not digits.isdigit() or not int(digits):
        raise argparse.ArgumentTypeError(f"{text}: expected as in 4096, 64K, 1M")
    return int(digits) * factor


def _record_row() -> Row:
    """Measure for how long a rank looks at one record of a round: see `MpiFabric`."""
    records, counts = np.zeros((RECORDS, 128), np.uint8), [0] * RECORDS
    taken = timeit.repeat(
        lambda: [[(0, record[64 : 64 + n])] for record, n in zip(records, counts)], number=1
    )
    cells = {OURS: Cell(tuple(seconds / RECORDS for seconds in taken))}
    return Row(tables.RECORD, tables.RECORD, ONE_HOST, cells)


class _Measurement:
    """Everything that was asked for, one number of hosts and kind of link after the other."""

    def __init__(self, options: argparse.Namespace, progress: program.Progress) -> None:
        self._options, self._progress = options, progress
        self._left_out: dict[str, str] = {}
        self._rows: list[Row] = []

    def result(self) -> Result:
        """Measure, and keep what was measured even if some of it failed.

        Raises:
            ValueError: there is no MPI, or links are to be shaped and cannot.
        """
        options = self._options
        if problem := why_no_mpi():
            raise ValueError(problem)
        problem = "--plain" if options.plain else network.missing()
        if problem and any(link.gbits for link in options.links):
            raise ValueError(f"links can be shaped only between simulated hosts: {problem}")
        if problem:
            self._left_out["simulated hosts"] = problem
        described = machine.describe(*PACKAGES)
        began = time.monotonic()
        self._rows.append(_record_row())
        for count in options.hosts:
            for link in options.links:
                self._several(count, link, simulated=not problem)
        if options.one_host or options.before:
            self._one()
        settings = {
            "rounds": f"quick, {options.rounds}" if options.quick else str(options.rounds),
            "hosts": "ranks of one host" if problem else "network namespaces, one rank each",
            "took": f"{time.monotonic() - began:.0f} s",
        }
        return Result(
            [Run(described, settings, self._left_out)], sorted(self._rows, key=tables.order)
        )

    def _several(self, count: int, link: Link, *, simulated: bool) -> None:
        where = FREE if not link.gbits else link.label
        with contextlib.ExitStack() as ends:
            if simulated:
                hosts = ends.enter_context(network.hosts(count, link))
                mpiexec = Path(sys.executable).with_name("mpiexec.hydra")
                command = hosts.command(str(mpiexec))
            else:
                command = job_command(count, 1)
            rows = self._job(command, count, where, dict(os.environ))
        self._rows += rows

    def _one(self) -> None:
        """One host, and another version of it: their processes take turns."""
        before = self._options.before
        environments = {OURS: dict(os.environ)}
        if before:
            sources = sorted((before / "packages").glob("*/src"))
            environments[BEFORE] = {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, sources))}
        samples: dict[str, dict[str, list[float]]] = {}
        kept: dict[str, Row] = {}
        for turn in range(ONE_HOST_TURNS if before else 1):
            for name in list(environments)[:: 1 if turn % 2 == 0 else -1]:
                for row in self._job([], 2, ONE_HOST, environments[name]):
                    kept[row.key] = row
                    taken = samples.setdefault(row.key, {}).setdefault(name, [])
                    taken += row.cells[OURS].samples
        for key, row in kept.items():
            cells = {name: Cell(tuple(taken)) for name, taken in samples[key].items()}
            self._rows.append(replace(row, cells=cells, paired=False))

    def _job(
        self, command: Sequence[str], count: int, where: str, environment: dict[str, str]
    ) -> list[Row]:
        """Run a job; return its rows, those before a failure too."""
        self._progress(f"{count} ranks, {where}")
        began = time.monotonic()
        with tempfile.TemporaryDirectory(prefix="synk-bench-") as folder:
            rows, settings = Path(folder, "rows"), Path(folder, "settings.json")
            rows.touch()
            content = {
                "ranks": 0 if command else count,
                "hosts": count,
                "where": where,
                "rows": str(rows),
                "cases": list(self._cases(bool(command))),
                "rounds": self._options.rounds,
                "budget_s": QUICK_BUDGET_S if self._options.quick else BUDGET_S,
                "ours": OURS,
                "theirs": THEIRS,
                "part": PART,
            }
            settings.write_text(json.dumps(content))
            path = [environment.get("PYTHONPATH", ""), str(FOLDER)]
            environment = {
                "UCX_LOG_LEVEL": "error",
                **environment,
                "PYTHONPATH": os.pathsep.join(filter(None, path)),
                "THEANO_FLAGS": FLAGS,
            }
            ours = [sys.executable, "-m", "hostbench.job", str(settings)]
            if problem := _failure([*command, *ours], environment):
                self._left_out[f"{NOT_FINISHED}{count} ranks, {where}"] = problem
                self._progress.line(problem)
            found = [read_row(json.loads(line)) for line in rows.read_text().splitlines()]
        self._progress.line(f"{count} ranks, {where}: {time.monotonic() - began:.0f} s")
        return found

    def _cases(self, several: bool) -> Iterator[tuple[str, int]]:
        options = self._options
        chosen: Any = [
            name for name in tables.GROUPS[:-1] if not options.only or name in options.only
        ]
        for name in chosen:
            if name not in SIZED:
                if name == "link":
                    yield from ((name, nbytes) for nbytes in LINK_SIZES if several)
                else:
                    yield name, 0
                continue
            sizes = SIZES.get(name, (100 * MB,))
            if options.quick:
                sizes = tuple(dict.fromkeys(min(nbytes, MB) for nbytes in sizes))
            if options.sizes and name != "batch":
                small = name == "all_reduce"
                sizes = [nbytes for nbytes in options.sizes if small or nbytes >= MB]
            yield from ((name, nbytes) for nbytes in sizes)


def _failure(command: Sequence[str], environment: dict[str, str]) -> str:
    """Run a command; return why it failed, or ""."""
    try:
        done = subprocess.run(
            command, env=environment, capture_output=True, text=True, timeout=LIMIT_S, cwd=ROOT
        )
    except subprocess.TimeoutExpired:
        return f"not done after {LIMIT_S} s"
    if not done.returncode:
        return ""
    said = (done.stdout + done.stderr).strip().splitlines()
    return f"exit status {done.returncode}: {' / '.join(said[-4:])[-400:]}"


if __name__ == "__main__":
    sys.exit(main())
