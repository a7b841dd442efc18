"""Wrappers that pull parameters towards zero: through the gradient, or separate from the rule."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from synk_core.engine import T
from synkhronos.extensions.updates._arguments import scalar
from synkhronos.extensions.updates._flatten import SplitUpdates, places
from synkhronos.extensions.updates._wrapping import (
    UpdateRule,
    check_choice,
    check_number,
    chosen,
    name_of,
    stores,
    with_gradients,
    with_values,
    wrap,
)


def weight_decay(rule: UpdateRule, decay: Any, params: Any = None) -> UpdateRule:
    r"""Add a multiple of each parameter to its gradient before ``rule`` sees it (L2 penalty).

    .. math:: g \leftarrow g + \lambda\, \theta

    It has the effect of adding :math:`\frac{\lambda}{2} \sum \theta^2` to the loss, but the
    reported loss does not include it. It equals ``weight_decay=`` of PyTorch's optimisers, except
    ``AdamW`` (see :func:`decoupled_weight_decay`), and twice the coefficient of Lasagne's ``l2``.

    ::

        weights = lasagne.layers.get_all_params(network, regularizable=True)
        rule = updates.weight_decay(updates.momentum, 1e-4, params=weights)

    Args:
        rule: An update rule, for instance :func:`momentum`; may be a wrapped one.
        decay: :math:`\lambda`, a number of at least 0 or a Theano scalar.
        params: Which parameters: shared variables among those of the rule, or a function that
            takes a parameter and returns whether to include it (``lambda param: param.ndim > 1``).
            By default, all.

    Returns:
        A rule with the arguments and results of ``rule``.

    Raises:
        TypeError: ``rule`` is not a function, ``decay`` neither a number nor a Theano scalar, or
            ``params`` none of the above.
        ValueError: ``decay`` is negative or not a scalar; when the rule is called: ``params`` names
            a variable that the rule does not have or selects none, or the rule's flat vector
            does not have the size of its parameters.

    Source: A. Krogh and J. A. Hertz, "A Simple Weight Decay Can Improve Generalization", NIPS 4
    (1991).
    """
    name = "weight_decay"
    check_number(decay, f"{name}: decay", least=0)
    choice = check_choice(params, name)

    def change(parts: SplitUpdates, all_params: list[Any], _rate: Any) -> SplitUpdates:
        decayed = set(chosen(all_params, choice, name))
        decays = [
            (index, scalar(decay, str(param.dtype), "decay") * param)
            for index, param in enumerate(all_params)
            if param in decayed
        ]
        if isinstance(parts.flat_grad, list):
            gradients = stores(parts)
            for index, pull in decays:
                gradients[index] = gradients[index] + pull
            return with_gradients(parts, gradients)
        vector = parts.flat_grad
        slices = places(all_params)
        _check_size(vector, slices, rule)
        for index, pull in decays:
            vector = T.inc_subtensor(vector[slices[index]], pull.flatten())
        return with_gradients(parts, [vector])

    return wrap(rule, name, change)


def decoupled_weight_decay(
    rule: UpdateRule, decay: Any, params: Any = None, *, times_learning_rate: bool = True
) -> UpdateRule:
    r"""Shrink each parameter separately from the step of ``rule`` (AdamW).

    .. math:: \theta \leftarrow \theta_\mathrm{rule} - \eta\, \lambda\, \theta

    where :math:`\theta_\mathrm{rule}` is the rule's new value of :math:`\theta`. Rules that scale
    the gradient (adam, rmsprop and so on) scale a coupled decay away; this one they leave alone.
    ``decoupled_weight_decay(adam, decay)`` is PyTorch's ``AdamW(weight_decay=decay)``.

    Args:
        rule, decay, params: As for :func:`weight_decay`.
        times_learning_rate: Whether :math:`\eta` is the learning rate that the rule is called
            with, its default included. If not it is 1, as in the paper, where ``decay`` takes
            part in the schedule by a factor of its own.

    Raises:
        As :func:`weight_decay`; TypeError when the rule is called: it has no learning rate.

    Source: I. Loshchilov and F. Hutter, "Decoupled Weight Decay Regularization", ICLR (2019),
    arXiv:1711.05101.
    """
    name = "decoupled_weight_decay"
    check_number(decay, f"{name}: decay", least=0)
    choice = check_choice(params, name)

    def change(parts: SplitUpdates, all_params: list[Any], rate: Any) -> SplitUpdates:
        decayed = set(chosen(all_params, choice, name))
        eta = rate() if times_learning_rate else 1

        def new_value(target: Any, value: Any) -> Any:
            if target not in decayed:
                return value
            dtype = str(target.dtype)
            amount = scalar(eta, dtype, "learning_rate") * scalar(decay, dtype, "decay")
            return value - amount * target

        return with_values(parts, new_value)

    return wrap(rule, name, change)


def _check_size(vector: Any, slices: Sequence[slice], rule: UpdateRule) -> None:
    size = int(vector.get_value(borrow=True, return_internal_type=True).size)
    if size != slices[-1].stop:
        raise ValueError(
            f"the flat vector of rule {name_of(rule)!r} has {size} elements; expected "
            f"{slices[-1].stop}, the gradients of its parameters end to end in their order"
        )
