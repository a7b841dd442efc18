"""How long survivors take to notice that a rank was killed."""

from __future__ import annotations

from typing import Any

from synk_benchmarks.contender import FAILED
from synk_benchmarks.results import Cell, Row

from .job import JobError, run_job
from .metrics import MPICH, row_of


def dead_peer(ranks: int, contenders: list[str], rounds: int) -> Row:
    """Measure from the kill to the error of the last survivor, with a new group in each round."""
    cells: dict[str, Cell] = {}
    for name in contenders:
        if name == MPICH:
            cells[name] = Cell(note="not measured: mpiexec kills the whole job")
            continue
        try:
            cells[name] = Cell(tuple(_one_death(name, ranks) for _ in range(rounds)))
        except (JobError, RuntimeError) as error:
            cells[name] = Cell(note=f"{FAILED}{error}")
    return row_of("dead_peer", ranks, 0, cells, paired=False)


def _one_death(name: str, ranks: int) -> float:
    killed: list[float] = []
    noticed: list[float] = []

    def hear(kind: str, value: Any) -> None:
        if kind == "event":
            (killed if value[0] == "killed" else noticed).append(value[1])

    run_job({"do": "die", "ranks": ranks, "contenders": [name]}, mpi=False, hear=hear)
    if len(noticed) < ranks - 1 or not killed:
        raise RuntimeError(f"{len(noticed)} of {ranks - 1} survivors noticed")
    return max(noticed) - killed[0]
