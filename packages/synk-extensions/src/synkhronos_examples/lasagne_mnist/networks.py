"""Two Lasagne networks for images of digits, the options of both trainings, and what they print."""

from __future__ import annotations

import argparse
import sys
import time
import warnings
from typing import Any, NamedTuple, Sequence

import numpy as np
import theano
import theano.tensor as T
from lasagne import layers, nonlinearities, objectives
from lasagne import random as lasagne_random

from synkhronos_examples.demos.options import add_options, fork_arguments

# Best for GPUs, and half the memory. Lasagne creates its parameters with this type.
theano.config.floatX = "float32"
# Lasagne 0.1 uses a keyword that Theano has renamed; it still means the same.
warnings.filterwarnings("ignore", "The `image_shape` keyword", UserWarning)


def build_mlp(network: Any) -> Any:
    """Two hidden layers, with dropout. Every process draws masks of its own."""
    for _ in range(2):
        network = layers.dropout(layers.DenseLayer(network, 400), p=0.3)
    return layers.DenseLayer(network, 10, nonlinearity=nonlinearities.softmax)


def build_cnn(network: Any) -> Any:
    """Two convolutions, each with pooling, and a hidden layer."""
    for filters in (16, 32):
        network = layers.Conv2DLayer(network, filters, 3, pad=1)
        network = layers.MaxPool2DLayer(network, 2)
    network = layers.DenseLayer(network, 128)
    return layers.DenseLayer(network, 10, nonlinearity=nonlinearities.softmax)


NETWORKS = {"mlp": build_mlp, "cnn": build_cnn}
EPOCHS = 12
ACCURACY = 0.93  # what EPOCHS are enough for


class DigitsModel(NamedTuple):
    """Expressions and variables of a network, to make functions of."""

    inputs: list[Any]  # images and labels
    loss: Any
    params: list[Any]
    validation: list[Any]  # loss and accuracy, without dropout


def build_model(name: str, side: int, seed: int = 1) -> DigitsModel:
    """Build the network `name`, for images of side x side pixels."""
    lasagne_random.set_rng(np.random.RandomState(seed))
    x, y = T.ftensor4("x"), T.ivector("y")
    network = NETWORKS[name](layers.InputLayer((None, 1, side, side), x))
    training = layers.get_output(network)
    validation = layers.get_output(network, deterministic=True)
    return DigitsModel(
        inputs=[x, y],
        loss=objectives.categorical_crossentropy(training, y).mean(),
        params=layers.get_all_params(network, trainable=True),
        validation=[
            objectives.categorical_crossentropy(validation, y).mean(),
            T.eq(validation.argmax(axis=1), y).mean(dtype="float32"),
        ],
    )


def parse(about: str | None, arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """The options. `fork` among them has the arguments of `synk.fork()`."""
    parser = argparse.ArgumentParser(
        description=about, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("--model", choices=list(NETWORKS), default="mlp", help="default: %(default)s")
    add("--data", help="folder with MNIST's files, or 'digits' for scikit-learn's")
    add("--epochs", type=int, default=EPOCHS, help="default: %(default)s")
    add("--batch-size", type=int, default=128, help="rows per step, of all (default: %(default)s)")
    add("--learning-rate", type=float, default=0.05, help="default: %(default)s")
    mark = f"to be reached (default: {ACCURACY} from {EPOCHS} epochs on, else none)"
    add("--accuracy", type=float, help=mark)
    add_options(parser)
    options = parser.parse_args(arguments)
    for name in ("epochs", "batch_size"):
        if getattr(options, name) < 1:
            parser.error(f"--{name.replace('_', '-')}: expected at least 1")
    if options.accuracy is None and options.epochs >= EPOCHS:
        options.accuracy = ACCURACY
    options.fork = fork_arguments(options)
    return options


class Epochs:
    """Counts and times the epochs, and prints a line for each."""

    def __init__(self, options: argparse.Namespace) -> None:
        self._epochs, self._wanted = options.epochs, options.accuracy
        self._accuracy = 0.0

    def __iter__(self) -> Any:
        for epoch in range(1, self._epochs + 1):
            self._epoch, self._begin = epoch, time.perf_counter()
            yield epoch

    def trained(self, losses: Sequence[Any], rows: int) -> None:
        """Take note of an epoch's losses and of how long it took."""
        speed = rows / (time.perf_counter() - self._begin)
        state = f"loss {np.mean(losses):.4f} ({speed:.0f} images/s)"
        print(f"epoch {self._epoch} of {self._epochs}: {state}", end=", ")

    def validated(self, loss: Any, accuracy: Any) -> None:
        """Print the rest of the epoch's line."""
        self._accuracy = float(accuracy)
        print(f"validation: loss {loss:.4f}, accuracy {accuracy:.1%}", flush=True)

    def finish(self) -> None:
        """End the program: well if the accuracy was reached, or none was to be."""
        reached = self._wanted is None or self._accuracy >= self._wanted
        word = "reached" if reached else "NOT REACHED"
        more = "" if self._wanted is None else f": {self._wanted:.1%} {word}"
        print(f"accuracy {self._accuracy:.1%}{more}")
        sys.exit(0 if reached else 1)
