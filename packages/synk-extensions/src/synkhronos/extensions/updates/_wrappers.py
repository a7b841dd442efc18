"""Wrappers, which change the gradient before a rule gets it, or the parameters after its step."""

from __future__ import annotations

import numbers
from collections.abc import Sequence
from typing import Any

from synk_core.engine import T, Variable, shared_like
from synkhronos.extensions.updates._arguments import label, scalar
from synkhronos.extensions.updates._flatten import SplitUpdates, larger, places, vars_flat_size
from synkhronos.extensions.updates._wrapping import (
    UpdateRule,
    check_number,
    name_of,
    stores,
    with_gradients,
    wrap,
    wrap_values,
)


def clip_by_global_norm(rule: UpdateRule, max_norm: Any) -> UpdateRule:
    r"""Scale the whole gradient down to a largest Euclidean norm before ``rule`` gets it.

    .. math:: g \leftarrow g\, \frac{c}{\max(c, \lVert g \rVert_2)}

    The norm is that of all parameters' gradients together, averaged over the ranks. So all ranks
    use one factor, that of the whole batch. ``flat_grad`` keeps the unscaled gradient.

    A shorter gradient is unchanged, to the last bit. The norm is summed in float64, because the
    squares of an exploding gradient exceed float32. PyTorch's ``clip_grad_norm_`` divides by the
    norm plus 1e-6, Lasagne's ``total_norm_constraint`` by the norm plus 1e-7; apart from that all
    are equal. A nan in the gradient makes all parameters nan.

    Args:
        rule: An update rule, for instance :func:`adam`; may be a wrapped one.
        max_norm: :math:`c`, a positive number or Theano scalar.

    Returns:
        A rule with the arguments and results of ``rule``.

    Raises:
        TypeError: ``rule`` is not a function, or ``max_norm`` neither a number nor a Theano scalar.
        ValueError: ``max_norm`` is not positive, or no scalar.

    Source: R. Pascanu, T. Mikolov and Y. Bengio, "On the difficulty of training recurrent neural
    networks", ICML (2013), algorithm 1.
    """
    name = "clip_by_global_norm"
    limit = scalar(check_number(max_norm, f"{name}: max_norm", above=0), "float64", "max_norm")

    def change(parts: SplitUpdates, *_: Any) -> SplitUpdates:
        squares = [T.sum(T.sqr(T.cast(store, "float64"))) for store in stores(parts)]
        factor = limit / larger(limit, T.sqrt(sum(squares)))
        scaled = [store * T.cast(factor, store.dtype) for store in stores(parts)]
        return with_gradients(parts, scaled)

    return wrap(rule, name, change)


def clip_by_value(rule: UpdateRule, max_value: Any) -> UpdateRule:
    r"""Bound each element of the gradient to [-max_value, max_value] before ``rule`` gets it.

    .. math:: g \leftarrow \min(\max(g, -c), c)

    As in :func:`clip_by_global_norm` this bounds the gradient averaged over the ranks, and
    ``flat_grad`` keeps it as it was. The direction of the gradient changes. PyTorch's
    ``clip_grad_value_`` does the same.

    Args, returns and errors are those of :func:`clip_by_global_norm`; ``max_value`` is :math:`c`.

    Source: T. Mikolov, "Statistical Language Models Based on Neural Networks", PhD thesis, Brno
    University of Technology (2012).
    """
    name = "clip_by_value"
    limit = check_number(max_value, f"{name}: max_value", above=0)

    def clipped(store: Any) -> Any:
        bound = scalar(limit, str(store.dtype), "max_value")
        return T.clip(store, -bound, bound)

    def change(parts: SplitUpdates, *_: Any) -> SplitUpdates:
        return with_gradients(parts, [*map(clipped, stores(parts))])

    return wrap(rule, name, change)


def weight_decay(rule: UpdateRule, decay: Any, params: Any = None) -> UpdateRule:
    r"""Add a multiple of each parameter to its gradient before ``rule`` gets it (L2 penalty).

    .. math:: g \leftarrow g + \lambda\, \theta

    This adds :math:`\frac{\lambda}{2} \sum \theta^2` to the loss, but not to its reported value. It
    equals ``weight_decay=`` of PyTorch's optimisers, except ``AdamW`` (see
    :func:`decoupled_weight_decay`), and twice the coefficient of Lasagne's ``l2``.

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
        TypeError: ``rule``, ``decay`` or ``params`` is none of the above.
        ValueError: ``decay`` is negative or not a scalar; when the rule is called: ``params`` names
            a variable that the rule does not have or selects none, or the rule's flat vector
            does not have the size of its parameters.

    Source: A. Krogh and J. A. Hertz, "A Simple Weight Decay Can Improve Generalization", NIPS 4
    (1991).
    """
    name = "weight_decay"
    check_number(decay, f"{name}: decay", least=0)

    def change(
        parts: SplitUpdates, all_params: list[Any], chosen: list[Any], _rate: Any
    ) -> SplitUpdates:
        decayed, gradients, slices = set(chosen), stores(parts), places(all_params)
        is_flat = not isinstance(parts.flat_grad, list)
        size = vars_flat_size(gradients)
        if is_flat and size != slices[-1].stop:
            raise ValueError(
                f"the flat vector of rule {name_of(rule)!r} has {size} elements; expected "
                f"{slices[-1].stop}, the gradients of its parameters end to end in their order"
            )
        for index, param in enumerate(all_params):
            if param in decayed:
                pull = scalar(decay, str(param.dtype), "decay") * param
                if is_flat:
                    part = gradients[0][slices[index]]
                    gradients[0] = T.inc_subtensor(part, pull.flatten())
                else:
                    gradients[index] = gradients[index] + pull
        return with_gradients(parts, gradients)

    return wrap(rule, name, change, params)


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

    def new_value(param: Any, value: Any, rate: Any) -> Any:
        dtype, eta = str(param.dtype), rate() if times_learning_rate else 1
        amount = scalar(eta, dtype, "learning_rate") * scalar(decay, dtype, "decay")
        return value - amount * param

    return wrap_values(rule, name, params, new_value)


def norm_constraint(
    rule: UpdateRule, max_norm: Any, norm_axes: Any = None, params: Any = None
) -> UpdateRule:
    r"""After the step of ``rule``, scale each unit's weights down to a largest Euclidean norm.

    .. math:: w \leftarrow w\, \frac{c}{\max(c, \lVert w \rVert_2)}

    for the weights :math:`w` of each unit. Shorter ones are left alone, to the last bit.
    Lasagne's ``norm_constraint`` divides by the norm plus 1e-7, for those too; otherwise they do
    the same. State of the rule (velocities, averages) is not changed.

    Args:
        rule: As for :func:`weight_decay`.
        max_norm: :math:`c`, a positive number or Theano scalar.
        norm_axes: Axes over which a norm is taken, an integer or several; a unit is what has one
            index along the others. By default: axis 0 of a matrix with the shape
            ``(inputs, units)``; all axes but the first of what has 3 to 5 dimensions, such as
            ``(filters, channels, rows, columns)``.
        params: Which parameters, as for :func:`weight_decay`. By default, those with two
            dimensions or more: weights, not biases.

    Raises:
        As :func:`weight_decay`; TypeError: ``norm_axes`` are not integers; ValueError when the rule
        is called: a parameter does not have the axes, or needs ``norm_axes``.

    Source: N. Srivastava et al., "Dropout: A Simple Way to Prevent Neural Networks from
    Overfitting", JMLR 15 (2014), section 5.1.
    """
    name = "norm_constraint"
    check_number(max_norm, f"{name}: max_norm", above=0)
    axes = None if norm_axes is None else _axes(norm_axes)

    def new_value(param: Any, value: Any, _rate: Any) -> Any:
        limit = scalar(max_norm, str(param.dtype), "max_norm")
        norms = T.sqrt(T.sum(T.sqr(value), axis=_axes_of(param, axes), keepdims=True))
        return value * (limit / larger(limit, norms))

    if params is None:
        params = lambda param: param.ndim >= 2  # noqa: E731 - what a program would write
    return wrap_values(rule, name, params, new_value)


def value_constraint(
    rule: UpdateRule, low: Any = None, high: Any = None, params: Any = None
) -> UpdateRule:
    r"""After the step of ``rule``, bound each element of the parameters to [low, high].

    .. math:: \theta \leftarrow \min(\max(\theta, a), b)

    ``value_constraint(rule, low=0)`` keeps parameters from becoming negative. State of the rule
    (velocities, averages) is not changed.

    Args:
        rule: As for :func:`weight_decay`.
        low: :math:`a`, a number or Theano scalar; no bound by default.
        high: :math:`b`, the same. If ``low`` is larger in a call, all elements become ``high``.
        params: Which parameters, as for :func:`weight_decay`.

    Raises:
        As :func:`weight_decay`; TypeError: there is no bound; ValueError: ``low`` is larger than
        ``high``.
    """
    name = "value_constraint"
    if low is None and high is None:
        raise TypeError(f"{name}() got neither low nor high; expected at least one of them")
    for bound, argument in [(low, "low"), (high, "high")]:
        if bound is not None:
            check_number(bound, f"{name}: {argument}")
    if isinstance(low, numbers.Real) and isinstance(high, numbers.Real) and low > high:
        raise ValueError(f"{name}() got low={low!r} and high={high!r}; expected low <= high")

    def new_value(param: Any, value: Any, _rate: Any) -> Any:
        if low is not None:
            value = larger(scalar(low, str(param.dtype), "low"), value)
        if high is not None:
            most = scalar(high, str(param.dtype), "high")
            value = T.switch(T.lt(most, value), most, value)  # as in larger()
        return value

    return wrap_values(rule, name, params, new_value)


def _axes(norm_axes: Any) -> tuple[int, ...]:
    axes: Sequence[Any] = [norm_axes] if isinstance(norm_axes, numbers.Integral) else norm_axes
    if not isinstance(axes, (list, tuple)) or not all(
        isinstance(axis, numbers.Integral) for axis in axes
    ):
        raise TypeError(
            f"norm_constraint: norm_axes is {norm_axes!r}; expected an integer or several, such as "
            "(1, 2, 3) for filters with the shape (filters, channels, rows, columns)"
        )
    return tuple(int(axis) for axis in axes)


def _axes_of(param: Any, axes: tuple[int, ...] | None) -> tuple[int, ...]:
    """Return the axes, counted from the front, over which this parameter's norms are taken."""
    ndim, called = int(param.ndim), f"the parameter {param} with {param.ndim} dimensions"
    if axes is None:
        if not 2 <= ndim <= 5:
            raise ValueError(
                f"norm_constraint() got {called}, for which there is no usual axis; expected 2 to "
                "5 dimensions, or norm_axes (params= chooses among the parameters)"
            )
        return (0,) if ndim == 2 else tuple(range(1, ndim))
    positive = tuple(sorted({axis % ndim for axis in axes if -ndim <= axis < ndim}))
    if not axes or len(positive) != len(axes):
        raise ValueError(
            f"norm_constraint() got norm_axes={axes} for {called}; expected different axes "
            f"between {-ndim} and {ndim - 1} (params= chooses among the parameters)"
        )
    return positive


def moving_average(rule: UpdateRule, decay: Any = 0.999, params: Any = None) -> UpdateRule:
    r"""After the step of ``rule``, move an average of each parameter towards its new value.

    .. math:: a \leftarrow \beta\, a + (1 - \beta)\, \theta

    It begins at the parameter's value when the rule is called, so it needs no correction. The steps
    are those of ``rule``. The averages often generalise better than the last parameters; they
    are shared variables named "average(W)", equal on all ranks, and part of checkpoints. The new
    rule has them as a dict ``averages`` from each parameter to its average, those of the last call.
    Validate and save by them::

        rule = updates.moving_average(updates.adam, 0.999)
        train = make_train_function(loss, params, [x, y], rule, learning_rate=1e-3)
        validate = synk.function([x, y], loss, givens=rule.averages)
        save_weights("averages.npz", {p.name: a for p, a in rule.averages.items()})

    Make it the outermost wrapper of those that change the parameters after the rule, such as
    :func:`norm_constraint`: it averages the values that it gets. If you set the parameters
    otherwise, such as by ``load_weights()``, set the averages as well. With a rule of
    :mod:`synkhronos.extensions.sync`, each rank averages its own parameters.

    Args:
        rule: As for :func:`weight_decay`.
        decay: :math:`\beta`, a number from 0 to below 1, or a Theano scalar. The average is about
            that of the last :math:`1 / (1 - \beta)` steps.
        params: Which parameters, as for :func:`weight_decay`.

    Returns:
        A rule with the arguments and results of ``rule``, and the dict ``averages``.

    Raises:
        As :func:`weight_decay`.

    Source: B. T. Polyak and A. B. Juditsky, "Acceleration of stochastic approximation by
    averaging", SIAM Journal on Control and Optimization 30 (1992), with exponential weights.
    """
    name = "moving_average"
    check_number(decay, f"{name}: decay", least=0)
    if not isinstance(decay, Variable) and decay >= 1:
        raise ValueError(f"{name}: decay is {decay!r}; expected a number below 1")
    averages: dict[Any, Any] = {}

    def change(parts: SplitUpdates, _all: Any, chosen: list[Any], _rate: Any) -> SplitUpdates:
        averages.clear()
        moves, values = [], dict(parts.param_updates)
        for index, param in enumerate(chosen):
            average = shared_like(param, param.get_value(), f"average({label(param, index)})")
            averages[param] = average
            beta, one = (scalar(number, str(param.dtype), "decay") for number in (decay, 1))
            moves.append((average, beta * average + (one - beta) * values.get(param, param)))
        return parts._replace(param_updates=[*parts.param_updates, *moves])

    changed: Any = wrap(rule, name, change, params)
    changed.averages = averages
    return changed
