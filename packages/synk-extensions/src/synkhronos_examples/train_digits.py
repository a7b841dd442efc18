"""Train two Lasagne networks on handwritten digits, on all cores.

    python examples/train_digits.py                      # all cores, both networks
    python examples/train_digits.py --model mlp --processes 3 --batch-size 53

Three lines, marked (1) to (3), make it parallel; the rest is the same as for one process.

To check this, each network first takes one epoch in plain Theano, in this process alone. Then it
starts again from the same parameters on all processes, and must reach the same parameters after its
first epoch; otherwise the program fails. The speed-up is relative to plain Theano in a separate
process (`plain_theano.py`).
"""

from __future__ import annotations

import argparse
import os
import sys
import time
import warnings
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import theano.tensor as T
from display import Display, Result, Training
from lasagne import layers, nonlinearities, objectives
from lasagne import random as lasagne_random
from plain_theano import peers
from sklearn.datasets import load_digits

import synkhronos as synk
from synkhronos.extensions.batches import index_batches
from synkhronos.extensions.train import make_train_function, make_train_function_theano
from synkhronos.extensions.updates import nesterov_momentum

# Lasagne 0.1 uses a keyword that Theano has renamed; it still means the same.
warnings.filterwarnings("ignore", "The `image_shape` keyword", UserWarning)

SEED = 1
VALIDATION_ROWS = 360
LARGEST_DIFFERENCE = 1e-10  # of float64 parameters: sums in another order differ in the last bits


class Digits(NamedTuple):
    """Images with the shape (rows, 1, 8, 8), between 0 and 1, and their labels."""

    x_train: Any
    y_train: Any
    x_valid: Any
    y_valid: Any


def load_data() -> Digits:
    x, y = load_digits(return_X_y=True)
    order = np.random.RandomState(SEED).permutation(len(x))
    x = x[order].reshape(-1, 1, 8, 8) / 16.0
    y = y[order].astype("int32")
    n = len(x) - VALIDATION_ROWS
    return Digits(x[:n], y[:n], x[n:], y[n:])


def build_mlp(x: Any) -> Any:
    network = layers.InputLayer((None, 1, 8, 8), x)
    network = layers.DenseLayer(network, 512)
    network = layers.DenseLayer(network, 512)
    return layers.DenseLayer(network, 10, nonlinearity=nonlinearities.softmax)


def build_cnn(x: Any) -> Any:
    network = layers.InputLayer((None, 1, 8, 8), x)
    network = layers.Conv2DLayer(network, 16, 3, pad="same")
    network = layers.Conv2DLayer(network, 32, 3, pad="same")
    network = layers.MaxPool2DLayer(network, 2)
    network = layers.DenseLayer(network, 128)
    return layers.DenseLayer(network, 10, nonlinearity=nonlinearities.softmax)


MODELS = {"mlp": ("MLP", build_mlp), "cnn": ("CNN", build_cnn)}


def run_epoch(train: Any, x: Any, y: Any, batch_size: int, rng: Any, progress: Training) -> None:
    """Train on each row once, in an order that ``rng`` shuffles."""
    for indexes in index_batches(len(x), batch_size, rng):
        start = time.perf_counter()
        loss = train(x, y, batch=indexes)
        progress.step(len(indexes), float(loss), time.perf_counter() - start)


def train_model(model: str, digits: Digits, options: Any, display: Display) -> Result:
    """Train a network for an epoch in plain Theano, then for all epochs in parallel."""
    title, build = MODELS[model]
    processes = f"{options.processes} process{'es' if options.processes > 1 else ''}"
    display.say(f"{title}: compiling")

    lasagne_random.set_rng(np.random.RandomState(SEED))
    x, y = T.tensor4("x"), T.ivector("y")
    network = build(x)
    params = layers.get_all_params(network, trainable=True)
    prediction = layers.get_output(network)
    loss = objectives.categorical_crossentropy(prediction, y).mean()
    accuracy = T.eq(prediction.argmax(axis=1), y).mean(dtype="float64")
    arguments = (loss, params, [x, y], nesterov_momentum, options.learning_rate)

    train = make_train_function(*arguments)  # (2) instead of theano.function
    validate = synk.function([x, y], [loss, accuracy])  # (3) instead of theano.function
    train_in_plain_theano = make_train_function_theano(*arguments)
    synk.distribute()

    # The data is in shared memory, once; each process reads its own part of a batch.
    x_train, y_train = train.build_inputs(digits.x_train, digits.y_train)
    x_valid, y_valid = validate.build_inputs(digits.x_valid, digits.y_valid)
    initial = layers.get_all_param_values(network)

    rng = np.random.RandomState(SEED)
    with display.training(f"{title}, plain Theano", epochs=1) as serial:
        serial.start_epoch(1, len(x_train))
        run_epoch(train_in_plain_theano, x_train, y_train, options.batch_size, rng, serial)
        serial.end_epoch()
    expected = layers.get_all_param_values(network)

    synk.broadcast(params, initial)
    rng = np.random.RandomState(SEED)
    with display.training(f"{title}, {processes}", options.epochs) as parallel:
        for epoch in range(1, options.epochs + 1):
            parallel.start_epoch(epoch, len(x_train))
            run_epoch(train, x_train, y_train, options.batch_size, rng, parallel)
            parallel.end_epoch()
            if epoch == 1:
                reached = layers.get_all_param_values(network)
    difference = max(np.abs(a - b).max() for a, b in zip(reached, expected))

    valid_loss, valid_accuracy = validate(x_valid, y_valid, num_slices=4)
    display.say(f"  {title}, validation: loss {valid_loss:.4f}, accuracy {valid_accuracy:.1%}")
    indexes = np.arange(min(options.batch_size, len(x_train)))

    def step() -> float:
        start = time.perf_counter()
        train(x_train, y_train, batch=indexes)
        return time.perf_counter() - start

    display.say(f"{title}: measuring, compared with plain Theano in its own processes")
    others = peers(model, options.batch_size)
    seconds = time_in_turns([other.step for other in others] + [step])
    speeds = [len(indexes) / each for each in seconds]
    for other in others:
        other.close()
    names = [other.name for other in others]
    plain = dict(zip(names, speeds))
    return Result(title, float(valid_accuracy), plain, speeds[-1], float(difference))


def time_in_turns(steps: list[Callable[[], float]], rounds: int = 15) -> list[float]:
    """Return the median seconds of each step; in turns, so that a busy machine slows down all."""
    seconds = [[step() for step in steps] for _ in range(rounds)]
    return [float(each) for each in np.median(seconds, axis=0)]


def parse(arguments: list[str]) -> Any:
    cores = len(os.sched_getaffinity(0))
    parser = argparse.ArgumentParser(
        description="Train two Lasagne networks on handwritten digits, on all cores, and prove "
        "that each step equals that of plain Theano."
    )
    parser.add_argument(
        "--processes", type=int, default=cores, help="default: all cores, %(default)s"
    )
    parser.add_argument("--epochs", type=int, default=20, help="default: %(default)s")
    parser.add_argument(
        "--batch-size",
        type=int,
        default=251,  # a prime: no number of processes divides it
        help="rows per step, for all processes together; any number (default: %(default)s)",
    )
    parser.add_argument("--learning-rate", type=float, default=0.05, help="default: %(default)s")
    parser.add_argument("--model", choices=[*MODELS, "both"], default="both")
    options = parser.parse_args(arguments)
    for name in ("processes", "epochs", "batch_size"):
        if getattr(options, name) < 1:
            parser.error(f"--{name.replace('_', '-')} must be at least 1")
    return options


def main(arguments: list[str]) -> int:
    options = parse(arguments)
    synk.fork(options.processes, use_gpu=False)  # (1)
    display = Display()
    digits = load_data()
    models = list(MODELS) if options.model == "both" else [options.model]
    results = [train_model(model, digits, options, display) for model in models]
    synk.close()

    display.table(results, options.processes)
    worst = max(result.difference for result in results)
    same = worst <= LARGEST_DIFFERENCE
    display.say(
        f"Largest parameter difference from plain Theano after one epoch: {worst:.1e} "
        f"({'at most' if same else 'MORE THAN'} {LARGEST_DIFFERENCE:.0e})"
    )
    return 0 if same else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
