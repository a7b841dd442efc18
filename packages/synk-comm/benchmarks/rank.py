"""What each rank of a job runs: python rank.py FOLDER. Started by run.py, not by people."""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

from side_by_side.cases import Case
from side_by_side.contender import World
from side_by_side.contenders import CONTENDERS, Field
from side_by_side.line import Line
from side_by_side.metrics import row_of
from side_by_side.rounds import Rounds
from synk_benchmarks.text import size_name

# mpiexec says who is who by variables of its own; without it, run.py does by these.
RANK_VARIABLE = "SYNK_BENCH_RANK"


def main() -> None:
    """Do what the job's order says."""
    folder = Path(sys.argv[1])
    order = json.loads((folder / "order.json").read_text(encoding="utf-8"))
    rank = int(os.environ.get(RANK_VARIABLE) or os.environ["PMI_RANK"])
    line = Line(folder, rank)
    world = World(rank, order["ranks"], folder, line)
    {"measure": measure, "die": die}[order["do"]](order, world, line)
    line.close()


def measure(order: dict[str, Any], world: World, line: Line) -> None:
    """Measure every metric at every size; rank 0 reports each row as soon as it is there."""
    field = Field(world, order["contenders"])
    rounds = Rounds(world, order["rounds"], order["budget_s"])
    for metric, sizes in order["metrics"]:
        for nbytes in sizes:
            if world.rank == 0:
                size = size_name(nbytes) if nbytes else ""
                line.tell("say", f"{world.size} ranks: {metric} {size}".rstrip())
            cells = rounds.measure(Case(metric, nbytes, world.rank, world.size), field.of(metric))
            if world.rank == 0:
                line.tell("row", row_of(metric, world.size, nbytes, cells).saved())
    line.share("done")
    field.close()


def die(order: dict[str, Any], world: World, line: Line) -> None:
    """Kill the last rank while the others wait for it; they report when they noticed."""
    contender = CONTENDERS[order["contenders"][0]](world)
    act = contender.prepare(Case("all_reduce", 1 << 10, world.rank, world.size))
    act.x.fill(0)
    act.call()
    line.share("ready")
    if world.rank == world.size - 1:
        time.sleep(0.3)  # until all others wait, beyond their first spinning
        line.tell("bye", None)
        line.tell("event", ["killed", time.monotonic()])
        os.kill(os.getpid(), signal.SIGKILL)
    try:
        act.call()
    except Exception as error:  # noqa: BLE001 (which one it is tells itself)
        line.tell("event", ["noticed", time.monotonic(), type(error).__name__])
    # Without leaving in good order: gloo waits for the dead.
    line.close()
    os._exit(0)


if __name__ == "__main__":
    main()
