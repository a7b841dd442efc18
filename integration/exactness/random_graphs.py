"""Random graphs over ranks: is each result that of one process, or is it said that it is not?

    python integration/exactness/random_graphs.py --count 10000 --seed 7
    python integration/exactness/random_graphs.py --seed 7 --first 123 --count 1    one again

If a result differs from the engine's own beyond rounding, and neither `DecompositionWarning` nor
`NotExact` has said so, it is printed as a program, and the exit status is 1.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import re
import sys
import time
import warnings
from collections import Counter
from pathlib import Path
from typing import Any, Callable, Iterator, Sequence

# Each graph is computed a few times: to compile it would take longer.
for flags, dot in (("THEANO_FLAGS", "."), ("PYTENSOR_FLAGS", "__")):
    os.environ.setdefault(flags, f"linker=py,optimizer=fast_compile,traceback{dot}limit=0")

import numpy as np  # noqa: E402

import synkhronos as synk  # noqa: E402
from synk_testing.engine import T, engine, softmax  # noqa: E402, F401 - in the table
from synkhronos import in_graph  # noqa: E402, F401 - in the table
from synkhronos.exceptions import DecompositionWarning, NotExact  # noqa: E402
from synkhronos.extensions import updates  # noqa: E402
from synkhronos.extensions.train import make_train_function  # noqa: E402

RATE = 0.1
TOLERANCE = 1e-7
# A result that moves beyond the tolerance when inputs move by so much has no digits to compare.
JITTER = 1e-13
OPS: dict[str, Callable[[Any, Any], Any]] = {
    "avg": lambda parts, counts: sum(p * i for p, i in zip(parts, counts)) / sum(counts),
    "gather": lambda parts, counts: np.concatenate(parts),
    "sum": lambda parts, counts: sum(parts),
    "max": lambda parts, counts: np.max(parts, axis=0),
    "min": lambda parts, counts: np.min(parts, axis=0),
    "prod": lambda parts, counts: np.prod(parts, axis=0),
}

x, v, k, m, b = T.dmatrix("x"), T.dvector("v"), T.lvector("k"), T.dvector("m"), T.dvector("b")
w, c = (engine.shared(np.random.RandomState(1).randn(*shape)) for shape in ((3, 3), (3,)))
PARAMS = {w: w.get_value(), c: c.get_value()}
n = x.shape[0]


def scan(step: Any, a: Any, start: Any = None) -> Any:
    found = engine.scan(step, sequences=[a], outputs_info=[start])
    return found[0] if isinstance(found, (tuple, list)) else found


def listed(text: str) -> list[str]:
    """Return the expressions: they stand two blanks or a line apart."""
    return re.split(r"  +|\n", text.strip())


LEAVES = listed("""
x  x  v  v  k  m  b  w  c  n  T.cast(n, "float64")  x.dot(w)  T.tanh(x.dot(w) + c)  w[k % 3]
T.sqr(x.dot(w)[:, 0] - v)  x * m.dimshuffle(0, "x")  softmax(x.dot(w) + c)  (x * c).sum(axis=1) - v
""")
# Of the last or last but one, p, and an earlier one, q.
ACTS = listed("""
-p  abs(p)  T.tanh(p)  T.sqr(p)  T.exp(-abs(p))  T.maximum(p, 0)  T.cast(p > 0, "float64")
T.round(p)  T.clip(p, -1, 1)  T.zeros_like(p)  T.ones_like(p)  p.norm(2)  p * p.max()
p.T  p.flatten()  p.dimshuffle(0, "x")  p.dimshuffle("x", 0)  p.reshape((-1, 3))  p.reshape((n, -1))
p[0]  p[-1]  p[:2]  p[1:]  p[:-1]  p[::2]  p[::-1]  p[:, 0]  p[:, 1:]  p[n // 2]  p[: n // 2]
p[n - 1]  p[k]  p[k % n]  p[T.arange(n), k % 3]  p[m.nonzero()[0]]  p[(p > 0).nonzero()]
p[T.argsort(v)]  p[T.argmax(v)]  (p > 0).nonzero()[0]  T.arange(p.shape[0])  T.eye(p.shape[0])
T.cast(p.shape[0], "float64")  p / p.shape[0]  p * n  p / T.cast(n, "float64")
(p.T * T.arange(n)).T  T.diag(p)  T.tril(p)  p.dot(p.T)  p.T.dot(p)  softmax(p)  softmax(p.T).T
p.dimshuffle(0, "x") - p.dimshuffle("x", 0)  abs(p.dimshuffle(0, "x", 1) - p).sum(axis=2)
p - p.mean(axis=0)  (p - p.mean(axis=0)) / (p.std(axis=0) + 1)  p - p.mean(axis=-1, keepdims=True)
(p.T * m).sum() / T.maximum(m.sum(), 1)  (p.T * m).T  p / (abs(p).sum(axis=0) + 1)
T.set_subtensor(p[:1], 0)  T.inc_subtensor(p[-1], 1)  T.inc_subtensor(T.zeros((4, 3))[k], p)
T.inc_subtensor(T.zeros((4,))[k], p)  T.bincount(k, minlength=4)  T.bincount(k, p, minlength=4)
T.cumsum(p)  T.cumsum(p, axis=0)  T.cumsum(p, axis=-1)  T.sort(p, axis=0)  T.sort(p, axis=-1)
T.argsort(p, axis=0)  T.roll(p, 1, axis=0)  T.repeat(p, 2, axis=0)  T.tile(p, 2)  p[1:] - p[:-1]
T.concatenate([T.zeros_like(p[:1]), p[:-1]], axis=0)  T.switch(v.sum() > 0, p, 0)
T.switch(n > 3, p, 2 * p)  scan(lambda a, s: a + s / 2, p, T.zeros_like(p[0]))
scan(lambda a: T.tanh(a).sum(), p)  in_graph.all_reduce(p, "sum")  in_graph.all_reduce(p, "avg")
in_graph.all_gather(p)  in_graph.positions(p)  T.grad(p.sum(), w)  T.grad(p.mean(), w)
T.grad(p.sum(), x)  T.grad(p.mean(), x)  T.outer(p, p)
p + q  p + q  p - q  p * q  p * q  p / (1 + abs(q))  T.maximum(p, q)  T.minimum(p, q)  T.dot(p, q)
T.switch(p > q, p, q)  T.switch(q > 0, p, 0)  T.cast(p < q, "float64")  p[q]  p.T.dot(q)
T.outer(p, q)  (p.T * q).T  T.concatenate([p, q], axis=0)  T.concatenate([p, q], axis=-1)
""")
REDUCED = ("sum", "mean", "mean", "max", "min", "prod", "std", "argmax")
ACTS += 2 * [f"p.{name}(axis={axis})" for name in REDUCED for axis in (None, 0, -1)]


def drawn(rng: Any) -> tuple[Any, list[str]]:
    """Return a random expression, and the lines of Python that make it."""
    made: list[Any] = []
    lines: list[str] = []
    wanted = rng.randint(3, 9)
    while len(made) < wanted:
        text = str(rng.choice(LEAVES if len(made) < 2 else ACTS))
        places = {"p": len(made) - 1 - rng.randint(2), "q": rng.randint(max(1, len(made)))}
        bound = {name: f"g{places[name]}" for name in places if re.search(rf"\b{name}\b", text)}
        try:
            names = {name: made[places[name]] for name in bound}
            made.append(T.as_tensor_variable(eval(text, {**globals(), **names})))
        except Exception:  # it does not fit
            continue
        lines.append("".join(f"{a} = {g}; " for a, g in bound.items()) + f"g{len(lines)} = {text}")
    return made[-1], lines


def batches(rng: Any) -> Iterator[list[Any]]:
    for rows in rng.randint(1, 10, 2):
        labels, mask = rng.randint(0, 4, rows), (rng.rand(rows) < 0.6).astype(float)
        yield [rng.randn(rows, 3), rng.randn(rows), labels, mask, rng.randn(3)]


def is_close(values: Sequence[Any], others: Sequence[Any]) -> bool:
    return all(
        np.shape(a) == np.shape(b) and np.allclose(a, b, TOLERANCE, TOLERANCE, equal_nan=True)
        for a, b in zip(values, others)
    )


class Case:
    """A graph, its function in one process, and the operations that make the whole of its parts."""

    def __init__(self, rng: Any, ranks: int) -> None:
        self.output, self.program = drawn(rng)
        self.batches, slices = list(batches(rng)), int(rng.choice([1, 1, 2]))
        self.slices = 1 if "in_graph" in str(self.program) else slices  # it reduces slice by slice
        outputs, self.is_trained = [self.output], self.output.type == T.dscalar and rng.rand() < 0.5
        if self.is_trained:
            used = 0.01 * sum(T.sqr(param).sum() for param in PARAMS)  # each has a gradient
            self.output += used + 0 * (x.mean() + v.mean() + k.mean() + m.mean() + b.sum())
            outputs = [self.output, *(p - RATE * T.grad(self.output, p) for p in PARAMS)]
        self.serial = engine.function([x, v, k, m, b], outputs, on_unused_input="ignore")
        self.fits = {op for op in OPS if all(self._fits(op, d, ranks) for d in self.batches)}
        likely = sorted(self.fits) if self.fits and rng.rand() < 0.7 else list(OPS)
        self.op = "avg" if self.is_trained else str(rng.choice(likely))
        end = "train" if self.is_trained else f"output {self.op}"
        self.program.append(
            f"{end}, slices {self.slices}, rows {[len(d[0]) for d in self.batches]}"
        )

    def _fits(self, op: str, data: Sequence[Any], ranks: int) -> bool:
        shares = zip(*(np.array_split(array, ranks) for array in data[:-1]))
        given = [share for share in shares if len(share[0])]
        parts = zip(*(self.serial(*share, data[-1]) for share in given))
        whole = self.serial(*data)
        try:
            return is_close([OPS[op](p, [len(s[0]) for s in given]) for p in parts], whole)
        except ValueError:  # their shapes
            return False

    def has_digits(self, data: Sequence[Any], rng: Any) -> bool:
        """Return whether the result stays when inputs move a little."""
        moved = [a * (1 + JITTER * rng.randn(*a.shape)) if a.dtype == float else a for a in data]
        return is_close(self.serial(*data), self.serial(*moved))

    def parallel(self) -> Callable[..., list[Any]]:
        """Return a function over ranks of all that `serial` returns."""
        if not self.is_trained:
            return synk.function(
                [x, v, k, m], [(self.output, self.op)], bcast_inputs=[b], on_unused_input="ignore"
            )
        train = make_train_function(
            self.output, list(PARAMS), [x, v, k, m], updates.sgd, RATE, bcast_inputs=[b]
        )
        return lambda *data, **how: [train(*data, **how), *(p.get_value() for p in PARAMS)]


def outcome(rng: Any, ranks: int) -> tuple[str, list[str]]:
    """Draw a graph, compute it over ranks; return what came of it, and the graph."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            case = Case(rng, ranks)
    except Exception:  # not even one process can compute it
        return "no graph", []
    try:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            function = case.parallel()
        if any(issubclass(warning.category, DecompositionWarning) for warning in caught):
            return "warned of", case.program
        for data in case.batches:
            whole = case.serial(*data)
            if case.op == "gather":  # of a number, a row for each rank, also where it is one rank
                whole = [np.atleast_1d(value) for value in whole]
            if not is_close(function(*data, num_slices=case.slices), whole):
                return "WRONG" if case.has_digits(data, rng) else "no digits", case.program
    except NotExact:
        # Of what ranks or slices exchange, parts in one process know nothing.
        unknown = case.slices > 1 or "in_graph" in str(case.program)
        return "refused" if unknown or case.op not in case.fits else "FALSE ALARM", case.program
    except Exception as error:  # a call that raises gives no wrong number
        return f"raised {type(error).__name__}", [*case.program, str(error)[:500]]
    finally:
        if case.is_trained:
            for param, value in PARAMS.items():
                param.set_value(value)
                synk.broadcast(param)
    return "right", case.program


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=100)
    parser.add_argument("--seed", type=int, default=int(time.strftime("%Y%m%d")))
    parser.add_argument("--first", type=int, default=0, help="number of the first graph")
    parser.add_argument("--ranks", type=int, default=3)
    parser.add_argument("--json", type=Path, help="write the counts there")
    options = parser.parse_args()
    logging.disable(logging.ERROR)  # the engine logs each rewrite that does not fit
    counts: Counter[str] = Counter()
    begin = time.monotonic()
    synk.fork(options.ranks, use_gpu=False, verbose=False)
    for number in range(options.first, options.first + options.count):
        result, program = outcome(np.random.RandomState([options.seed, number]), options.ranks)
        counts[result] += 1
        if result.isupper() or options.count == 1:
            said = f"{result}: graph {number} of seed {options.seed}"
            print(said, *program, sep="\n  ", flush=True)
    synk.close()
    seconds = time.monotonic() - begin
    print(f"seed {options.seed}: {dict(counts)}, {seconds:.0f} s")
    if options.json:
        options.json.write_text(json.dumps({"seed": options.seed, "seconds": seconds, **counts}))
    return int(counts["WRONG"] > 0 or not counts["right"])


if __name__ == "__main__":
    sys.exit(main())
