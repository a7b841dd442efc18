"""A small training for the tests of the Trainer: linear regression, with what makes it hard."""

from __future__ import annotations

import contextlib

import numpy as np

import synkhronos as synk
from synk_testing import children
from synk_testing.engine import STREAMS, T, engine
from synkhronos.extensions import updates
from synkhronos.extensions.train import (
    Callback,
    Trainer,
    exponential,
    make_train_function,
    make_train_function_theano,
)

ROWS, FEATURES = 50, 4


def dataset(rows=ROWS, seed=1):
    rng = np.random.RandomState(seed)
    x = rng.randn(rows, FEATURES)
    return x, x.dot([1.0, -2.0, 0.5, 3.0]) + 0.1 * rng.randn(rows)


def numpy_training(rates, batch_size, seed=0):
    """Return the losses of gradient descent by hand, before each rate's step; then w and b."""
    x, y = dataset()
    rng, batches = np.random.default_rng(seed), []
    w, b, losses = np.zeros(FEATURES), 0.0, []
    for rate in rates:
        if not batches:
            order = rng.permutation(ROWS)
            batches = [order[start : start + batch_size] for start in range(0, ROWS, batch_size)]
        rows = batches.pop(0)
        residual = x[rows] @ w + b - y[rows]
        losses.append((residual**2).mean())
        w = w - rate * 2 * x[rows].T @ residual / len(rows)
        b = b - rate * 2 * residual.mean()
    return losses, w, b


class Model:
    """Its parameters, rate and training function; two of them start equal.

    `noise` is dropout of the inputs by random streams of that kind, `slow` is applied to the
    further output, and `running` keeps an average of the inputs' mean, and a count of the steps.
    """

    def __init__(
        self,
        make=make_train_function_theano,
        rule=updates.momentum,
        noise=None,
        running=False,
        slow=lambda value: value,
    ):
        self.x, self.y = T.dmatrix("x"), T.dvector("y")
        self.w = engine.shared(np.zeros(FEATURES), name="w")
        self.b = engine.shared(0.0, name="b")
        self.rate = engine.shared(0.05, name="rate")
        self.params = [self.w, self.b]
        self.mean = engine.shared(np.zeros(FEATURES), name="mean")
        self.count = engine.shared(0, name="count")
        seen = self.x
        if noise:
            streams = STREAMS[noise](seed=11)
            # MRG would seed 15360 streams, in seconds.
            few = {"nstreams": 60} if noise == "mrg" else {}
            seen = seen * T.cast(streams.uniform(size=seen.shape, **few) < 0.8, "float64")
            # Of normal numbers NumPy draws two at a time, and keeps one for later.
            seen = seen + 0.01 * streams.normal((2,), dtype="float64", **few).sum()
        self.seen = seen
        more = []
        if running:
            more = [
                (self.mean, 0.9 * self.mean + 0.1 * self.x.mean(axis=0)),
                (self.count, self.count + 1),
            ]
        self.loss = T.mean((seen.dot(self.w) + self.b - self.y) ** 2)
        self.clean = T.mean((self.x.dot(self.w) + self.b - self.y) ** 2)
        self.error = slow(abs(self.x.dot(self.w) + self.b - self.y).mean())
        self.error.name = "error"
        self.train = make(
            self.loss,
            self.params,
            [self.x, self.y],
            rule,
            learning_rate=self.rate,
            outputs=[self.error],
            updates=more,
        )

    def values(self):
        state = self.train.state
        shareds = [*state.params, *state.optimizer, *state.local, self.rate]
        return [np.array(shared.get_value()) for shared in shareds]


def plain(model, size=16, **settings):
    """Return a quiet trainer of a model; by default four steps make an epoch."""
    return Trainer(model.train, dataset(), size, **{"verbose": False, **settings})


def assert_same(values, others):
    assert len(values) == len(others)
    for value, other in zip(values, others):
        np.testing.assert_array_equal(value, other)


def assert_close(values, others, tolerance=1e-10):
    assert len(values) == len(others)
    for value, other in zip(values, others):
        np.testing.assert_allclose(value, other, rtol=0, atol=tolerance)


def without_seconds(records):
    return [{k: v for k, v in record.items() if k != "seconds"} for record in records]


class StopAt(Callback):
    def __init__(self, step):
        self.step = step

    def on_step_end(self, trainer, loss):
        if trainer.step == self.step:
            trainer.stop()


@contextlib.contextmanager
def forked(n, **settings):
    before = children()
    synk.fork(n, use_gpu=False, verbose=False, **settings)
    try:
        yield
    finally:
        synk.close()
    assert children() <= before


def parallel(folder=None, stop=None, make=make_train_function, **kind):
    """Return a model, and a trainer of it over the ranks; three steps make an epoch."""
    model = Model(make, updates.adam, **kind)
    how = {"learning_rate": model.rate, "schedule": exponential(0.1, 0.7)}
    return model, plain(model, 17, checkpoint=folder, callbacks=[StopAt(stop)], **how)


def serial(epochs):
    model, trainer = parallel(make=make_train_function_theano)
    return model, trainer.run(epochs)


def everywhere(shareds):
    """Return the values in all ranks: a list over ranks of lists over variables."""
    ranks = synk._default.default().size
    return [list(synk.get_value(rank, list(shareds))) for rank in range(ranks)]
