"""synk-shm beside its peers: everything in one run, in turns, as ratios.

    python packages/synk-shm/benchmarks/run.py --quick
    python packages/synk-shm/benchmarks/run.py --only create attach
    python packages/synk-shm/benchmarks/run.py --json r.json --markdown r.md --plot r.png

README.md in this folder tells what the metrics mean and how to read them.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
import time
from pathlib import Path
from typing import Callable

from side_by_side import fresh, leftovers, machine, memory, plot, tables, transport
from side_by_side.contender import Contender
from side_by_side.contenders import CONTENDERS, OURS
from side_by_side.results import Result, Row, load
from side_by_side.rounds import Bench, Progress, time_limit

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
LIMIT_S = 300  # for one metric; something hangs if it takes that long
MIB = 1 << 20


def main() -> int:
    """Measure (or read a file), then show and write what was asked for."""
    options = _options()
    progress = Progress()
    progress.end_on(signal.SIGINT, signal.SIGTERM)
    try:
        _go(options, progress)
    except KeyboardInterrupt:
        progress.line("interrupted; nothing was written")
        return 128 + (progress.ended_by or signal.SIGINT)
    return 0


def _go(options: argparse.Namespace, progress: Progress) -> None:
    if options.read:
        try:
            result = load(options.read)
        except (OSError, ValueError) as error:
            sys.exit(str(error))
    else:
        result = _measure(options, progress)
    if options.json:
        result.save(options.json)
    if options.plot:
        _plot(result, options.plot, progress)
    if options.markdown:
        picture = options.plot and os.path.relpath(options.plot, options.markdown.parent)
        options.markdown.parent.mkdir(parents=True, exist_ok=True)
        options.markdown.write_text(tables.markdown(result, picture), encoding="utf-8")
    tables.show(result, sys.stdout)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    names = ", ".join([*METRICS, *(repr(name) if " " in name else name for name in CONTENDERS)])
    parser.add_argument("--quick", action="store_true", help="three rounds: under a minute")
    parser.add_argument(
        "--only", nargs="+", metavar="NAME", default=[], help=f"metrics or contenders: {names}"
    )
    parser.add_argument(
        "--large", type=int, default=256, metavar="MB", help="size of the largest arrays (256)"
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all samples")
    parser.add_argument("--markdown", type=Path, metavar="FILE", help="write a page")
    parser.add_argument("--plot", type=Path, metavar="FILE.png", help="draw the ratios")
    parser.add_argument(
        "--read", type=Path, metavar="FILE", help="show what --json wrote, measuring nothing"
    )
    options = parser.parse_args()
    unknown = [name for name in options.only if name not in METRICS and name not in CONTENDERS]
    if unknown:
        parser.error(f"there is no {' and no '.join(unknown)}; --only takes {names}")
    if not 4 <= options.large <= 1 << 14 or options.large % 2:
        parser.error("--large takes an even number of MB from 4 to 16384")
    return options


def _measure(options: argparse.Namespace, progress: Progress) -> Result:
    metrics = [name for name in METRICS if name in options.only] or list(METRICS)
    kinds, left_out = _choose(options.only)
    for name, reason in left_out.items():
        progress.line(f"left out: {name}: {reason}")
    _check_memory(options.large * MIB, len(kinds))
    described = machine.describe()  # before: its load is what others did
    contenders: list[Contender] = []
    bench = Bench(contenders, options.quick, options.large * MIB, progress)
    rows: list[Row] = []
    begin = time.monotonic()
    try:
        contenders += [kind() for kind in kinds]
        for name in metrics:
            rows += _run(bench, name, progress, left_out)
    finally:
        for contender in contenders:
            contender.close()
    settings = {
        "rounds": "quick" if options.quick else "full",
        "large arrays": f"{options.large} MB",
        "took": f"{time.monotonic() - begin:.0f} s",
    }
    columns = [contender.name for contender in contenders]
    peers = [contender.name for contender in contenders if contender.peer]
    return Result(columns, peers, described, settings, left_out, rows)


def _run(bench: Bench, name: str, progress: Progress, left_out: dict[str, str]) -> list[Row]:
    """One metric. If it hangs or breaks, the others still run; it says so."""
    bench.group = name
    begin = time.monotonic()
    try:
        with time_limit(LIMIT_S):
            rows = METRICS[name](bench)
    except Exception as error:  # noqa: BLE001 (one metric must not end the run)
        left_out[f"metric {name}"] = f"{type(error).__name__}: {error}"
        progress.line(f"{name}: not measured: {type(error).__name__}: {error}")
        return []
    progress.line(f"{name}: {time.monotonic() - begin:.1f} s")
    return rows


def _choose(only: list[str]) -> tuple[list[type[Contender]], dict[str, str]]:
    """Who takes part, and who cannot and why. We always do."""
    named = [name for name in only if name in CONTENDERS]
    wanted = [
        kind
        for name, kind in CONTENDERS.items()
        if (name in named or name == OURS if named else kind.by_default)
    ]
    reasons = {kind.name: kind.missing() for kind in wanted}
    if reasons[OURS]:
        sys.exit(f"synk_shm cannot be imported: {reasons[OURS]}")
    present = [kind for kind in wanted if not reasons[kind.name]]
    return present, {name: reason for name, reason in reasons.items() if reason}


def _check_memory(large: int, contenders: int) -> None:
    needed = (contenders + 2) * large * 5 // 4
    free = machine.memory_free()
    if needed > free:
        sys.exit(
            f"{contenders} contenders with arrays of {large // MIB} MB need about "
            f"{needed // MIB} MB of memory and /dev/shm, {free // MIB} MB are free; "
            f"take a smaller --large"
        )


def _plot(result: Result, path: Path, progress: Progress) -> None:
    try:
        plot.draw(result, path)
    except ImportError:
        progress.line("no plot: pip install matplotlib")


if __name__ == "__main__":
    sys.exit(main())
