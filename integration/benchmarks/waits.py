"""What users of either engine wait for: a call, a program's start, a posterior.

    python integration/benchmarks/waits.py [--only call start posterior] [--quick]

With Theano, or with PyTensor where that is installed; `PYTENSOR_FLAGS=linker=cvm` measures its C
code. Every way takes turns with what it is compared with. One BLAS thread for each process.

**call.** A function that computes next to nothing, on two ranks and on one, beside a plain one. On
one rank the master waits for nobody: it is the path of a call alone.

**start.** A program until its first training step on two ranks, with warm caches and without.

**posterior.** The log probability of a PyMC model and its gradient: by PyMC alone, on one rank and
on two. Two processes of PyMC alone, each with half of the rows, show what the memory of this
machine gives two cores at most.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib.util
import json
import os
import sys
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Callable

for _name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
    os.environ[_name] = "1"

import numpy as np  # noqa: E402 - reads the numbers of threads

sys.path.append(str(Path(__file__).resolve().parents[2] / "benchmarks"))

from synk_benchmarks import machine, process, program  # noqa: E402 - by this path
from synk_benchmarks.results import Cell, Row, row_of  # noqa: E402
from synk_benchmarks.rounds import time_in_turns, turns  # noqa: E402

from synk_testing import Program  # noqa: E402

ROUNDS, QUICK_ROUNDS = 21, 3
STARTS, QUICK_STARTS = 5, 1
EVALUATIONS, QUICK_EVALUATIONS = 15, 3
ROWS, QUICK_ROWS = 1_000_000, 10_000
LIMIT_S = 3600
OURS, PLAIN = "ours", "plain"
Options = argparse.Namespace
ONE, TWO, ALONE, HALVES = "1 rank", "2 ranks", "PyMC alone", "two halves apart"

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


def call(options: Options) -> Iterator[Row]:
    import synkhronos as synk
    from synkhronos.engine import T, engine

    x = T.fvector("x")
    plain = engine.function([x], x.sum())
    values = np.ones(64, "float32")
    for ranks in (2, 1):
        synk.fork(ranks, use_gpu=False, verbose=False)
        f = synk.function([x], (x.sum(), "sum"))
        synk.distribute()
        data = f.build_inputs(values)
        assert f(data) == plain(values) == 64
        ways = {OURS: partial(f, data), PLAIN: partial(plain, values)}
        label = f"on {ranks} rank{'s' if ranks > 1 else ''}"
        yield row_of("call", label, time_in_turns(ways, options.rounds, 0.05))
        busy = {name: [_busy_s(way) for _ in range(options.rounds)] for name, way in ways.items()}
        yield row_of("call", f"{label}, processor time of the master", busy)
        synk.close()


def start(options: Options) -> Iterator[Row]:
    """A program until its first result, with all that it compiles in the caches."""
    count = QUICK_STARTS if options.quick else STARTS
    first = _run(START)
    found = [_run(START) for _ in range(count)]
    for what in first:
        warm = [seconds[what] for seconds in found]
        yield row_of("start", what, {"warm": warm, "the first one": [first[what]]})


def posterior(options: Options) -> Iterator[Row]:
    """A PyMC model's log probability and gradient, of many rows."""
    rows = QUICK_ROWS if options.quick else ROWS
    evaluations = QUICK_EVALUATIONS if options.quick else EVALUATIONS
    ways = {TWO: (2, [rows]), ONE: (1, [rows]), ALONE: (0, [rows]), HALVES: (0, [rows // 2] * 2)}
    with contextlib.ExitStack() as ends:
        processes: dict[str, list[Program]] = {name: [] for name in ways}
        values = {}
        for name, (ranks, parts) in ways.items():
            for part in parts:
                one = Program(POSTERIOR, ranks, part, evaluations, limit_s=LIMIT_S)
                processes[name].append(ends.enter_context(one))
            values[name] = [json.loads(_said(one, "ready")) for one in processes[name]]
        taken: dict[str, list[float]] = {name: [] for name in ways}
        for _, name in turns(list(ways), options.rounds + 1):
            for one in processes[name]:
                one.send("go")
            taken[name].append(max(float(_said(one, "took")) for one in processes[name]))
    expected = np.array(values[ALONE][0])
    scale = np.array([abs(expected[0]), *[np.abs(expected[1:]).max()] * (len(expected) - 1)])
    notes = {
        name: f"differs by {np.max(np.abs(np.array(values[name][0]) - expected) / scale):.1e}"
        for name in (TWO, ONE)
    }
    cells = {name: Cell(tuple(times[1:]), notes.get(name, "")) for name, times in taken.items()}
    yield Row("posterior", f"logp and dlogp of {rows} rows", cells)


def _said(process: Program, word: str) -> str:
    while True:
        first, _, rest = process.line().partition(" ")
        if first == word:
            return rest


PARTS = {"call": call, "start": start, "posterior": posterior}


def _busy_s(way: Callable[[], object], calls: int = 300) -> float:
    begin = time.process_time()
    for _ in range(calls):
        way()
    return (time.process_time() - begin) / calls


def _run(code: str) -> dict[str, float]:
    said = process.ask([sys.executable, "-c", code], LIMIT_S, os.environ)
    found: dict[str, float] = json.loads(said.splitlines()[-1])
    return found


def main() -> int:
    parser = program.parser(__doc__ or "", PARTS, "few rounds", ROUNDS)
    options = parser.parse_args()
    from synkhronos.engine import TITLE, engine

    title = f"{TITLE} {engine.__version__}, linker {engine.config.linker}"
    facts = machine.describe("synkhronos", "numpy", "pymc", engine=title)
    options.rounds = options.rounds or (QUICK_ROUNDS if options.quick else ROUNDS)
    usual = [name for name in PARTS if name != "posterior" or importlib.util.find_spec("pymc")]
    parts = {name: partial(PARTS[name], options) for name in options.only or usual}
    return program.run(title, facts, parts, options)


if __name__ == "__main__":
    sys.exit(main())
