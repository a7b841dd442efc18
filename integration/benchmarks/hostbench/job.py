"""Measure on the ranks of this process's launcher, or on processes of this host.

    mpiexec ... python -m hostbench.job SETTINGS

SETTINGS: a file of JSON that `hosts.py` writes.
"""

from __future__ import annotations

import functools
import json
import sys
from pathlib import Path
from typing import Any, Callable

import theano.tensor as T
from synk_benchmarks.results import Cell, Row
from synk_benchmarks.rounds import calls_for, turns

import synkhronos as synk

from . import bare, cases
from .cases import Turn

GIVE_UP_S = 0.5


def main() -> None:
    """Measure all cases; write a line for each."""
    settings = json.loads(Path(sys.argv[1]).read_text())
    if settings["ranks"]:
        synk.fork(settings["ranks"], use_gpu=False, verbose=False)
    else:
        synk.fork(backend="mpi", use_gpu=False, verbose=False)
    with Path(settings["rows"]).open("a", buffering=1) as file:
        for name, nbytes in settings["cases"]:
            row = _measured(name, nbytes, settings)
            file.write(json.dumps(row.saved()) + "\n")
    synk.close()


def _measured(name: str, nbytes: int, settings: dict[str, Any]) -> Row:
    ways = cases.CASES[name](nbytes)
    contenders: dict[str, Turn] = {} if name == "link" else {settings["ours"]: ways.ours}
    if ways.bare and not settings["ranks"]:
        contenders[settings["theirs"]] = _bare(ways.bare, nbytes)
        if f"comm_{ways.bare}" in bare.WAYS:
            contenders[settings["part"]] = _bare(f"comm_{ways.bare}", nbytes)
    calls = {who: _calls(turn, ways.single, settings) for who, turn in contenders.items()}
    samples: dict[str, list[float]] = {who: [] for who in contenders}
    for number, who in turns(list(contenders), settings["rounds"], warm=True):
        taken = contenders[who](calls[who])
        if number >= 0:
            samples[who].append(taken)
    cells = {who: Cell(tuple(taken)) for who, taken in samples.items()}
    return Row(
        f"{name}/{nbytes}/{settings['hosts']}/{settings['where']}",
        name,
        settings["where"],
        cells,
        ranks=settings["hosts"],
        nbytes=nbytes,
    )


def _calls(turn: Turn, single: bool, settings: dict[str, Any]) -> int:
    return 1 if single else calls_for(settings["budget_s"], turn, GIVE_UP_S)


def _bare(name: str, nbytes: int) -> Turn:
    seconds, number = _seconds(), list(bare.WAYS).index(name)
    return lambda calls: float(seconds(number, nbytes, calls))


@functools.cache
def _seconds() -> Callable[[int, int, int], Any]:
    given = [T.lscalar(name) for name in ("number", "nbytes", "calls")]
    return synk.function([], bcast_inputs=given, outputs=(bare.seconds_of(*given), "max"))


if __name__ == "__main__":
    main()
