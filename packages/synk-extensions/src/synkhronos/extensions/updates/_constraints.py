"""Wrappers that bring parameters back into a permitted set after the step of a rule."""

from __future__ import annotations

import numbers
from collections.abc import Sequence
from typing import Any

from synk_core.engine import T
from synkhronos.extensions.updates._arguments import label, scalar
from synkhronos.extensions.updates._elementwise import larger, smaller
from synkhronos.extensions.updates._flatten import SplitUpdates
from synkhronos.extensions.updates._wrapping import (
    UpdateRule,
    check_choice,
    check_number,
    chosen,
    with_values,
    wrap,
)


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
        params: Which parameters: shared variables among those of the rule, or a function that
            takes a parameter and returns whether to include it. By default, those with two
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
    choice = check_choice(_is_weight if params is None else params, name)

    def change(parts: SplitUpdates, all_params: list[Any], _rate: Any) -> SplitUpdates:
        over = {
            param: _axes_of(param, label(param, index), axes)
            for index, param in enumerate(chosen(all_params, choice, name))
        }

        def new_value(target: Any, value: Any) -> Any:
            if target not in over:
                return value
            limit = scalar(max_norm, str(target.dtype), "max_norm")
            norms = T.sqrt(T.sum(T.sqr(value), axis=over[target], keepdims=True))
            return value * (limit / larger(limit, norms))

        return with_values(parts, new_value)

    return wrap(rule, name, change)


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
    choice = check_choice(params, name)

    def change(parts: SplitUpdates, all_params: list[Any], _rate: Any) -> SplitUpdates:
        bounded = set(chosen(all_params, choice, name))

        def new_value(target: Any, value: Any) -> Any:
            if target not in bounded:
                return value
            if low is not None:
                value = larger(scalar(low, str(target.dtype), "low"), value)
            if high is not None:
                value = smaller(scalar(high, str(target.dtype), "high"), value)
            return value

        return with_values(parts, new_value)

    return wrap(rule, name, change)


def _is_weight(param: Any) -> bool:
    return bool(param.ndim >= 2)


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


def _axes_of(param: Any, called: str, axes: tuple[int, ...] | None) -> tuple[int, ...]:
    """Return the axes, counted from the front, over which this parameter's norms are taken."""
    ndim = int(param.ndim)
    if axes is None:
        if ndim == 2:
            return (0,)
        if 3 <= ndim <= 5:
            return tuple(range(1, ndim))
        raise ValueError(
            f"norm_constraint() got the parameter {called} with {ndim} dimensions, for which there "
            "is no usual axis; expected 2 to 5 dimensions, or norm_axes (params= chooses among "
            "the parameters)"
        )
    positive = tuple(sorted({axis % ndim for axis in axes if -ndim <= axis < ndim}))
    if not axes or len(positive) != len(axes):
        raise ValueError(
            f"norm_constraint() got norm_axes={axes} for the parameter {called} with {ndim} "
            f"dimensions; expected different axes between {-ndim} and {ndim - 1} (params= chooses "
            "among the parameters)"
        )
    return positive
