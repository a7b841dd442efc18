"""all_reduce through the whole stack, beside a bare NCCL loop in the same processes."""

from __future__ import annotations

from typing import Any, Callable

import numpy as np
import theano
import theano.tensor as T
from synk_benchmarks.rounds import time_in_turns

import synkhronos as synk

from . import bare
from .clock import device_wait
from .job import BARE, OURS, Report, Settings

CASES = (
    # what, float32 elements, calls in a round
    ("1 KB", 256, 200),
    ("1 MB", 250_000, 100),
    ("102 MB (25.6 M)", 25_600_000, 100),
    ("256 MB", 64_000_000, 50),
)
TINY_CASES = (("1 KB", 256, 20), ("1 MB", 250_000, 5))
IN_A_STEP = 8
ROUNDS = 9


def main(settings: Settings, report: Report) -> None:
    """Measure each size: a collective as an order of its own, several in a step, and bare."""
    synk.fork(**settings.devices())
    missing = bare.available() if settings.cuda else "it needs CUDA devices"
    run_bare = None if missing else _bare_loop(settings.gpus)
    if missing:
        report.about(f"{BARE} is left out", missing)
    else:
        report.about("NCCL", bare.binding().get_version())
    cases = TINY_CASES if settings.tiny else CASES
    variables = [
        theano.shared(np.zeros(elements, "float32"), name=f"{what}") for what, elements, _ in cases
    ]
    synk.distribute()
    for variable, (what, elements, calls) in zip(variables, cases):
        wait = device_wait(variable)
        for rank in range(settings.gpus):
            synk.set_value(rank, variable, np.full(elements, rank + 1, "float32"))
        act = synk.delayed.all_reduce(variable, op="avg")
        ways: dict[str, Callable[[], Any]] = {
            OURS: lambda v=variable: synk.all_reduce(v, op="avg"),  # type: ignore[misc]
            f"{OURS}, {IN_A_STEP} in a step": lambda a=act: synk.step(*[a] * IN_A_STEP),  # type: ignore[misc]
        }
        times: dict[str, list[float]] = {name: [] for name in ways}
        alone: list[float] = []
        for number in range(ROUNDS + 1):
            found = time_in_turns(ways, 1, calls=calls, warm=0, wait=wait)
            measured = run_bare(elements, calls) if run_bare else 0.0
            if number:  # the first round warms up
                for name, seconds in found.items():
                    times[name] += seconds
                alone.append(measured)
        for rank in (0, settings.gpus - 1):
            values = synk.get_value(rank, variable)
            assert np.allclose(values[[0, -1]], (settings.gpus + 1) / 2), "wrong results"
        for name, seconds in times.items():
            per_call = 1 if name == OURS else IN_A_STEP
            report.row("allreduce", what, name, [s / per_call for s in seconds])
        if run_bare:
            report.row("allreduce", what, BARE, alone)
    synk.close()


def _bare_loop(size: int) -> Callable[[int, int], float]:
    """Return a function of elements and calls: seconds per call of the slowest rank."""
    rank, unique_id, how = T.lvector("rank"), T.vector("unique_id", dtype="uint8"), T.lvector("how")
    seconds = bare.BareAllReduce()(rank, unique_id, how)
    loop = synk.function(
        [rank], outputs=(seconds, "gather"), bcast_inputs=[unique_id, how], name="bare NCCL"
    )
    said = np.frombuffer(bytes(bare.binding().get_unique_id()), np.uint8)
    ranks = np.arange(size)

    def run(elements: int, calls: int) -> float:
        result = loop(ranks, said, np.array([size, elements, calls]))
        return float(np.max(result))

    return run
