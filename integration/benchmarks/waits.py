"""What users of either engine wait for: a call, a program's start, and large functions.

    python integration/benchmarks/waits.py [--only call start distribution posterior] [--quick]

With Theano, or with PyTensor where that is installed; `PYTENSOR_FLAGS=linker=cvm` measures its C
code. All is compiled before anything is timed: what is measured is not the compiler.

**call.** A function that computes next to nothing, on two ranks, beside a plain one, in turns:
wall time, and processor time of the master. The master on one rank has nobody to wait for: it is
the path of a call alone, and hardly changes on a busy machine. The last line counts its calls of
Python functions.

**start.** A program from its first line to the first result of a training step on two ranks, and to
the end of each part of that, in a process of its own.

**distribution.** A function of 2,000 operations, from a compiled one in the master to workers that
have started, until all of them can compute it.

**posterior.** The log probability of a PyMC model and its gradient, a linear regression of
1,000,000 rows and 10 columns: by PyMC alone, on one rank and on two, each in processes of its own,
with one BLAS thread for a process, in turns. Differences are those from PyMC alone, relative to the
largest entry. Two processes of PyMC alone, each with half of the rows and nothing to say to the
other, show what the memory of this machine gives two cores at most.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib.util
import itertools
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median
from typing import Any, Callable

import numpy as np

sys.path.append(str(Path(__file__).resolve().parents[2] / "benchmarks"))

from synk_benchmarks.process import READY, Process
from synk_benchmarks.rounds import time_in_turns, turns
from synk_benchmarks.tables import Table
from synk_benchmarks.text import amount

ROUNDS, QUICK_ROUNDS = 21, 3
STARTS, QUICK_STARTS = 5, 1
OPERATIONS, QUICK_OPERATIONS = 2000, 60
WORKERS = (1, 4)
EVALUATIONS, QUICK_EVALUATIONS = 15, 3
ROWS, QUICK_ROWS = 1_000_000, 10_000
LIMIT_S = 3600
GOAL_RATIO = {"numba": 1.9, "cvm": 1.8}
GOALS_S = {"call": 20e-6, "start": 5.0, "distribution": 2.0}

# Prints the seconds since it began, after each part.
START = """
import json, time
begin, parts = time.perf_counter(), {}
def done(what):
    parts[what] = time.perf_counter() - begin
import numpy as np
import synkhronos as synk
from synkhronos.engine import T, engine
from synkhronos.extensions.train import make_train_function
from synkhronos.extensions.updates import momentum
done("imported")
synk.fork(2, use_gpu=False, verbose=False)
draw = np.random.RandomState(0).standard_normal
x, y = T.matrix("x"), T.vector("y")
params = [engine.shared(draw(shape) / 10) for shape in ((64, 100), (100, 100), (100, 1))]
hidden = T.tanh(T.dot(T.tanh(T.dot(x, params[0])), params[1]))
loss = T.sqr(T.dot(hidden, params[2])[:, 0] - y).mean()
train = make_train_function(loss, params, [x, y], momentum, learning_rate=0.01)
done("functions built")
synk.distribute()
done("distributed")
assert np.isfinite(train(draw((100, 64)), draw(100)))
done("first result")
synk.close()
print(json.dumps(parts))
"""
# The same in the engine alone, with one function.
PLAIN_START = """
import json, time
begin = time.perf_counter()
import numpy as np
from synkhronos.engine import T, engine
draw = np.random.RandomState(0).standard_normal
x, y = T.matrix("x"), T.vector("y")
params = [engine.shared(draw(shape) / 10) for shape in ((64, 100), (100, 100), (100, 1))]
hidden = T.tanh(T.dot(T.tanh(T.dot(x, params[0])), params[1]))
loss = T.sqr(T.dot(hidden, params[2])[:, 0] - y).mean()
steps = [(p, p - 0.01 * g) for p, g in zip(params, T.grad(loss, params))]
train = engine.function([x, y], loss, updates=steps)
assert np.isfinite(train(draw((100, 64)), draw(100)))
print(json.dumps({"first result": time.perf_counter() - begin}))
"""
# Evaluates whenever it reads a line; 0 ranks are PyMC alone.
POSTERIOR = """
import json, sys, time
from statistics import median
import numpy as np
import pymc as pm
import synkhronos as synk
from synkhronos.extensions.pymc import logp_dlogp
ranks, rows, evaluations = map(int, sys.argv[1:])
rng = np.random.default_rng(0)
x_values = rng.normal(size=(rows, 10))
y_values = x_values @ np.arange(10.0) + rng.normal(size=rows)
with pm.Model() as model:
    x = pm.Data("x", x_values, dims=("row", "column"))
    y = pm.Data("y", y_values, dims="row")
    b = pm.Normal("b", 0, 10, shape=10)
    s = pm.HalfNormal("s", 1)
    pm.Normal("observed", x @ b, s, observed=y)
if ranks:
    synk.fork(ranks, use_gpu=False, verbose=False)
    f = logp_dlogp(model, rows="row")
else:
    f = model.logp_dlogp_function(ravel_inputs=True)._pytensor_function
q = np.full(11, 0.1)
logp, dlogp = f(q)
print("ready", json.dumps([float(logp), *map(float, dlogp)]), flush=True)
for line in sys.stdin:
    taken = []
    for _ in range(evaluations):
        begin = time.perf_counter()
        f(q)
        taken.append(time.perf_counter() - begin)
    print("took", median(taken), flush=True)
synk.close()
"""


def call(quick: bool) -> list[list[str]]:
    """A call of a function that computes next to nothing."""
    import synkhronos as synk
    from synkhronos.engine import T, engine

    rounds = QUICK_ROUNDS if quick else ROUNDS
    x = T.fvector("x")
    plain = engine.function([x], x.sum())
    values = np.ones(64, "float32")
    lines = []
    for ranks in (2, 1):
        synk.fork(ranks, use_gpu=False, verbose=False)
        f = synk.function([x], (x.sum(), "sum"))
        synk.distribute()
        data = f.build_inputs(values)
        assert f(data) == plain(values) == 64
        ways = {"ours": lambda f=f, data=data: f(data), "plain": lambda: plain(values)}
        wall = time_in_turns(ways, rounds, 0.05)
        more = [ours - theirs for ours, theirs in zip(wall["ours"], wall["plain"])]
        busy = {name: median(_busy_s(way) for _ in range(rounds)) for name, way in ways.items()}
        goal = _goal("call", median(more)) if ranks == 2 else ""
        what = f"a call on {ranks} rank{'s' if ranks > 1 else ''}"
        beside = f"plain {amount(median(wall['plain']))}"
        lines.append([what, amount(median(wall["ours"])), beside, f"+{amount(median(more))}", goal])
        extra = busy["ours"] - busy["plain"]
        beside = f"plain {amount(busy['plain'])}"
        lines.append(["  processor time", amount(busy["ours"]), beside, f"+{amount(extra)}", ""])
        if ranks == 1:
            counts = {name: str(_python_calls(way)) for name, way in ways.items()}
            beside = f"plain {counts['plain']}"
            lines.append(["  Python functions called", counts["ours"], beside, "", ""])
        synk.close()
    return lines


def start(quick: bool) -> list[list[str]]:
    """A program until its first result, with all that it compiles in the caches."""
    count = QUICK_STARTS if quick else STARTS
    for program in (START, PLAIN_START):
        _run(program)
    parts = [(_run(START), _run(PLAIN_START)) for _ in range(count)]
    lines = []
    for what in parts[0][0]:
        taken = median(ours[what] for ours, _ in parts)
        is_last = what == "first result"
        plain = median(theirs["first result"] for _, theirs in parts)
        beside = f"plain {amount(plain)}" if is_last else ""
        goal = _goal("start", taken) if is_last else ""
        lines.append([f"a second start: {what}", amount(taken), beside, "", goal])
    return lines


def distribution(quick: bool) -> list[list[str]]:
    """A large function, until all workers have it."""
    import synkhronos as synk
    from synkhronos.engine import T, engine

    count = QUICK_OPERATIONS if quick else OPERATIONS
    x = T.matrix("x")
    weights = [engine.shared(0.9 * np.eye(8), f"w{i}") for i in range(10)]
    y = x
    for i in range(count // 2):
        y = T.tanh(T.dot(y, weights[i % 10]))
    values = np.ones((16, 8))
    lines = []
    for workers in WORKERS:
        taken = []
        for _ in range(1 if quick else 3):
            synk.fork(workers + 1, use_gpu=False, verbose=False)
            nothing = synk.function([], [])
            synk.distribute()  # waits until the workers have started
            nothing()
            begin = time.perf_counter()
            f = synk.function([x], (y.mean(), "avg"))
            built_s = time.perf_counter() - begin
            begin = time.perf_counter()
            synk.distribute()
            taken.append(time.perf_counter() - begin)
            assert np.isfinite(f(values))
            synk.close()
        goal = _goal("distribution", median(taken)) if workers == 4 else ""
        what = f"{count} operations to {workers} worker{'s' if workers > 1 else ''}"
        beside = f"built in {amount(built_s)}"
        lines.append([what, amount(median(taken)), beside, "", goal])
    return lines


def posterior(quick: bool) -> list[list[str]]:
    """A PyMC model's log probability and gradient, of many rows."""
    from synkhronos.engine import engine

    rounds = QUICK_ROUNDS if quick else ROUNDS
    rows = QUICK_ROWS if quick else ROWS
    evaluations = QUICK_EVALUATIONS if quick else EVALUATIONS
    # Of each the number of ranks, and the processes' rows.
    ways = {
        "PyMC alone": (0, [rows]),
        "1 rank": (1, [rows]),
        "2 ranks": (2, [rows]),
        "two halves apart": (0, [rows // 2] * 2),
    }
    one_thread = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"), "1")
    with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as ends:
        processes: dict[str, list[Process]] = {}
        values = {}
        for name, (ranks, parts) in ways.items():
            processes[name] = []
            for i, part in enumerate(parts):
                command = [sys.executable, "-c", POSTERIOR, *map(str, (ranks, part, evaluations))]
                log = Path(folder, f"{name} {i}.log")
                process = Process(command, LIMIT_S, log, {**os.environ, **one_thread})
                ends.callback(process.end)
                processes[name].append(process)
            values[name] = [json.loads(process.hear(READY)) for process in processes[name]]
        taken: dict[str, list[float]] = {name: [] for name in ways}
        for number, name in turns(list(ways), rounds, warm=True):
            for process in processes[name]:
                process.tell("go")
            seconds = max(float(process.hear("took")) for process in processes[name])
            if number >= 0:
                taken[name].append(seconds)
        for process in itertools.chain(*processes.values()):
            process.finish()
    expected = np.array(values["PyMC alone"][0])
    scale = np.array([abs(expected[0]), *[np.abs(expected[1:]).max()] * (len(expected) - 1)])
    goal = GOAL_RATIO["cvm" if engine.config.linker == "cvm" else "numba"]
    lines = []
    for name, seconds in taken.items():
        what = f"logp and dlogp of {rows} rows: {name}"
        beside = more = verdict = ""
        if "rank" in name:
            difference = np.max(np.abs(np.array(values[name][0]) - expected) / scale)
            beside = f"differs by {difference:.1e}"
        if name in ("2 ranks", "two halves apart"):
            one = "1 rank" if name == "2 ranks" else "PyMC alone"
            ratio = median(a / b for a, b in zip(taken[one], seconds))
            more = f"{ratio:.2f} x {one}"
        if name == "2 ranks":
            verdict = f"at least {goal} x: {'yes' if ratio >= goal else 'NO'}"
        lines.append([what, amount(median(seconds)), beside, more, verdict])
    return lines


PARTS: dict[str, Callable[[bool], list[list[str]]]] = {
    "call": call,
    "start": start,
    "distribution": distribution,
    "posterior": posterior,
}


def _goal(part: str, seconds: float) -> str:
    goal = GOALS_S[part]
    return f"at most {amount(goal)}: {'yes' if seconds <= goal else 'NO'}"


def _busy_s(way: Callable[[], object], calls: int = 300) -> float:
    begin = time.process_time()
    for _ in range(calls):
        way()
    return (time.process_time() - begin) / calls


def _python_calls(way: Callable[[], object]) -> int:
    count = 0

    def noted(_frame: Any, event: str, _argument: Any) -> None:
        nonlocal count
        count += event == "call"

    sys.setprofile(noted)
    try:
        way()
    finally:
        sys.setprofile(None)
    return count


def _run(program: str) -> dict[str, float]:
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=LIMIT_S
    )
    if done.returncode:
        raise RuntimeError(done.stderr)
    found: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return found


def main() -> None:
    """Measure what was asked for, and print the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    usual = [name for name in PARTS if name != "posterior" or importlib.util.find_spec("pymc")]
    parser.add_argument("--only", nargs="+", choices=list(PARTS), default=usual)
    parser.add_argument("--quick", action="store_true", help="few rounds, a small function")
    options = parser.parse_args()
    from synkhronos.engine import TITLE, engine

    title = f"{TITLE} {engine.__version__}, linker {engine.config.linker}"
    table = Table(["what", "time", "beside", "more", "goal"], [], (0, 2, 4), (), title)
    for name in options.only:
        table.lines += PARTS[name](options.quick)
    print(table.plain())


if __name__ == "__main__":
    main()
