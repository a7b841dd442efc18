"""Train networks on handwritten digits, on all cores, with Theano or PyTensor.

    python examples/train_digits.py                      # all cores, all networks
    python examples/train_digits.py --model mlp --processes 3 --batch-size 53

The MLP is written by hand. The convolutional network is built with Lasagne, if that is installed;
it needs Theano. Three lines, marked (1) to (3), make the program parallel; the rest is the same as
for one process.

To check this, each network first takes one epoch with plain functions, in this process alone. Then
it starts again from the same parameters on all processes, and must reach the same parameters after
its first epoch; otherwise the program fails. The speed-up is relative to a plain function in a
separate process (`plain.py`).
"""

from __future__ import annotations

import argparse
import importlib.util
import os
import sys
import time
import warnings
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from display import Display, Result, Training
from plain import peers
from sklearn.datasets import load_digits

import synkhronos as synk
from synkhronos.engine import NAME, TITLE, T, engine
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


def build_mlp(x: Any) -> tuple[Any, list[Any]]:
    """Return the scores of the ten classes, with the shape (rows, 10), and the parameters."""
    rng = np.random.RandomState(SEED)
    hidden, width, params = x.flatten(2), 64, []
    for i, n in enumerate((512, 512, 10), 1):
        limit = np.sqrt(6 / (width + n))
        weights = engine.shared(rng.uniform(-limit, limit, (width, n)), f"W{i}")
        bias = engine.shared(np.zeros(n), f"b{i}")
        scores = T.dot(hidden, weights) + bias
        hidden, width = T.maximum(scores, 0), n
        params += [weights, bias]
    return scores, params


def build_cnn(x: Any) -> tuple[Any, list[Any]]:
    """The same of a convolutional network."""
    from lasagne import layers
    from lasagne.random import set_rng

    set_rng(np.random.RandomState(SEED))
    network = layers.InputLayer((None, 1, 8, 8), x)
    network = layers.Conv2DLayer(network, 16, 3, pad="same")
    network = layers.Conv2DLayer(network, 32, 3, pad="same")
    network = layers.MaxPool2DLayer(network, 2)
    network = layers.DenseLayer(network, 128)
    network = layers.DenseLayer(network, 10, nonlinearity=None)
    return layers.get_output(network), layers.get_all_params(network, trainable=True)


MODELS = {"mlp": ("MLP", build_mlp)}
if NAME == "theano" and importlib.util.find_spec("lasagne") is not None:
    MODELS["cnn"] = ("CNN", build_cnn)


def cross_entropy(scores: Any, y: Any) -> Any:
    """The average, over rows, of minus the log probability of the right class."""
    scores = scores - scores.max(axis=1, keepdims=True)
    log_probability = scores - T.log(T.exp(scores).sum(axis=1, keepdims=True))
    return -log_probability[T.arange(y.shape[0]), y].mean()


def run_epoch(train: Any, x: Any, y: Any, batch_size: int, rng: Any, progress: Training) -> None:
    """Train on each row once, in an order that ``rng`` shuffles."""
    for indexes in index_batches(len(x), batch_size, rng):
        start = time.perf_counter()
        loss = train(x, y, batch=indexes)
        progress.step(len(indexes), float(loss), time.perf_counter() - start)


def train_model(model: str, digits: Digits, options: Any, display: Display) -> Result:
    """Train a network for an epoch with plain functions, then for all epochs in parallel."""
    title, build = MODELS[model]
    processes = f"{options.processes} process{'es' if options.processes > 1 else ''}"
    display.say(f"{title}: compiling")

    x, y = T.tensor4("x"), T.ivector("y")
    scores, params = build(x)
    loss = cross_entropy(scores, y)
    accuracy = T.eq(scores.argmax(axis=1), y).mean(dtype="float64")
    arguments = (loss, params, [x, y], nesterov_momentum, options.learning_rate)

    train = make_train_function(*arguments)  # (2) instead of engine.function
    validate = synk.function([x, y], [loss, accuracy])  # (3) instead of engine.function
    train_plainly = make_train_function_theano(*arguments)
    synk.distribute()

    # The data is in shared memory, once; each process reads its own part of a batch.
    x_train, y_train = train.build_inputs(digits.x_train, digits.y_train)
    x_valid, y_valid = validate.build_inputs(digits.x_valid, digits.y_valid)
    initial = [param.get_value() for param in params]

    rng = np.random.RandomState(SEED)
    with display.training(f"{title}, plain {TITLE}", epochs=1) as serial:
        serial.start_epoch(1, len(x_train))
        run_epoch(train_plainly, x_train, y_train, options.batch_size, rng, serial)
        serial.end_epoch()
    expected = [param.get_value() for param in params]

    synk.broadcast(params, initial)
    rng = np.random.RandomState(SEED)
    with display.training(f"{title}, {processes}", options.epochs) as parallel:
        for epoch in range(1, options.epochs + 1):
            parallel.start_epoch(epoch, len(x_train))
            run_epoch(train, x_train, y_train, options.batch_size, rng, parallel)
            parallel.end_epoch()
            if epoch == 1:
                reached = [param.get_value() for param in params]
    difference = max(np.abs(a - b).max() for a, b in zip(reached, expected))

    valid_loss, valid_accuracy = validate(x_valid, y_valid, num_slices=4)
    display.say(f"  {title}, validation: loss {valid_loss:.4f}, accuracy {valid_accuracy:.1%}")
    indexes = np.arange(min(options.batch_size, len(x_train)))

    def step() -> float:
        start = time.perf_counter()
        train(x_train, y_train, batch=indexes)
        return time.perf_counter() - start

    display.say(f"{title}: measuring, compared with plain {TITLE} in its own processes")
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
        description="Train networks on handwritten digits, on all cores, and prove that each step "
        f"equals that of plain {TITLE}."
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
    parser.add_argument("--model", choices=[*MODELS, "all"], default="all")
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
    models = list(MODELS) if options.model == "all" else [options.model]
    results = [train_model(model, digits, options, display) for model in models]
    synk.close()

    display.table(results, options.processes)
    worst = max(result.difference for result in results)
    same = worst <= LARGEST_DIFFERENCE
    display.say(
        f"Largest parameter difference from plain {TITLE} after one epoch: {worst:.1e} "
        f"({'at most' if same else 'MORE THAN'} {LARGEST_DIFFERENCE:.0e})"
    )
    return 0 if same else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
