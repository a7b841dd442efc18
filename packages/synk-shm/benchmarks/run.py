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

from side_by_side import metrics
from side_by_side.contenders import CONTENDERS, OURS
from side_by_side.metrics import Bench
from synk_benchmarks import machine, program

METRICS = {
    "create": metrics.create,
    "share": metrics.share,
    "attach": metrics.attach,
    "pass": metrics.passing,
    "compute": metrics.compute,
}
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
    names, left_out = program.chosen(CONTENDERS, options.only, OURS)
    with contextlib.ExitStack() as ends:
        bench = Bench([], options.quick, options.large << 20)
        for name in names:
            bench.contenders.append(CONTENDERS[name]())
            ends.callback(bench.contenders[-1].close)
        parts = {
            name: functools.partial(metric, bench)
            for name, metric in METRICS.items()
            if name in options.only or not set(options.only) & set(METRICS)
        }
        return program.run(f"{OURS} beside its peers", facts, parts, options, left_out)


if __name__ == "__main__":
    sys.exit(main())
