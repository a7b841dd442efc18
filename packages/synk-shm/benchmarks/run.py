"""synk-shm beside its peers: everything in one run, in turns, as ratios.

    python packages/synk-shm/benchmarks/run.py --quick
    python packages/synk-shm/benchmarks/run.py --only create attach
    python packages/synk-shm/benchmarks/run.py --json r.json --markdown r.md --plot r.png

README.md in this folder explains the metrics and how to read them.
"""

from __future__ import annotations

import argparse
import functools
import signal
import sys
import time
from pathlib import Path
from typing import Callable

from side_by_side import fresh, leftovers, memory, targets, transport
from side_by_side.bench import Bench
from side_by_side.contenders import CONTENDERS, OURS
from synk_benchmarks import machine, program
from synk_benchmarks.contender import choose
from synk_benchmarks.results import Result, Row, Run

# In the order of the table.
METRICS: dict[str, Callable[[Bench], list[Row]]] = {
    "create": memory.create,
    "again": memory.again,
    "share": memory.share,
    "attach": transport.attach,
    "pass": transport.passing,
    "compute": memory.compute,
    "grow": memory.growth,
    "import": fresh.imports,
    "arrays": fresh.arrays,
    "left": leftovers.leaks,
    "sigbus": leftovers.overfill,
}
LIMIT_S = 300
"""Seconds until a metric is given up as hanging."""
MIB = 1 << 20
PACKAGES = ("synk-shm", "numpy", "posix_ipc", "SharedArray", "joblib")


def main() -> int:
    """Measure (or read a file), then show and write what was asked for."""
    options = _options()
    return program.run(
        options, lambda progress: _measure(options, progress), targets.page, targets.draw
    )


def _options() -> argparse.Namespace:
    names = [*METRICS, *CONTENDERS]
    parser = program.parser(__doc__ or "", names, "three rounds: under a minute")
    parser.add_argument(
        "--large", type=int, default=256, metavar="MB", help="size of the largest arrays (256)"
    )
    parser.add_argument("--plot", type=Path, metavar="FILE.png", help="draw the ratios")
    options = parser.parse_args()
    if not 4 <= options.large <= 1 << 14 or options.large % 2:
        parser.error("--large takes an even number of MB from 4 to 16384")
    return options


def _measure(options: argparse.Namespace, progress: program.Progress) -> Result:
    progress.end_on(signal.SIGINT)
    names, left_out = choose(CONTENDERS, options.only, OURS)
    for name, reason in left_out.items():
        progress.line(f"left out: {name}: {reason}")
    _check_memory(options.large * MIB, len(names))
    described = machine.describe(*PACKAGES)  # before the run: the load is that of other programs
    bench = Bench([], options.quick, options.large * MIB, progress)
    metrics = [name for name in METRICS if name in options.only] or list(METRICS)
    begin = time.monotonic()
    try:
        for name in names:
            bench.contenders.append(CONTENDERS[name]())
        parts = {name: functools.partial(_metric, bench, name) for name in metrics}
        rows = program.measure_parts(parts, left_out, progress, LIMIT_S)
    finally:
        for contender in bench.contenders:
            contender.close()
    settings = {
        "rounds": "quick" if options.quick else "full",
        "large arrays": f"{options.large} MB",
        "took": f"{time.monotonic() - begin:.0f} s",
    }
    return Result([Run(described, settings, left_out)], rows)


def _metric(bench: Bench, name: str) -> list[Row]:
    bench.group = name
    return METRICS[name](bench)


def _check_memory(large: int, contenders: int) -> None:
    needed = (contenders + 2) * large * 5 // 4
    free = machine.shared_memory_free()
    if needed > free:
        raise ValueError(
            f"{contenders} contenders with arrays of {large // MIB} MB need about "
            f"{needed // MIB} MB of memory and /dev/shm, {free // MIB} MB are free; "
            f"take a smaller --large"
        )


if __name__ == "__main__":
    sys.exit(main())
