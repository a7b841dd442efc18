"""Rules with a separate step size for each element of each parameter."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Callable

import numpy as np

from synk_core.engine import T, library
from synkhronos.extensions.updates._arguments import accepts_lr, check_params, common_dtype, scalar
from synkhronos.extensions.updates._flatten import SplitUpdates, larger, split_rule


@accepts_lr
def adagrad(
    loss_or_grads: Any, params: Any, learning_rate: Any = 1.0, epsilon: Any = 1e-6
) -> SplitUpdates:
    r"""Divide the step by the root of the sum of all squared gradients so far.

    .. math::
        a &\leftarrow a + g^2 \\
        \theta &\leftarrow \theta - \eta\, g / \sqrt{a + \epsilon}

    Args:
        loss_or_grads, params, learning_rate: As for :func:`sgd`.
        epsilon: A small number against division by zero, inside the root.

    Returns:
        As :func:`sgd`. The state is "squares(W)" for each parameter.

    Source: J. Duchi, E. Hazan and Y. Singer, "Adaptive subgradient methods for online learning
    and stochastic optimization", JMLR 12 (2011).
    """

    def move(param: Any, grad: Any, state: Any, eta: Any, eps: Any) -> Any:
        squares = state("squares")
        a = squares + T.sqr(grad)
        return [(squares, a), (param, param - eta * grad / T.sqrt(a + eps))]

    return split_rule(loss_or_grads, params, move, learning_rate=learning_rate, epsilon=epsilon)


@accepts_lr
def rmsprop(
    loss_or_grads: Any,
    params: Any,
    learning_rate: Any = 1.0,
    rho: Any = 0.9,
    epsilon: Any = 1e-6,
) -> SplitUpdates:
    r"""Divide the step by the root of a moving average of squared gradients.

    .. math::
        a &\leftarrow \rho\, a + (1 - \rho)\, g^2 \\
        \theta &\leftarrow \theta - \eta\, g / \sqrt{a + \epsilon}

    Args:
        loss_or_grads, params, learning_rate: As for :func:`sgd`.
        rho: :math:`\rho`, how much of the average is kept at each step.
        epsilon: A small number against division by zero, inside the root.

    Returns:
        As :func:`sgd`. The state is "squares(W)" for each parameter.

    Source: T. Tieleman and G. Hinton, "Lecture 6.5: RMSProp", Neural Networks for Machine
    Learning, Coursera (2012).
    """

    def move(param: Any, grad: Any, state: Any, eta: Any, decay: Any, eps: Any) -> Any:
        squares = state("squares")
        a = decay * squares + (1 - decay) * T.sqr(grad)
        return [(squares, a), (param, param - eta * grad / T.sqrt(a + eps))]

    scalars = {"learning_rate": learning_rate, "rho": rho, "epsilon": epsilon}
    return split_rule(loss_or_grads, params, move, **scalars)


@accepts_lr
def adadelta(
    loss_or_grads: Any,
    params: Any,
    learning_rate: Any = 1.0,
    rho: Any = 0.95,
    epsilon: Any = 1e-6,
) -> SplitUpdates:
    r"""Scale the gradient by the ratio of average step size to average gradient size.

    .. math::
        a &\leftarrow \rho\, a + (1 - \rho)\, g^2 \\
        s &= g\, \sqrt{d + \epsilon} / \sqrt{a + \epsilon} \\
        d &\leftarrow \rho\, d + (1 - \rho)\, s^2 \\
        \theta &\leftarrow \theta - \eta\, s

    Args:
        loss_or_grads, params, learning_rate: As for :func:`sgd`. The paper has no learning rate: 1.
        rho: As for :func:`rmsprop`, of both averages.
        epsilon: A small number inside the roots. It also sets the size of the first step, so it
            must be well above the smallest number of the dtype.

    Returns:
        As :func:`sgd`. The state is "squares(W)" and "deltas(W)" for each parameter.

    Source: M. D. Zeiler, "ADADELTA: an adaptive learning rate method", arXiv:1212.5701 (2012).
    """

    def move(param: Any, grad: Any, state: Any, eta: Any, decay: Any, eps: Any) -> Any:
        squares, deltas = state("squares"), state("deltas")
        a = decay * squares + (1 - decay) * T.sqr(grad)
        step = grad * T.sqrt(deltas + eps) / T.sqrt(a + eps)
        d = decay * deltas + (1 - decay) * T.sqr(step)
        return [(squares, a), (deltas, d), (param, param - eta * step)]

    scalars = {"learning_rate": learning_rate, "rho": rho, "epsilon": epsilon}
    return split_rule(loss_or_grads, params, move, **scalars)


@accepts_lr
def adam(
    loss_or_grads: Any,
    params: Any,
    learning_rate: Any = 0.001,
    beta1: Any = 0.9,
    beta2: Any = 0.999,
    epsilon: Any = 1e-8,
) -> SplitUpdates:
    r"""Step along the average gradient, divided by its average size, both corrected for bias.

    .. math::
        t &\leftarrow t + 1 \\
        m &\leftarrow \beta_1\, m + (1 - \beta_1)\, g \\
        v &\leftarrow \beta_2\, v + (1 - \beta_2)\, g^2 \\
        \theta &\leftarrow \theta
            - \eta\, \frac{\sqrt{1 - \beta_2^t}}{1 - \beta_1^t}\, \frac{m}{\sqrt{v} + \epsilon}

    Args:
        loss_or_grads, params, learning_rate: As for :func:`sgd`.
        beta1, beta2: How much of the average gradient, and of its average square, is kept at each
            step.
        epsilon: A small number against division by zero. It stands outside the root, in the
            form that the paper gives at the end of its section 2 (as Lasagne has it).

    Returns:
        As :func:`sgd`. The state is "step", one counter for all parameters, and "mean(W)" and
        "squares(W)" for each.

    Source: D. P. Kingma and J. Ba, "Adam: A Method for Stochastic Optimization",
    arXiv:1412.6980 (2014).
    """

    def size_of(grad: Any, state: Any, beta: Any) -> Any:
        squares = state("squares")
        v = beta * squares + (1 - beta) * T.sqr(grad)
        return [(squares, v)], T.sqrt(v)

    return _adam(loss_or_grads, params, (learning_rate, beta1, beta2, epsilon), size_of)


@accepts_lr
def amsgrad(
    loss_or_grads: Any,
    params: Any,
    learning_rate: Any = 0.001,
    beta1: Any = 0.9,
    beta2: Any = 0.999,
    epsilon: Any = 1e-8,
) -> SplitUpdates:
    r"""Like :func:`adam`, with the largest average size so far: steps never grow again.

    .. math::
        t &\leftarrow t + 1 \\
        m &\leftarrow \beta_1\, m + (1 - \beta_1)\, g \\
        v &\leftarrow \beta_2\, v + (1 - \beta_2)\, g^2 \\
        u &\leftarrow \max(u, v) \\
        \theta &\leftarrow \theta
            - \eta\, \frac{\sqrt{1 - \beta_2^t}}{1 - \beta_1^t}\, \frac{m}{\sqrt{u} + \epsilon}

    The paper's algorithm 2 has neither the correction of the bias, the first fraction, nor
    :math:`\epsilon`. This is the form of Lasagne 0.2, to the letter. PyTorch's
    ``Adam(amsgrad=True)`` is the same but for :math:`\epsilon`, which it adds to
    :math:`\sqrt{u} / \sqrt{1 - \beta_2^t}`; with :math:`\epsilon = 0` they are equal. Both take
    the maximum before the bias is corrected.

    Args are those of :func:`adam`.

    Returns:
        As :func:`adam`; the state is "largest(W)" for each parameter as well.

    Source: S. J. Reddi, S. Kale and S. Kumar, "On the Convergence of Adam and Beyond", ICLR
    (2018), algorithm 2.
    """

    def size_of(grad: Any, state: Any, beta: Any) -> Any:
        squares, largest = state("squares"), state("largest")
        v = beta * squares + (1 - beta) * T.sqr(grad)
        u = larger(largest, v)
        return [(squares, v), (largest, u)], T.sqrt(u)

    return _adam(loss_or_grads, params, (learning_rate, beta1, beta2, epsilon), size_of)


@accepts_lr
def adamax(
    loss_or_grads: Any,
    params: Any,
    learning_rate: Any = 0.002,
    beta1: Any = 0.9,
    beta2: Any = 0.999,
    epsilon: Any = 1e-8,
) -> SplitUpdates:
    r"""Like :func:`adam`, with the decayed largest gradient instead of the average size.

    .. math::
        t &\leftarrow t + 1 \\
        m &\leftarrow \beta_1\, m + (1 - \beta_1)\, g \\
        u &\leftarrow \max(\beta_2\, u, |g|) \\
        \theta &\leftarrow \theta - \frac{\eta}{1 - \beta_1^t}\, \frac{m}{u + \epsilon}

    Args:
        loss_or_grads, params, learning_rate: As for :func:`sgd`.
        beta1, beta2: How much of the average and of the largest gradient is kept at each step.
        epsilon: A small number against division by zero (0 in the paper).

    Returns:
        As :func:`adam`, with "largest(W)" in place of "squares(W)".

    Source: the paper of :func:`adam`, section 7.
    """

    def size_of(grad: Any, state: Any, beta: Any) -> Any:
        largest = state("largest")
        u = larger(beta * largest, abs(grad))
        return [(largest, u)], u

    scalars = (learning_rate, beta1, beta2, epsilon)
    return _adam(loss_or_grads, params, scalars, size_of, is_square=False)


def _adam(
    loss_or_grads: Any,
    params: Any,
    scalars: Sequence[Any],
    size_of: Callable[[Any, Any, Any], Any],
    is_square: bool = True,
) -> SplitUpdates:
    """Step along the average gradient, divided by a size.

    ``size_of`` maps a gradient, its parameter's state and beta2 to updates of the state, and the
    size. ``is_square``: it is the root of an average, which needs a correction as well.
    """
    params = check_params(params)
    dtype, names = common_dtype(params), ("learning_rate", "beta1", "beta2", "epsilon")
    eta, b1, b2, eps = (scalar(value, dtype, name) for value, name in zip(scalars, names))
    step = library.shared(np.zeros((), dtype), name="step")
    t = step + 1
    rate = (eta * T.sqrt(1 - b2**t) if is_square else eta) / (1 - b1**t)

    def move(param: Any, grad: Any, state: Any) -> Any:
        mean = state("mean")
        m = b1 * mean + (1 - b1) * grad
        more, size = size_of(grad, state, b2)
        return [(mean, m), *more, (param, param - rate * m / (size + eps))]

    parts = split_rule(loss_or_grads, params, move)
    return parts._replace(param_updates=[(step, t), *parts.param_updates])
