"""A job: starts the ranks, in which contenders take turns; ``python -m side_by_side.job FOLDER``.

Rank 0 writes each row to a file as soon as it is there.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from synk_benchmarks.process import ask
from synk_benchmarks.results import (
    FAILED,
    Cell,
    NotOfferedError,
    Row,
    failure,
    read_rows,
    write_row,
)
from synk_benchmarks.rounds import calls_for, timed, turns
from synk_benchmarks.tables import size_name

import synk_comm

from .cases import Case
from .contender import OURS, OVER_MPI, Act, Contender, World
from .peers import CONTENDERS, MPICH, mpiexec

FOLDER = str(Path(__file__).resolve().parent.parent)
LIMIT_S = 3600.0
ROWS, ORDER = "rows", "order.json"


def measure(order: dict[str, Any], launcher: Sequence[str] = ()) -> Iterator[Row]:
    """Yield the rows of one number of ranks, those before a failure too."""
    if MPICH in order["contenders"] and not launcher:
        launcher = [mpiexec(), "-n", str(order["ranks"])]
    # One thread each: ranks are what the cores are for.
    threads = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"), "1")
    with tempfile.TemporaryDirectory(prefix="synk-bench-") as name:
        Path(name, ORDER).write_text(json.dumps(order), encoding="utf-8")
        try:
            if launcher:
                path = os.pathsep.join(filter(None, [FOLDER, os.environ.get("PYTHONPATH", "")]))
                variables = {"UCX_LOG_LEVEL": "error", **os.environ, **threads, "PYTHONPATH": path}
                command = [*launcher, sys.executable, "-m", "side_by_side.job", name]
                ask(command, LIMIT_S, variables)
            else:
                how = {"backend": "zmq", "timeout_s": LIMIT_S, "env": threads}
                synk_comm.launch(order["ranks"], measure_as_rank, name, **how)
        finally:
            yield from read_rows(Path(name, ROWS))


def measure_as_rank(control: Any, name: str) -> None:
    """Do what the job's order says; `control` keeps ranks together, and is not measured."""
    folder = Path(name)
    order = json.loads((folder / ORDER).read_text(encoding="utf-8"))
    _measure(order, World(control.rank, control.size, folder, control), folder)


def _measure(order: dict[str, Any], world: World, folder: Path) -> None:
    made = [contender for name in order["contenders"] if (contender := _made(name, world))]
    for metric, sizes in order["metrics"]:
        for nbytes in sizes:
            case = Case(metric, nbytes, world.rank, world.size)
            cells = _cells(case, made, order["rounds"], order["budget_s"])
            if world.rank == 0:
                group = f"{metric}, {world.size} ranks"
                label = size_name(nbytes) if nbytes else ""
                write_row(folder / ROWS, Row(group, label, cells, ranks=world.size))
    world.share("done")
    for contender in made:
        contender.close()


def _made(name: str, world: World) -> Contender | None:
    """Return the contender; None on all ranks if it cannot be made on one of them."""
    made, failed = None, ""
    try:
        made = CONTENDERS[name](world)
    except Exception as error:
        if name in (OURS, OVER_MPI):
            raise
        failed = failure(error)
    said = world.first(failed)
    if said:
        sys.stderr.write(f"{name}: {said}\n")
    return None if said else made


def _cells(
    case: Case, contenders: list[Contender], rounds: int, budget_s: float
) -> dict[str, Cell]:
    """Check everybody's result once, then time everybody in every round, by the slowest rank."""
    notes: dict[str, str] = {}
    ready: list[tuple[Contender, Act, int]] = []
    for contender in contenders:
        act = _prepared(contender, case, notes)
        if act is not None:
            trial = partial(_turn, contender, act)
            ready.append((contender, act, calls_for(budget_s, trial, 2 * budget_s)))
    samples: dict[str, list[float]] = {contender.name: [] for contender in contenders}
    for _, (contender, act, calls) in turns(ready, rounds):
        samples[contender.name].append(_turn(contender, act, calls) / act.trips)
    return {name: Cell(tuple(taken), notes.get(name, "")) for name, taken in samples.items()}


def _prepared(contender: Contender, case: Case, notes: dict[str, str]) -> Act | None:
    """Return an act that is ready to be timed; or None with a note, on all ranks alike."""
    world = contender.world
    act, refused = None, ""
    try:
        act = contender.prepare(case)
    except NotOfferedError as reason:
        refused = str(reason)
    except Exception as error:  # noqa: BLE001 - one that fails must not end the run
        refused = failure(error)
    refused = world.first(refused)
    if act is not None and not refused:
        case.fill(act.x, act.out)
        world.share(None)
        try:
            act.call()
            refused = case.wrong(act.out) if act.checked else ""
        except Exception as error:  # noqa: BLE001 - the same
            refused = failure(error)
        refused = world.first(refused)
        case.rest(act.x, act.out)
    if not refused:
        return act
    notes[contender.name] = refused
    if refused.startswith(FAILED):
        contender.broken = refused  # its group is gone
    return None


def _turn(contender: Contender, act: Act, calls: int) -> float:
    """Return the slowest rank's seconds of one call, out of many in a row, on every rank."""
    contender.world.share(None)
    contender.wait()
    contender.wait()
    slowest: float = max(contender.world.share(timed(act.call, calls)))
    return slowest


if __name__ == "__main__":
    from mpi4py import MPI

    measure_as_rank(MPI.COMM_WORLD.Dup(), sys.argv[1])
