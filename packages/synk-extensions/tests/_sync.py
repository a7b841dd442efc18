"""Training by the rules of `extensions.sync` in NumPy, from the formulas; and as a graph."""

from __future__ import annotations

import contextlib
import warnings

import numpy as np
from _training import StopAt, everywhere

import synkhronos as synk
from synk_testing.engine import T, engine
from synkhronos.extensions import sync, updates
from synkhronos.extensions.train import Trainer, make_train_function

RULES = {"average": sync.average, "easgd": sync.easgd, "downpour": sync.downpour}

RATE = 0.05
FEATURES = 3
START = np.array([0.5, -1.0, 0.25, 2.0])  # the weights, and the offset


def rows(count=41, seed=3):
    rng = np.random.RandomState(seed)
    x = rng.randn(count, FEATURES)
    return x, x.dot([1.0, -2.0, 3.0]) + 0.3 * rng.randn(count)


class Linear:
    def __init__(self):
        self.x, self.y = T.dmatrix("x"), T.dvector("y")
        self.w = engine.shared(START[:-1].copy(), name="w")
        self.b = engine.shared(START[-1], name="b")
        self.params = [self.w, self.b]
        self.loss = T.mean((self.x.dot(self.w) + self.b - self.y) ** 2)

    def sgd(self):
        return [(p, p - RATE * g) for p, g in zip(self.params, T.grad(self.loss, self.params))]


def gradient(theta, x, y):
    residual = x @ theta[:-1] + theta[-1] - y
    return np.append(2 * x.T @ residual, 2 * residual.sum()) / len(y)


class Ranks:
    """What all ranks hold, a row each: `replicas`, and the velocities of their update rule."""

    def __init__(self, size, rule, every, alpha=None, mu=0.0):
        self.replicas = np.tile(START, (size, 1))
        self.velocities = np.zeros_like(self.replicas)
        self.centre = START.copy()
        self.rule, self.every, self.alpha, self.mu = rule, every, alpha, mu
        self.since = 0

    def step(self, x, y):
        shares = np.array_split(np.arange(len(y)), len(self.replicas))  # larger ones first
        for rank, share in enumerate(shares):
            if len(share):
                slope = gradient(self.replicas[rank], x[share], y[share])
                self.velocities[rank] = self.mu * self.velocities[rank] - RATE * slope
                self.replicas[rank] += self.velocities[rank]
        self.since += 1
        if self.since == self.every:
            self.synchronise()

    def synchronise(self):
        self.since = 0
        replicas, centre = self.replicas, self.centre
        if self.rule == "average":
            self.replicas = np.tile(replicas.sum(axis=0) / len(replicas), (len(replicas), 1))
        elif self.rule == "easgd":
            # Equations 3 and 4 of the paper (eta rho = alpha), of which 5 and 6 are another form.
            force = self.alpha * (replicas - centre)
            self.replicas = replicas - force
            self.centre = centre + force.sum(axis=0)
        else:
            self.centre = centre + (replicas - centre).sum(axis=0)
            self.replicas = np.tile(self.centre, (len(replicas), 1))

    def settle(self):
        if self.since:
            self.synchronise()
        if self.rule == "easgd":
            self.replicas = np.tile(self.centre, (len(self.replicas), 1))


@contextlib.contextmanager
def no_warning():
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        yield


def together(values):
    return np.array([np.concatenate([np.ravel(v) for v in rank]) for rank in values])


def require_equal(rule, expected, tolerance=1e-12):
    replicas = together(everywhere(rule.params))
    np.testing.assert_allclose(replicas, expected.replicas, rtol=tolerance, atol=tolerance)
    if rule.centre:
        centres = together(everywhere(rule.centre))
        np.testing.assert_allclose(centres[0], expected.centre, rtol=tolerance, atol=tolerance)
        assert (centres == centres[0]).all(), "bit for bit the same on all ranks"
    assert rule.steps == expected.since
    if rule.name != "easgd" and not rule.steps:
        assert (replicas == replicas[0]).all()


ROWS, BATCH, STEPS = 41, 9, 5  # the steps of an epoch
EVERY = 3


class Training:
    def __init__(self, rule=None, folder=None, stop=None, update=updates.momentum, **settings):
        model = self.model = Linear()
        self.rule = RULES[rule](model.params, EVERY) if rule else None
        self.train = make_train_function(
            model.loss, model.params, [model.x, model.y], update, RATE, sync=self.rule
        )
        if "valid_data" in settings:
            settings["valid"] = synk.function([model.x, model.y], model.loss)
        if stop:
            settings["callbacks"] = [StopAt(stop)]
        self.trainer = Trainer(
            self.train, rows(ROWS), BATCH, checkpoint=folder, verbose=False, **settings
        )

    def values(self):
        state = self.train.state
        return everywhere([*state.params, *state.optimizer, *state.centre])
