"""Kill -9 of a worker or of the master amid work on GPUs; time until nothing of it is left.

    python integration/multi_gpu/kill_trials.py --trials 10 --devices cuda0 cuda1 --json out.json

One trial: a program trains on these devices, a step after the other, with collectives in each.
After a random time a worker, or the master, gets SIGKILL. Told are the seconds until the program
has its exception, until no process of it is left, until all memory of the GPUs is free again, as
`nvidia-smi` says, and the shared memory that is left. With `--jobs` there are so many trials at a
time; then memory is looked at when all have ended.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import statistics
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent))

from _sets import NOISE_MIB, memory_used, wait_for_memory

from synk_testing import Program

LIMIT_S = 30.0

PROGRAM = """
import json, sys, time
import numpy as np, theano, theano.tensor as T
import synkhronos as synk
synk.fork(devices=json.loads(sys.argv[1]), verbose=False, graphs="always")
x = T.fmatrix("x")
w, u = (theano.shared(np.full((2000, 2000), 1e-3, "float32"), name=name) for name in "wu")
g = theano.shared(np.zeros(8_000_000, "float32"), name="g")
y = T.tanh(x.dot(w)).dot(u)
gradient = T.concatenate([part.flatten() for part in T.grad(y.mean(), [w, u])])
f = synk.function([x], y.mean(), updates=[(g, gradient)], name="gradient")
step_of = [(v, v - np.float32(0.01) * part.reshape((2000, 2000)))
           for v, part in ((w, g[:4_000_000]), (u, g[4_000_000:]))]
h = synk.function([], updates=step_of)
rows = synk.data(np.random.RandomState(0).rand(4000, 2000).astype("float32"))
def step():
    # The average begins amid the gradient.
    synk.step(f.delayed(rows), synk.delayed.all_reduce(g, weights=f), h)
for _ in range(7):
    step()
runtime = synk._default.default()
graph = synk.stats()["gradient"].graph
averages = runtime._rank.functions[f.number].averages.values()
told = {"workers": list(runtime.worker_pids), "graph": graph}
print(json.dumps({**told, "overlapped": any(a.is_done for a in averages)}), flush=True)
try:
    while True:
        began = time.monotonic()
        step()
except BaseException as error:
    told = {name: getattr(error, name, None) for name in ("rank", "signal", "doing")}
    told.update(caught=time.monotonic(), type=type(error).__name__)
    print(json.dumps(told), flush=True)
"""


def shared_memory() -> set[str]:
    """What lies there with a name."""
    return set(os.listdir("/dev/shm"))


def trial(devices: list[str], killed: str, wait_s: float, alone: bool = True) -> dict[str, Any]:
    """One program, from start to end."""
    told: dict[str, Any] = {"killed": killed}
    before, segments = memory_used(), shared_memory()
    with Program(PROGRAM, json.dumps(devices)) as program:
        started = program.answer()
        workers = started.pop("workers")
        told.update(started)
        time.sleep(wait_s)
        told["memory_mib"] = [now - then for now, then in zip(memory_used(), before)]
        at = time.monotonic()
        os.kill(workers[-1] if killed == "worker" else program.pid, signal.SIGKILL)
        line = program.line_or_end(LIMIT_S) if killed == "worker" else None
        if line:
            told.update(json.loads(line))
            told["raised_s"] = told.pop("caught") - at
        program.wait(LIMIT_S)
        while program.members() and time.monotonic() < at + LIMIT_S:
            time.sleep(0.01)
        told["processes_gone_s"] = time.monotonic() - at
        told["processes_left"] = len(program.members())
        while alone and time.monotonic() < at + LIMIT_S:
            after = memory_used()
            if all(now <= then + NOISE_MIB for now, then in zip(after, before)):
                break
        if alone:
            told["memory_free_s"] = time.monotonic() - at
            told["memory_left_mib"] = [now - then for now, then in zip(memory_used(), before)]
        left = shared_memory() - segments if alone else set()
        # Without content, and swept by the next program that starts.
        told["locks_left"] = len([name for name in left if name.endswith(".lock")])
        told["segments_left"] = sorted(name for name in left if not name.endswith(".lock"))
        program.kill_all()
    return told


def is_right(told: dict[str, Any], last: int) -> bool:
    """Whether a trial went as it should."""
    if told["killed"] == "worker":
        raised = told.get("type"), told.get("rank"), told.get("signal")
        if raised != ("WorkerDied", last, "SIGKILL"):
            return False
    free = all(left <= NOISE_MIB for left in told.get("memory_left_mib", []))
    return free and not told["processes_left"] and not told["segments_left"]


def main() -> int:
    """Run the trials; the exit status."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--trials", type=int, default=10)
    parser.add_argument("--devices", nargs="+", default=["cuda0", "cuda1"])
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--jobs", type=int, default=1, help="trials at a time")
    parser.add_argument("--budget-s", type=float, default=600, help="no trial begins after that")
    parser.add_argument("--json", type=Path, help="write the results there")
    options = parser.parse_args()
    rng, end = random.Random(options.seed), time.monotonic() + options.budget_s
    waits = [rng.uniform(0.1, 1.5) for _ in range(options.trials)]
    before, segments = memory_used(), shared_memory()

    def run(number: int) -> dict[str, Any] | None:
        if time.monotonic() > end:
            return None
        killed = ["worker", "master"][number % 2]
        told = trial(options.devices, killed, waits[number], options.jobs == 1)
        told["right"] = is_right(told, len(options.devices) - 1)
        print(json.dumps(told), flush=True)
        return told

    with ThreadPoolExecutor(options.jobs) as pool:
        done = [told for told in pool.map(run, range(options.trials)) if told]
    trouble = wait_for_memory(before)
    left = [name for name in shared_memory() - segments if not name.endswith(".lock")]
    replayed = sum(told["graph"] == "replayed" for told in done)
    overlapped = sum(told["overlapped"] for told in done)
    print(f"{len(done)} trials, {replayed} under replay, {overlapped} with overlapped averages")
    print(f"left: {trouble or 'no memory'}, {left}")
    if options.json:
        options.json.write_text(json.dumps(done), encoding="utf-8")
    for killed in ("worker", "master"):
        for what in ("raised_s", "processes_gone_s", "memory_free_s"):
            times = [told[what] for told in done if told["killed"] == killed and what in told]
            if times:
                print(
                    f"{killed} killed, {what}: {len(times)} trials, median "
                    f"{statistics.median(times):.3f}, worst {max(times):.3f}"
                )
    right = bool(done) and all(told["right"] for told in done) and not trouble and not left
    return 0 if right else 1


if __name__ == "__main__":
    sys.exit(main())
