"""synk-theano beside the plain ways, in turns: calls, inputs, scaling, distribution.

    python packages/synk-theano/benchmarks/run.py --quick
    python packages/synk-theano/benchmarks/run.py --only calls scaling
    python packages/synk-theano/benchmarks/run.py --json r.json --markdown r.md

README.md in this folder tells what is measured and how to read it.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Callable

if TYPE_CHECKING:
    from side_by_side.results import Result

# One thread for each process, in this one and in all that it starts: read when BLAS is loaded.
for _name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ[_name] = "1"

ROUNDS, QUICK_ROUNDS = 11, 3
BUDGET_S, QUICK_BUDGET_S = 50e-3, 10e-3
PARTS = ("calls", "inputs", "scaling", "distribution")


def main() -> int:
    """Measure (or read a file), then show and write what was asked for."""
    options = _options()
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    from side_by_side import results, tables

    try:
        result = results.load(options.read) if options.read else _measure(options)
    except (OSError, ValueError) as error:
        sys.exit(str(error))
    except KeyboardInterrupt:
        _report("interrupted; nothing was written")
        return 128 + signal.SIGINT
    if options.json:
        result.save(options.json)
    if options.markdown:
        options.markdown.parent.mkdir(parents=True, exist_ok=True)
        options.markdown.write_text(tables.markdown(result), encoding="utf-8")
    sys.stdout.write(tables.plain(result))
    return 1 if result.left_out else 0


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="small sizes, three short rounds")
    parser.add_argument(
        "--only", nargs="+", metavar="NAME", choices=PARTS, default=PARTS, help=", ".join(PARTS)
    )
    parser.add_argument("--ranks", type=int, default=2, help="processes of a parallel function: 2")
    parser.add_argument(
        "--rounds", type=int, metavar="N", help=f"{ROUNDS} by default, with --quick {QUICK_ROUNDS}"
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all samples")
    parser.add_argument("--markdown", type=Path, metavar="FILE", help="write a page")
    parser.add_argument(
        "--read", type=Path, metavar="FILE", help="show what --json wrote, measuring nothing"
    )
    options = parser.parse_args()
    if options.ranks < 2 or (options.rounds is not None and options.rounds < 1):
        parser.error("--ranks takes a number from 2 on, --rounds one from 1 on")
    return options


def _measure(options: argparse.Namespace) -> Result:
    from side_by_side import calls, distribution, inputs, machine, results, scaling
    from side_by_side.rounds import Rounds

    parts: dict[str, Callable[[Rounds], list[results.Row]]] = {
        "calls": calls.calls,
        "inputs": inputs.inputs,
        "scaling": scaling.scaling,
        "distribution": distribution.distribution,
    }
    rounds = Rounds(
        count=options.rounds or (QUICK_ROUNDS if options.quick else ROUNDS),
        budget_s=QUICK_BUDGET_S if options.quick else BUDGET_S,
        quick=options.quick,
        ranks=options.ranks,
        report=_report,
    )
    described = machine.describe()  # before: its load is what others did
    settings = {
        "rounds": f"quick, {rounds.count}" if options.quick else str(rounds.count),
        "ranks": str(rounds.ranks),
    }
    result = results.Result(described, settings)
    begin = time.monotonic()
    for name in PARTS:
        if name in options.only:
            start = time.monotonic()
            try:
                result.rows += parts[name](rounds)
            except Exception as error:  # noqa: BLE001 (one part that breaks must not end the run)
                result.left_out[name] = f"{type(error).__name__}: {error}"
            _report(f"{name}: {time.monotonic() - start:.0f} s")
    settings["took"] = f"{time.monotonic() - begin:.0f} s"
    return result


def _report(text: str) -> None:
    sys.stderr.write(text + "\n")
    sys.stderr.flush()


if __name__ == "__main__":
    sys.exit(main())
