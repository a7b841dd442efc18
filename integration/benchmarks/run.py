"""Shared variables and whole training steps through `import synkhronos`, beside the plain ways.

    python integration/benchmarks/run.py [--processes 2] [--seconds 1.0]

What a call, its inputs and the distribution of functions cost is measured in
packages/synk-theano/benchmarks, bare collectives in packages/synk-comm/benchmarks; here is what
takes all packages. Every time is the median of several rounds that alternate with what it is
compared to, so that a busy machine slows both, and the ratio is the median of the rounds' own.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any, Callable, Iterator

import numpy as np
import theano
import theano.tensor as T

import synkhronos as synk

sys.path.append(str(Path(__file__).resolve().parents[2] / "benchmarks"))

from synk_benchmarks.results import SPEED, beside, compare
from synk_benchmarks.rounds import time_in_turns
from synk_benchmarks.tables import Table
from synk_benchmarks.text import amount

ROUNDS = 7
ROWS = 2000


def side_by_side(
    seconds: float, ours: Callable[[], object], theirs: Callable[[], object]
) -> tuple[float, float, float]:
    """Return the median times of two functions that take turns, and that of theirs / ours."""
    samples = time_in_turns({"ours": ours, "theirs": theirs}, ROUNDS, seconds / ROUNDS)
    row = beside("", "", samples["ours"], "theirs", samples["theirs"])
    return row.value("ours"), row.value("theirs"), compare(row, "ours", "theirs", SPEED).value


def collectives(seconds: float, _processes: int) -> Iterator[list[str]]:
    """all_reduce of shared variables."""
    for length in (10, 10_000, 1_000_000):
        s = theano.shared(np.zeros(length, dtype="float32"), name=f"s{length}")
        x, y = np.zeros(length, "float32"), np.zeros(length, "float32")
        ours, theirs, speed = side_by_side(
            seconds, lambda s=s: synk.all_reduce(s), lambda x=x, y=y: np.add(x, y, out=x)
        )
        what = f"all_reduce of {length * 4:,} bytes"
        yield [what, amount(ours), f"numpy.add {amount(theirs)}", f"{speed:.3g} x"]


def training(seconds: float, processes: int) -> Iterator[list[str]]:
    """A step of an MLP: gradients by all ranks, averaged, and applied by all ranks.

    Beside this process alone, which has only its share of the threads while there are workers.
    """
    images = np.random.RandomState(1).standard_normal((ROWS, 784)).astype("float32")
    targets = np.random.RandomState(2).randint(10, size=ROWS).astype("int32")
    x, labels, parameters, loss = mlp()
    rate = np.float32(1e-3)
    steps = [(p, p - rate * g) for p, g in zip(parameters, T.grad(loss, parameters))]
    plain = theano.function([x, labels], loss, updates=steps)

    x, labels, parameters, loss = mlp()
    gradients = [theano.shared(np.zeros_like(p.get_value()), f"{p.name}.g") for p in parameters]
    take = list(zip(gradients, T.grad(loss, parameters)))
    compute = synk.function([x, labels], loss, updates=take)
    apply = synk.function([], updates=[(p, p - rate * g) for p, g in zip(parameters, gradients)])
    shared = synk.data(images), synk.data(targets)

    def step() -> Any:
        result = compute(*shared)
        synk.all_reduce(gradients)
        apply()
        return result

    def one_order() -> Any:
        reduction = synk.delayed.all_reduce(gradients, weights=compute)
        return synk.step(compute.delayed(*shared), reduction, apply)[0]

    for _ in range(3):  # all begin with the same weights and have to stay together
        np.testing.assert_allclose(step(), plain(images, targets), rtol=1e-3)
        np.testing.assert_allclose(one_order(), plain(images, targets), rtol=1e-3)
    for what, way in (("three orders", step), ("one order", one_order)):
        ours, theirs, speed = side_by_side(seconds, way, lambda: plain(images, targets))
        beside = f"plain Theano, one thread {amount(theirs)}"
        yield [f"a step of an MLP, {what}", amount(ours), beside, f"{speed:.2f} x of {processes}"]


def mlp() -> tuple[Any, Any, list[Any], Any]:
    """Return a network with one hidden layer, always with the same weights."""
    draw = np.random.RandomState(0).standard_normal
    x, labels = T.fmatrix("x"), T.ivector("labels")
    v = theano.shared(draw((784, 800)).astype("float32") / 28, "v")
    w = theano.shared(draw((800, 10)).astype("float32") / 28, "w")
    rows = T.nnet.softmax(T.dot(T.nnet.relu(T.dot(x, v)), w))
    return x, labels, [v, w], T.nnet.categorical_crossentropy(rows, labels).mean()


def main() -> None:
    """Measure everything and print the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--seconds", type=float, default=2.0, help="for each thing measured")
    options = parser.parse_args()
    title = f"{options.processes} processes"
    table = Table(["what", "time", "beside", "speed"], [], (0, 2), (), title)
    synk.fork(n_parallel=options.processes, verbose=False)
    try:
        for part in (collectives, training):
            table.lines += part(options.seconds, options.processes)
    finally:
        synk.close()
    print(table.plain())


if __name__ == "__main__":
    main()
