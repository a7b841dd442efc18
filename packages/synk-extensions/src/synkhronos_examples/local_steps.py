"""Train a network on handwritten digits by Platoon's rules: each process takes its own steps.

    python examples/local_steps.py                       # all GPUs or cores
    python examples/local_steps.py --processes 4 --every 5 --epochs 20

Each rule of `synkhronos.extensions.sync` trains the same network from the same parameters, and so
does the exact step, which averages gradients in every step. The program fails if the processes do
not end with equal parameters, or if one of the networks recognises too few of the digits that it
was not trained with.
"""

from __future__ import annotations

import argparse
import sys
import time
from typing import Any

import numpy as np
from sklearn.datasets import load_digits

import synkhronos as synk
from synkhronos.engine import T, engine
from synkhronos.extensions import sync, updates
from synkhronos.extensions.batches import index_batches
from synkhronos.extensions.train import make_train_function

SEED = 1
HIDDEN = 64
VALIDATION_ROWS = 360
ROWS_EACH = 16  # per step and process
RATE = 0.1
LEAST_ACCURACY = 0.9


def load_data() -> tuple[Any, ...]:
    """Return training rows and labels, then those for validation."""
    x, y = load_digits(return_X_y=True)
    order = np.random.RandomState(SEED).permutation(len(x))
    x, y = (x[order] / 16.0).astype(engine.config.floatX), y[order].astype("int32")
    n = len(x) - VALIDATION_ROWS
    return x[:n], y[:n], x[n:], y[n:]


class Network:
    """One hidden layer; its parameters are the same each time."""

    def __init__(self) -> None:
        rng = np.random.RandomState(SEED)
        self.x, self.y = T.matrix("x"), T.ivector("y")
        hidden = T.tanh(self._layer(self.x, 64, HIDDEN, rng))
        scores = self._layer(hidden, HIDDEN, 10, rng)
        scores -= scores.max(axis=1, keepdims=True)
        logs = scores - T.log(T.exp(scores).sum(axis=1, keepdims=True))
        self.loss = -logs[T.arange(self.y.shape[0]), self.y].mean()
        self.accuracy = T.eq(logs.argmax(axis=1), self.y).mean(dtype="float64")

    def _layer(self, x: Any, n_in: int, n_out: int, rng: Any) -> Any:
        values = rng.randn(n_in, n_out) / np.sqrt(n_in), np.zeros(n_out)
        w, b = (engine.shared(v.astype(engine.config.floatX), name=n) for v, n in zip(values, "wb"))
        self.params = [*getattr(self, "params", []), w, b]
        return x.dot(w) + b


def train_network(name: str, options: Any, processes: int) -> tuple[float, float]:
    """Train by a rule and return the validation accuracy and the seconds of an epoch."""
    network = Network()
    # Downpour adds up what the processes move: with many steps in between they would go too far.
    every = min(options.every, 2) if name == "downpour" else options.every
    rate = RATE / processes if name == "downpour" else RATE
    rule = None if name == "exact" else getattr(sync, name)(network.params, every)
    arguments = (network.loss, network.params, [network.x, network.y], updates.momentum, rate)
    train = make_train_function(*arguments, sync=rule, name=name)
    validate = synk.function([network.x, network.y], network.accuracy)
    synk.distribute()

    x_train, y_train, x_valid, y_valid = load_data()
    x_data, y_data = train.build_inputs(x_train, y_train)
    rng = np.random.RandomState(SEED)
    start = time.perf_counter()
    for _ in range(options.epochs):
        # Each process gets its part of the rows of a batch.
        batches = index_batches(len(x_train), ROWS_EACH * processes, rng)
        for _ in train.steps(x_data, y_data, batches):
            pass
    seconds = (time.perf_counter() - start) / options.epochs
    if rule is not None:
        rule.settle()  # all processes get the common parameters
    for param in network.params:
        if any((value != param.get_value()).any() for value in synk.gather(param)):
            raise SystemExit(f"{name}: the processes do not have the same {param}")
    return float(validate(x_valid, y_valid)), seconds


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(description="Train on digits by the rules of Platoon.")
    parser.add_argument("--processes", type=int, help="default: one per GPU, or core")
    parser.add_argument("--every", type=int, default=10, help="steps between synchronisations")
    parser.add_argument("--epochs", type=int, default=15, help="default: %(default)s")
    options = parser.parse_args(arguments)
    processes = synk.fork(options.processes, verbose=False)

    print(f"{processes} processes\n{'rule':10} {'validation':>10} {'ms per epoch':>13}")
    worst = 1.0
    for name in ("exact", "average", "easgd", "downpour"):
        accuracy, seconds = train_network(name, options, processes)
        print(f"{name:10} {accuracy:10.1%} {seconds * 1e3:13.0f}")
        worst = min(worst, accuracy)
    synk.close()
    if worst < LEAST_ACCURACY:
        print(f"expected at least {LEAST_ACCURACY:.0%} each")
    return int(worst < LEAST_ACCURACY)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
