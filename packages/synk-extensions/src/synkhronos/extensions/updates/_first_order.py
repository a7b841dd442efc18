"""Steps along the gradient: plain, with momentum, with Nesterov's momentum."""

from __future__ import annotations

from typing import Any

from synkhronos.extensions.updates._arguments import accepts_lr, check_params, pairs_of, scalar
from synkhronos.extensions.updates._flatten import (
    SplitUpdates,
    nonflat_grads,
    split_rule,
    zeros_like,
)


@accepts_lr
def sgd(loss_or_grads: Any, params: Any, learning_rate: Any) -> SplitUpdates:
    r"""Step against the gradient.

    .. math:: \theta \leftarrow \theta - \eta\, g

    Args:
        loss_or_grads: Scalar loss expression, or a list of one gradient expression per parameter.
        params: Shared variables, all of one floating-point dtype.
        learning_rate: :math:`\eta`, a number or Theano scalar; also accepted as ``lr``.

    Returns:
        The updates for the gradient, those for the parameters, and the flat gradient vector
        with the shape ``(total number of elements of params,)``.

    Raises:
        TypeError: The parameters have several dtypes or are not shared variables, or the loss is
            not a scalar expression; ``lr`` and ``learning_rate`` are both given.
        ValueError: No parameters, one of them twice, or gradients that do not fit them.

    Source: H. Robbins and S. Monro, "A Stochastic Approximation Method",
    Annals of Mathematical Statistics 22 (1951).
    """

    def move(param: Any, grad: Any, _state: Any, eta: Any) -> Any:
        return [(param, param - eta * grad)]

    return split_rule(loss_or_grads, params, move, learning_rate=learning_rate)


@accepts_lr
def sgd_nonflat(loss_or_grads: Any, params: Any, learning_rate: Any) -> SplitUpdates:
    """Like :func:`sgd`, with one gradient variable per parameter instead of a flat vector.

    Averaging many variables is slower than averaging one. Use this rule to measure the difference,
    for parameters of several dtypes, and for code that needs each gradient separately.

    Args:
        loss_or_grads, params, learning_rate: As for :func:`sgd`, with any floating-point dtypes.

    Returns:
        As :func:`sgd`, but the third is a *list* of shared variables, named "grad(W)", each with
        the shape, dtype and broadcastable pattern of its parameter. The collectives take lists.
    """
    params = check_params(params)
    stores, grads = nonflat_grads(loss_or_grads, params)
    steps = [
        (param, param - scalar(learning_rate, str(param.dtype), "learning_rate") * store)
        for param, store in zip(params, stores)
    ]
    return SplitUpdates(list(zip(stores, grads)), steps, stores)


@accepts_lr
def momentum(
    loss_or_grads: Any, params: Any, learning_rate: Any, momentum: Any = 0.9
) -> SplitUpdates:
    r"""Step along a velocity that remembers earlier gradients.

    .. math::
        v &\leftarrow \mu\, v - \eta\, g \\
        \theta &\leftarrow \theta + v

    Args:
        loss_or_grads, params, learning_rate: As for :func:`sgd`.
        momentum: :math:`\mu`, a number or Theano scalar. The larger, the longer the memory: a
            constant gradient ends in steps of :math:`\eta / (1 - \mu)`.

    Returns:
        As :func:`sgd`. The state is "velocity(W)" for each parameter.

    Source: B. T. Polyak, "Some methods of speeding up the convergence of iteration methods",
    USSR Computational Mathematics and Mathematical Physics 4 (1964).
    """

    def move(param: Any, grad: Any, state: Any, eta: Any, mu: Any) -> Any:
        velocity = state("velocity")
        v = mu * velocity - eta * grad
        return [(velocity, v), (param, param + v)]

    return split_rule(loss_or_grads, params, move, learning_rate=learning_rate, momentum=momentum)


@accepts_lr
def nesterov_momentum(
    loss_or_grads: Any, params: Any, learning_rate: Any, momentum: Any = 0.9
) -> SplitUpdates:
    r"""Step along a velocity, as seen from where the velocity is about to lead.

    .. math::
        v &\leftarrow \mu\, v - \eta\, g \\
        \theta &\leftarrow \theta + \mu\, v - \eta\, g

    The parameters hold the look-ahead point, at which the next gradient is taken, so that the
    gradient is the ordinary one of the loss (the change of variables is Bengio's).

    Arguments, result and state are those of :func:`momentum`.

    Sources: Y. Nesterov, "A method for solving the convex programming problem with convergence
    rate O(1/k^2)", Doklady 269 (1983); Y. Bengio et al., "Advances in optimizing recurrent
    networks", ICASSP (2013), equation 7.
    """

    def move(param: Any, grad: Any, state: Any, eta: Any, mu: Any) -> Any:
        velocity, step = state("velocity"), eta * grad
        v = mu * velocity - step
        return [(velocity, v), (param, param + mu * v - step)]

    return split_rule(loss_or_grads, params, move, learning_rate=learning_rate, momentum=momentum)


def apply_momentum(param_updates: Any, momentum: Any = 0.9) -> list[tuple[Any, Any]]:
    """Add momentum to the steps of your own rule.

    Args:
        param_updates: Pairs (shared variable, expression of its next value), without momentum.
        momentum: A number or Theano scalar.

    Returns:
        The updates of parameters and velocities; the step is that of :func:`momentum` for
        ``sgd``'s, to rounding.
    """
    updates = []
    for param, velocity, stepped, mu in _velocities(param_updates, momentum):
        moved = mu * velocity + stepped
        updates += [(velocity, moved - param), (param, moved)]
    return updates


def apply_nesterov_momentum(param_updates: Any, momentum: Any = 0.9) -> list[tuple[Any, Any]]:
    """Like :func:`apply_momentum`, with Nesterov's momentum: see :func:`nesterov_momentum`."""
    updates = []
    for param, velocity, stepped, mu in _velocities(param_updates, momentum):
        v = mu * velocity + stepped - param
        updates += [(velocity, v), (param, mu * v + stepped)]
    return updates


def _velocities(param_updates: Any, momentum: Any) -> list[tuple[Any, Any, Any, Any]]:
    pairs = pairs_of(param_updates)
    params = check_params([param for param, _ in pairs])
    velocities = [zeros_like(param, index, "velocity") for index, param in enumerate(params)]
    mus = [scalar(momentum, str(param.dtype), "momentum") for param in params]
    return list(zip(params, velocities, [stepped for _, stepped in pairs], mus))
