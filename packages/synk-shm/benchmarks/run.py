"""synk-shm beside its peers: everything in one run, in turns, as ratios.

    python packages/synk-shm/benchmarks/run.py --quick
    python packages/synk-shm/benchmarks/run.py --only create attach
    python packages/synk-shm/benchmarks/run.py --markdown r.md

README.md in this folder explains the metrics.
"""

from __future__ import annotations

import contextlib
import functools
import sys

from side_by_side import fresh, metrics
from side_by_side.contenders import CONTENDERS, OURS
from side_by_side.metrics import Bench
from synk_benchmarks import machine, program

METRICS = {
    "create": metrics.create,
    "share": metrics.share,
    "attach": metrics.attach,
    "pass": metrics.passing,
    "compute": metrics.compute,
    "left": fresh.left,
}
LIMIT_S = 300
"""Seconds until a metric is given up as hanging."""
PACKAGES = ("synk-shm", "numpy", "posix_ipc", "SharedArray", "joblib")


def main() -> int:
    """Measure what was asked for, and show it."""
    parser = program.parser(__doc__ or "", [*METRICS, *CONTENDERS], "three rounds: under a minute")
    parser.add_argument(
        "--large",
        type=program.positive,
        default=256,
        metavar="MB",
        help="size of the largest arrays (256)",
    )
    options = parser.parse_args()
    facts = machine.describe(*PACKAGES, **{"large arrays": f"{options.large} MB"})
    named = [name for name in options.only if name in CONTENDERS]
    wanted = [name for name in CONTENDERS if name in (*named, OURS) or not named]
    why = {name: CONTENDERS[name].missing() for name in wanted}
    with contextlib.ExitStack() as ends:
        bench = Bench([], options.quick, options.large << 20)
        for name in wanted:
            if not why[name]:
                bench.contenders.append(CONTENDERS[name]())
                ends.callback(bench.contenders[-1].close)
        parts = {
            name: functools.partial(metric, bench)
            for name, metric in METRICS.items()
            if name in options.only or not set(options.only) & set(METRICS)
        }
        left_out = {name: reason for name, reason in why.items() if reason}
        return program.run(f"{OURS} beside its peers", facts, parts, options, left_out, LIMIT_S)


if __name__ == "__main__":
    sys.exit(main())
