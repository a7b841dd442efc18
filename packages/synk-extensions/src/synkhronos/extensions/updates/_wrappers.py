r"""Wrappers: what changes the gradient before a rule sees it, or the parameters after its step.

A wrapper changes the result of its rule, so it works with any function of that interface, not only
the rules of this package. The expressions in ``param_updates`` read the stored gradient: to change
the gradient, replace that variable by another expression; to change the step, replace a parameter's
new value by another expression.
"""

from __future__ import annotations

import functools
import math
import numbers
from collections.abc import Sequence
from typing import Any, Callable

from synk_core.engine import T, Variable, clone
from synkhronos.extensions.updates._arguments import check_params, label, scalar
from synkhronos.extensions.updates._flatten import SplitUpdates, larger, places

UpdateRule = Callable[..., Any]
"""``rule(loss_or_grads, params, ...) -> (grad_updates, param_updates, flat_grad)``."""


def clip_by_global_norm(rule: UpdateRule, max_norm: Any) -> UpdateRule:
    r"""Scale the whole gradient down to a largest Euclidean norm before ``rule`` sees it.

    .. math:: g \leftarrow g\, \frac{c}{\max(c, \lVert g \rVert_2)}

    The norm is that of all parameters' gradients together, averaged over the ranks: it is computed
    in the second half of the step, so that all ranks use the same factor, that of the whole batch.
    ``flat_grad`` keeps the unscaled gradient.

    A shorter gradient is unchanged, to the last bit. The norm is summed in float64 for every dtype
    of the parameters, since the squares of an exploding gradient quickly exceed float32. PyTorch's
    ``clip_grad_norm_`` divides by the norm plus 1e-6 and Lasagne's ``total_norm_constraint`` by the
    norm plus 1e-7; apart from that all are equal. A nan in the gradient makes all parameters nan.

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
    limit = scalar(_checked_number(max_norm, f"{name}: max_norm", above=0), "float64", "max_norm")

    def change(parts: SplitUpdates, _params: list[Any]) -> SplitUpdates:
        stores = _stores(parts)
        squares = [T.sum(T.sqr(T.cast(store, "float64"))) for store in stores]
        factor = limit / larger(limit, T.sqrt(sum(squares)))
        return _with_gradients(parts, [store * T.cast(factor, store.dtype) for store in stores])

    return _wrap(rule, name, change)


def weight_decay(rule: UpdateRule, decay: Any, params: Any = None) -> UpdateRule:
    r"""Add a multiple of each parameter to its gradient before ``rule`` sees it (L2 penalty).

    .. math:: g \leftarrow g + \lambda\, \theta

    It has the effect of adding :math:`\frac{\lambda}{2} \sum \theta^2` to the loss, but the
    reported loss does not include it. It equals ``weight_decay=`` of PyTorch's optimisers, except
    ``AdamW``, and twice the coefficient of Lasagne's ``l2``.

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
    _checked_number(decay, f"{name}: decay", least=0)
    choice = _checked_choice(params, name)

    def change(parts: SplitUpdates, all_params: list[Any]) -> SplitUpdates:
        among = set(_chosen(all_params, choice, name))
        pulls = {
            index: scalar(decay, str(param.dtype), "decay") * param
            for index, param in enumerate(all_params)
            if param in among
        }
        stores, slices = _stores(parts), places(all_params)
        if isinstance(parts.flat_grad, list):
            changed = [g + pulls[i] if i in pulls else g for i, g in enumerate(stores)]
            return _with_gradients(parts, changed)
        (vector,) = stores
        size = int(vector.get_value(borrow=True, return_internal_type=True).size)
        if size != slices[-1].stop:
            raise ValueError(
                f"the flat vector of rule {_name_of(rule)!r} has {size} elements; expected "
                f"{slices[-1].stop}, the gradients of its parameters end to end in their order"
            )
        for index, pull in pulls.items():
            vector = T.inc_subtensor(vector[slices[index]], pull.flatten())
        return _with_gradients(parts, [vector])

    return _wrap(rule, name, change)


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
    _checked_number(max_norm, f"{name}: max_norm", above=0)
    axes = None if norm_axes is None else _axes(norm_axes)
    choice = (lambda param: param.ndim >= 2) if params is None else _checked_choice(params, name)

    def constrained(param: Any, value: Any) -> Any:
        limit = scalar(max_norm, str(param.dtype), "max_norm")
        norms = T.sqrt(T.sum(T.sqr(value), axis=_axes_of(param, axes), keepdims=True))
        return value * (limit / larger(limit, norms))

    def change(parts: SplitUpdates, all_params: list[Any]) -> SplitUpdates:
        among = set(_chosen(all_params, choice, name))
        pairs = parts.param_updates
        changed = [(t, constrained(t, value) if t in among else value) for t, value in pairs]
        return parts._replace(param_updates=changed)

    return _wrap(rule, name, change)


def three_parts(rule: UpdateRule, parts: Any) -> SplitUpdates:
    """Return ``parts``, the result of a rule, if they are three."""
    if not isinstance(parts, tuple) or len(parts) != 3:
        raise TypeError(
            f"update rule {_name_of(rule)!r} returned a {type(parts).__name__}; expected "
            "(grad_updates, param_updates, flat_grad). The rules of lasagne.updates do not split a "
            "step: use the rule of that name in synkhronos.extensions.updates"
        )
    grad_updates, param_updates, flat_grad = parts
    pairs = param_updates.items() if hasattr(param_updates, "items") else param_updates
    return SplitUpdates(list(grad_updates), list(pairs), flat_grad)


def _wrap(
    rule: UpdateRule, wrapper: str, change: Callable[[SplitUpdates, list[Any]], SplitUpdates]
) -> UpdateRule:
    """Return a rule that applies ``rule``, then ``change`` to its three parts and its parameters.

    ``wrapper`` is the wrapper's name, for messages and for the new rule's name.
    """
    if not callable(rule) or isinstance(rule, Variable):
        raise TypeError(
            f"{wrapper}() got a {type(rule).__name__} as the rule; expected a function such as "
            f"synkhronos.extensions.updates.adam, not yet called: {wrapper}(adam, ...)(loss, "
            "params, learning_rate=...)"
        )

    @functools.wraps(rule)
    def wrapped(loss_or_grads: Any, params: Any, *args: Any, **kwargs: Any) -> SplitUpdates:
        params = check_params(params)
        return change(three_parts(rule, rule(loss_or_grads, params, *args, **kwargs)), params)

    wrapped.__name__ = wrapped.__qualname__ = f"{wrapper}({_name_of(rule)})"
    return wrapped


def _stores(parts: SplitUpdates) -> list[Any]:
    """Return the variables that hold the gradient: the flat vector, or one for each parameter."""
    return list(parts.flat_grad) if isinstance(parts.flat_grad, list) else [parts.flat_grad]


def _with_gradients(parts: SplitUpdates, gradients: Sequence[Any]) -> SplitUpdates:
    """Return ``parts`` whose second half reads ``gradients`` instead of the stored ones."""
    # On a GPU the variable's type is not the one that an expression of it has.
    replace = [
        (store, store.type.filter_variable(gradient))
        for store, gradient in zip(_stores(parts), gradients)
    ]
    targets, values = zip(*parts.param_updates)
    return parts._replace(param_updates=list(zip(targets, clone(list(values), replace))))


def _name_of(rule: UpdateRule) -> str:
    """Return the rule's name, through ``functools.partial``."""
    while isinstance(rule, functools.partial):
        rule = rule.func
    return str(getattr(rule, "__name__", type(rule).__name__))


def _checked_number(
    value: Any, name: str, least: float | None = None, above: float | None = None
) -> Any:
    """Return a number of at least ``least`` or larger than ``above``, or a Theano scalar."""
    scalar(value, "float64", name)
    if isinstance(value, Variable):
        return value
    bound = f"larger than {above}" if above is not None else f"of at least {least}"
    good = value > above if above is not None else value >= least
    if math.isnan(value) or not good:
        raise ValueError(f"{name} is {value!r}; expected a number {bound}")
    return value


def _checked_choice(choice: Any, wrapper: str) -> Any:
    """Return a choice of parameters in a form that can be read more than once.

    It is None for all of them, shared variables (one or several), or a function of a parameter.
    """
    if choice is None or (callable(choice) and not isinstance(choice, Variable)):
        return choice
    is_several = hasattr(choice, "__iter__") and not isinstance(choice, Variable)
    choice = list(choice) if is_several else [choice]
    for item in choice:
        if not isinstance(item, Variable):
            raise TypeError(
                f"{wrapper}() got {item!r} of type {type(item).__name__} in its params; expected "
                "shared variables, for instance lasagne.layers.get_all_params(network, "
                "regularizable=True), or a function such as lambda param: param.ndim > 1"
            )
    return choice


def _chosen(params: Sequence[Any], choice: Any, wrapper: str) -> list[Any]:
    """Return those of ``params`` that a checked choice selects."""
    if choice is None:
        return list(params)
    selected = [param for param in params if choice(param)] if callable(choice) else choice
    names = ", ".join(label(param, index) for index, param in enumerate(params))
    for index, param in enumerate(selected):
        if not any(param is known for known in params):
            raise ValueError(
                f"{wrapper}() got {label(param, index)} in its params, which is not among "
                f"the parameters that the rule moves: {names}; take it out, or give it to the rule "
                "as well"
            )
    if not selected:
        raise ValueError(
            f"the params of {wrapper}() select none of the rule's parameters {names}; "
            "expected at least one (omit the wrapper if there is none)"
        )
    return list(selected)


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
