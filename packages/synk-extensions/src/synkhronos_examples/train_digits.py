"""Train networks on handwritten digits, on all cores, with Theano or PyTensor.

    python examples/train_digits.py                      # all cores, all networks
    python examples/train_digits.py --model mlp --processes 3 --batch-size 53

The MLP is written by hand. The convolutional network is built with Lasagne, if that is installed;
it needs Theano. Three lines, marked (1) to (3), make the program parallel; the rest is the same as
for one process.

To check this, each network first takes one epoch with plain functions, in this process alone. Then
it starts again from the same parameters on all processes, and must reach the same parameters after
its first epoch; otherwise the program fails. The speed-up is relative to the plain functions, which
run before there are other processes, with all threads of BLAS.
"""

from __future__ import annotations

import argparse
import importlib.util
import sys
import time
import warnings
from typing import Any

import numpy as np
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


def load_data() -> list[tuple[Any, Any]]:
    """Images of the shape (rows, 1, 8, 8), from 0 to 1, and labels: for training, validation."""
    x, y = load_digits(return_X_y=True)
    order = np.random.RandomState(SEED).permutation(len(x))
    x = x[order].reshape(-1, 1, 8, 8) / 16.0
    y = y[order].astype("int32")
    n = len(x) - VALIDATION_ROWS
    return [(x[:n], y[:n]), (x[n:], y[n:])]


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


class Network:
    """A network, what its training function is made of, and where the plain one arrives."""

    def __init__(self, model: str, digits: Any, options: Any) -> None:
        self.title, build = MODELS[model]
        self._train_data, self._valid_data = digits
        self._options = options
        x, y = T.tensor4("x"), T.ivector("y")
        scores, self._params = build(x)
        loss = cross_entropy(scores, y)
        accuracy = T.eq(scores.argmax(axis=1), y).mean(dtype="float64")
        self._inputs, self._validation = [x, y], [loss, accuracy]
        rule = (nesterov_momentum, options.learning_rate)
        self._arguments = (loss, self._params, self._inputs, *rule)
        self._initial = self._values()

        train = make_train_function_theano(*self._arguments)
        self.plain_speed = self._epoch(train, *self._train_data, f"plain {TITLE}")
        self._expected = self._values()

    def train(self, processes: int) -> tuple[float, float]:
        """Train on all processes; return the speed, and the largest difference from plain."""
        train = make_train_function(*self._arguments)  # (2) instead of engine.function
        validate = synk.function(self._inputs, self._validation)  # (3) instead of engine.function
        synk.distribute()

        # The data is in shared memory, once; each process reads its own part of a batch.
        speeds = []
        x_train, y_train = train.build_inputs(*self._train_data)
        synk.broadcast(self._params, self._initial)
        for epoch in range(1, self._options.epochs + 1):
            label = f"{processes} process(es), epoch {epoch} of {self._options.epochs}"
            speeds.append(self._epoch(train, x_train, y_train, label, seed=epoch))
            if epoch == 1:
                pairs = zip(self._values(), self._expected)
                difference = max(float(np.abs(a - b).max()) for a, b in pairs)
        loss, accuracy = validate(*self._valid_data, num_slices=4)
        print(f"  {self.title}, validation: loss {loss:.4f}, accuracy {accuracy:.1%}", flush=True)
        return float(np.median(speeds)), difference

    def _epoch(self, train: Any, x: Any, y: Any, label: str, seed: int = SEED) -> float:
        """Train on each row once, in random order; return the median of rows per second."""
        losses, speeds = [], []
        rng = np.random.RandomState(seed)
        for indexes in index_batches(len(x), self._options.batch_size, rng):
            start = time.perf_counter()
            losses.append(float(train(x, y, batch=indexes)))
            speeds.append(len(indexes) / (time.perf_counter() - start))
        speed = float(np.median(speeds))
        state = f"loss {np.mean(losses):.4f}, {speed:.0f} examples/s"
        print(f"  {self.title}, {label}: {state}", flush=True)
        return speed

    def _values(self) -> list[Any]:
        return [param.get_value() for param in self._params]


def parse(arguments: list[str]) -> Any:
    about = (
        "Train networks on handwritten digits, on all cores, and prove that each step equals that "
        f"of plain {TITLE}."
    )
    parser = argparse.ArgumentParser(
        description=about, formatter_class=argparse.ArgumentDefaultsHelpFormatter
    )
    add = parser.add_argument
    add("--processes", type=int, help="number of processes; None: one per core")
    add("--epochs", type=int, default=20, help="number of epochs")
    # A prime: no number of processes divides it.
    add("--batch-size", type=int, default=251, help="rows per step, for all processes together")
    add("--learning-rate", type=float, default=0.05, help="of Nesterov's momentum")
    add("--model", choices=[*MODELS, "all"], default="all", help="which network")
    options = parser.parse_args(arguments)
    for name in ("epochs", "batch_size"):
        if getattr(options, name) < 1:
            parser.error(f"--{name.replace('_', '-')} must be at least 1")
    return options


def main(arguments: list[str]) -> int:
    options = parse(arguments)
    digits = load_data()
    models = list(MODELS) if options.model == "all" else [options.model]
    networks = [Network(model, digits, options) for model in models]
    processes = synk.fork(options.processes, use_gpu=False)  # (1)
    results = [network.train(processes) for network in networks]
    synk.close()

    print(f"\n{'model':8}{'plain':>8}{'parallel':>10}{'speed-up':>11}{'largest difference':>21}")
    for network, (speed, difference) in zip(networks, results):
        plain = network.plain_speed
        shown = f"{plain:8.0f}{speed:10.0f}{speed / plain:9.2f} x{difference:21.1e}"
        print(f"{network.title:8}{shown}")
    print("Examples per second. Small steps gain little: try a larger --batch-size.")
    worst = max(difference for _, difference in results)
    same = worst <= LARGEST_DIFFERENCE
    print(
        f"Largest parameter difference from plain {TITLE} after one epoch: {worst:.1e} "
        f"({'at most' if same else 'MORE THAN'} {LARGEST_DIFFERENCE:.0e})"
    )
    return 0 if same else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
