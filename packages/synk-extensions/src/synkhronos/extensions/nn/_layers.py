"""Layers as functions of expressions, and the parameters that they take."""

from __future__ import annotations

import math
from typing import Any, Callable

import numpy as np
import pytensor
import pytensor.tensor as T
from pytensor.tensor.special import log_softmax

from synkhronos.in_graph import all_reduce


def he(rng: np.random.Generator, shape: tuple[int, ...]) -> Any:
    r"""Draw weights from a normal distribution of variance 2 / inputs, for rectified units.

    Weights are matrices (inputs, outputs), or filters (outputs, channels, height, width).

    Source: He et al., Delving deep into rectifiers, 2015 (arXiv:1502.01852).
    """
    return rng.normal(0, math.sqrt(2 / _fans(shape)[0]), shape)


def glorot(rng: np.random.Generator, shape: tuple[int, ...]) -> Any:
    """Draw weights, as `he` has them, uniformly, with variance 2 / (inputs + outputs).

    Source: Glorot and Bengio, Understanding the difficulty of training deep feedforward neural
    networks, 2010.
    """
    limit = math.sqrt(6 / sum(_fans(shape)))
    return rng.uniform(-limit, limit, shape)


def _fans(shape: tuple[int, ...]) -> tuple[int, int]:
    """Return the numbers of inputs of an output, and of outputs of an input."""
    if len(shape) < 2:
        raise ValueError(f"got shape {shape}: vectors need a number as their initial value")
    if len(shape) == 2:
        return shape[0], shape[1]
    area = math.prod(shape[2:])
    return shape[1] * area, shape[0] * area


class Parameters:
    """Shared variables of a network, by name.

    A network that is built twice, for training and for validation, so has the same parameters.

    Args:
        seed: of the generator that initial values are drawn from, in the order of first calls.
        dtype: of the values; default ``pytensor.config.floatX``.

    Attributes:
        trainable: variables that training changes, in the order of first calls.
        statistics: the others, such as running averages.
    """

    def __init__(self, seed: int = 0, dtype: str | None = None) -> None:
        self.trainable: list[Any] = []
        self.statistics: list[Any] = []
        self._dtype = dtype or pytensor.config.floatX
        self._rng = np.random.default_rng(seed)

    def __call__(
        self,
        name: str,
        shape: int | tuple[int, ...],
        init: float | Callable[[np.random.Generator, tuple[int, ...]], Any] = he,
        trainable: bool = True,
    ) -> Any:
        """Return the variable of this name; make it if there is none.

        Args:
            name: the variable's.
            shape: its lengths.
            init: a number, or a function of a Generator and a shape, such as `he` and `glorot`.
            trainable: whether it is one of `trainable`, or of `statistics`.

        Raises:
            ValueError: there is one of this name with another shape.
        """
        shape = (shape,) if isinstance(shape, int) else tuple(shape)
        for variable in (*self.trainable, *self.statistics):
            if variable.name == name:
                if variable.type.shape != shape:
                    had = variable.type.shape
                    raise ValueError(f"parameter {name!r} has shape {had}; got {shape}")
                return variable
        value = init(self._rng, shape) if callable(init) else np.full(shape, init)
        variable = pytensor.shared(np.asarray(value, self._dtype), name=name, shape=shape)
        (self.trainable if trainable else self.statistics).append(variable)
        return variable


def dense(x: Any, w: Any, b: Any = None) -> Any:
    """Multiply rows by a matrix.

    Args:
        x: shape (rows, ...); all but the first axis are flattened.
        w: weights, shape (inputs, outputs).
        b: None, or biases, shape (outputs,).

    Returns:
        An expression of shape (rows, outputs).
    """
    product = T.dot(x if x.ndim == 2 else x.flatten(2), w)
    return product if b is None else product + b


def batch_norm(
    x: Any,
    gamma: Any,
    beta: Any,
    mean: Any,
    var: Any,
    training: bool = True,
    *,
    epsilon: float = 1e-5,
    alpha: float = 0.1,
    over_ranks: bool = True,
    cost: str = "mean",
) -> tuple[Any, list[tuple[Any, Any]]]:
    r"""Normalize channels: :math:`\gamma (x - \mu) / \sqrt{\sigma^2 + \epsilon} + \beta`.

    Args:
        x: expression of two axes or more, with the rows along axis 0, channels along axis 1.
        gamma, beta: shape (channels,).
        mean, var: shared variables of running averages of mean and variance, shape (channels,).
        training: normalize by mean and variance of the batch; else by `mean` and `var`.
        epsilon: added to the variance.
        alpha: weight of a batch in the running averages: ``(1 - alpha) * old + alpha * new``.
        over_ranks: the batch is that of all ranks, so that training is exact: each rank waits for
            the others twice, and twice in the gradient. Else it is the rank's own rows, and each
            rank has other running averages: build the function with ``proof=False``.
        cost: "mean" or "sum" over rows: see :func:`synkhronos.in_graph.all_reduce`.

    Returns:
        The result, and the updates of the running averages, for ``updates=``; none if not
        `training`.

    Source: Ioffe and Szegedy, Batch Normalization, 2015 (arXiv:1502.03167).
    """
    others = [axis for axis in range(x.ndim) if axis != 1]
    pattern = [0 if axis == 1 else "x" for axis in range(x.ndim)]
    number = np.dtype(x.dtype).type
    updates = []

    def average(values: Any) -> Any:
        own = values.mean(axis=others)
        return all_reduce(own, "avg", cost=cost) if over_ranks else own

    running = mean, var
    if training:
        # The variance after the mean, not from squares, avoids cancellation.
        mean = average(x)
        var = average(T.sqr(x - mean.dimshuffle(pattern)))
        pairs = zip(running, (mean, var))
        updates = [(old, old + number(alpha) * (new - old)) for old, new in pairs]
    scale = gamma / T.sqrt(var + number(epsilon))
    result = (x - mean.dimshuffle(pattern)) * scale.dimshuffle(pattern) + beta.dimshuffle(pattern)
    return result, updates


def dropout(x: Any, p: float, rng: Any) -> tuple[Any, Any]:
    """Set entries to zero with probability `p`, and divide the others by ``1 - p``.

    ::

        rng = T.random.shared_rng(seed=1)
        h, state = nn.dropout(h, 0.5, rng)
        h, state = nn.dropout(nn.dense(h, w), 0.5, state)        # ... updates=[(rng, state)]

    Args:
        x: expression. In validation, do without dropout.
        p: probability, at least 0, less than 1.
        rng: a Generator, or the state behind the last draws.

    Returns:
        An expression of the shape of `x`, and the state behind its draws.

    Raises:
        ValueError: `p` is no such probability.
    """
    if not 0 <= p < 1:
        raise ValueError(f"dropout: got p = {p}, expected 0 <= p < 1")
    state, draws = rng.uniform(size=x.shape)
    return T.switch(draws >= p, x / np.dtype(x.dtype).type(1 - p), T.zeros_like(x)), state


def cross_entropy(logits: Any, y: Any) -> Any:
    """Return minus the logarithms of the probabilities of the right classes, for each row.

    Args:
        logits: scores before softmax, shape (rows, classes), of any size.
        y: the right classes from 0 on, shape (rows,), integers.

    Returns:
        An expression of shape (rows,); a training loss is its mean.
    """
    return -log_softmax(logits, axis=1)[T.arange(y.shape[0]), y]


def recurrent(x: Any, w: Any, u: Any, b: Any, cell: str = "tanh") -> Any:
    r"""Run a recurrent network over sequences of one length, from states of zero.

    "tanh": :math:`h' = \tanh(x w + h u + b)`. "gru", with reset gate r, update gate z and candidate
    n, in this order along the last axis of `w`, `u` and `b`:
    :math:`r, z = \sigma(x w_{r, z} + h u_{r, z} + b_{r, z})`,
    :math:`h' = z h + (1 - z) \tanh(x w_n + b_n + r (h u_n))`.

    Args:
        x: shape (rows, steps, features).
        w, u, b: shapes (features, k * units), (units, k * units), (k * units,); k is 1, of "gru" 3.
        cell: "tanh" or "gru".

    Returns:
        An expression of the states, shape (rows, steps, units); the last ones are ``[:, -1]``.

    Raises:
        ValueError: another `cell`.

    Source: Cho et al., Learning phrase representations using RNN encoder-decoder, 2014
    (arXiv:1406.1078), with the reset gate after the product, as in cuDNN.
    """
    if cell not in ("tanh", "gru"):
        raise ValueError(f"recurrent: got cell {cell!r}, expected 'tanh' or 'gru'")
    units = u.type.shape[0] or u.shape[0]

    def step(given: Any, h: Any, u: Any) -> Any:
        product = h.dot(u)
        if cell == "tanh":
            return T.tanh(given + product)
        gates = T.sigmoid(given[:, : 2 * units] + product[:, : 2 * units])
        reset, keep = gates[:, :units], gates[:, units:]
        new = T.tanh(given[:, 2 * units :] + reset * product[:, 2 * units :])
        return keep * h + (1 - keep) * new

    given = (T.dot(x, w) + b).dimshuffle(1, 0, 2)
    start = T.zeros((x.shape[0], units), given.dtype)
    states = pytensor.scan(step, given, [start], [u], return_updates=False)
    return states.dimshuffle(1, 0, 2)
