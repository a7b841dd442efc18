"""What is computed: small functions by name, so that another process can build the same."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Callable

import numpy as np
import theano
import theano.tensor as T

ROW = 1024  # float32: 4 kB
UNITS = 400


@dataclass(frozen=True)
class Problem:
    """A function of the rows of one array.

    `op` says how results of parts of the rows belong together; `shape` gives that of the input for
    a number of rows.
    """

    x: Any
    output: Any
    op: str
    shape: Callable[[int], tuple[int, ...]]
    updates: tuple[tuple[Any, Any], ...] = ()

    def rows(self, count: int) -> np.ndarray:
        """Return values for the input."""
        return np.random.default_rng(1).standard_normal(self.shape(count), "float32")

    def compiled(self) -> Any:
        """Return the function, by plain Theano."""
        return theano.function([self.x], self.output, updates=list(self.updates))


def trivial() -> Problem:
    """Return a problem of next to no work: what is left is the cost of a call."""
    x = T.fvector("x")
    return Problem(x, x.sum(), "sum", lambda rows: (rows,))


def reading() -> Problem:
    """Return a problem that reads every number of every row once."""
    x = T.fmatrix("x")
    return Problem(x, x.sum(), "sum", lambda rows: (rows, ROW))


def products() -> Problem:
    """Return a problem of six matrix products with something in between."""
    x = T.fmatrix("x")
    weights = np.random.RandomState(0).standard_normal((UNITS, UNITS)) / np.sqrt(UNITS)
    w = theano.shared(weights.astype("float32"), name="w")
    y = x
    for _ in range(6):
        y = T.nnet.relu(T.dot(y, w))
    return Problem(x, y.mean(), "avg", lambda rows: (rows, UNITS))


def convolutions() -> Problem:
    """Return a problem of two convolutions of 3 x 3, and a step along their gradient."""
    x = T.ftensor4("x")
    filters = np.random.RandomState(0).standard_normal
    first = theano.shared(filters((16, 8, 3, 3)).astype("float32") / 9, name="first")
    second = theano.shared(filters((16, 16, 3, 3)).astype("float32") / 12, name="second")
    y = T.nnet.relu(T.nnet.conv2d(x, first, border_mode="half"))
    loss = T.sqr(T.nnet.conv2d(y, second, border_mode="half")).mean()
    rate = np.float32(1e-6)  # the work stays the same from step to step
    updates = tuple((w, w - rate * T.grad(loss, w)) for w in (first, second))
    return Problem(x, loss, "avg", lambda rows: (rows, 8, 24, 24), updates)


PROBLEMS = {make.__name__: make for make in (trivial, reading, products, convolutions)}
