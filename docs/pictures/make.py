"""Draw the picture of seeing.md, from a training on two processes: takes seconds.

python docs/pictures/make.py
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np
import theano
import theano.tensor as T

import synkhronos as synk
from synkhronos.extensions import updates
from synkhronos.extensions.plots import plot_training
from synkhronos.extensions.train import Trainer, make_train_function, step_decay

HERE = Path(__file__).parent
ROWS, FEATURES, HIDDEN, CLASSES = 4096, 400, 400, 10


def main(target: Path) -> None:
    """Train, and write the picture into a folder."""
    rng = np.random.RandomState(0)
    synk.fork(2, use_gpu=False)
    x, y = T.matrix("x"), T.ivector("y")
    weights = [shared(rng, FEATURES, HIDDEN), shared(rng, HIDDEN, CLASSES)]
    prediction = T.nnet.softmax(T.nnet.relu(x.dot(weights[0])).dot(weights[1]))
    loss = T.nnet.categorical_crossentropy(prediction, y).mean()
    error = T.neq(prediction.argmax(axis=1), y).mean(dtype="float64")
    rate = theano.shared(np.asarray(0.1, theano.config.floatX), name="rate")
    train = make_train_function(loss, weights, [x, y], updates.momentum, learning_rate=rate)
    means = rng.randn(CLASSES, FEATURES)
    labels = rng.randint(CLASSES, size=ROWS).astype("int32")
    points = (0.15 * means[labels] + rng.randn(ROWS, FEATURES)).astype(theano.config.floatX)
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder, "log.csv")
        trainer = Trainer(
            train,
            (points[:3072], labels[:3072]),
            batch_size=128,
            valid=synk.function([x, y], [loss, error]),
            valid_data=(points[3072:], labels[3072:]),
            valid_names=["error"],
            learning_rate=rate,
            schedule=step_decay(0.02, every=8),
            log=log,
        )
        trainer.run(epochs=16)
        synk.close()
        save(plot_training(log), target / "training.svg")


def shared(rng: Any, *shape: int) -> Any:
    """A matrix of small random numbers."""
    return theano.shared((rng.randn(*shape) / shape[0] ** 0.5).astype(theano.config.floatX))


def save(figure: Any, path: Path) -> None:
    """As text that differs only where the picture does."""
    with mpl.rc_context({"svg.hashsalt": path.name}):
        figure.savefig(path, metadata={"Date": None})


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else HERE)
