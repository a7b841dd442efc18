"""One flat vector for the gradients of all parameters.

A collective over one large vector is faster than many over small ones: each has a fixed cost
(a barrier, a kernel launch), and a model has dozens of parameters.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from synk_core.engine import T, library, shared_like, with_pattern
from synkhronos.extensions.updates._arguments import (
    check_params,
    common_dtype,
    gradients,
    label,
    scalar,
)


class SplitUpdates(NamedTuple):
    """The two halves of an update rule, and the gradient to average between them."""

    grad_updates: list[Any]
    """Pairs (shared, expression) that compute the raw gradient into :attr:`flat_grad`."""

    param_updates: list[Any]
    """Pairs (shared, expression) that update parameters and optimiser state from there."""

    flat_grad: Any
    """The flat shared vector (a list of shared variables for ``sgd_nonflat``)."""


def split_rule(loss_or_grads: Any, params: Any, move: Any, **scalars: Any) -> SplitUpdates:
    """Return the result of a rule that moves each parameter by its own gradient and state.

    ``move(param, grad, state, *scalars)`` returns a parameter's updates: ``grad`` is its part of
    the flat vector; ``state(kind)`` makes a variable like it of zeros, named "kind(W)".
    """
    params = check_params(params)
    vector, flat_grad, grads = flat_unflat_grads(loss_or_grads, params)
    numbers = [scalar(value, vector.dtype, name) for name, value in scalars.items()]
    param_updates: list[Any] = []
    for index, (param, grad) in enumerate(zip(params, grads)):
        param_updates += move(param, grad, partial(zeros_like, param, index), *numbers)
    return SplitUpdates([(vector, flat_grad)], param_updates, vector)


def flatten_vars(variables: Sequence[Any]) -> Any:
    """Return a vector expression: the elements of all variables, in C order, end to end."""
    return T.concatenate([variable.flatten() for variable in variables])


def vars_flat_size(variables: Sequence[Any]) -> int:
    """Return how many elements these shared variables have together."""
    return int(sum(_value(variable).size for variable in variables))


def unflatten_vars(flat_var: Any, variables: Sequence[Any]) -> list[Any]:
    """Undo :func:`flatten_vars`: the parts of a vector, shaped as the shared variables are now."""
    return [
        with_pattern(flat_var[place].reshape(_value(variable).shape), variable)
        for variable, place in zip(variables, places(variables))
    ]


def flat_unflat_grads(loss_or_grads: Any, params: Any) -> tuple[Any, Any, list[Any]]:
    """Return helpers for your own rule; the gradients are one vector, to be averaged.

    ::

        def halving(loss, params):
            shared_grad, flat_grad, grads = flat_unflat_grads(loss, params)
            steps = [(param, param - 0.5 * grad) for param, grad in zip(params, grads)]
            return [(shared_grad, flat_grad)], steps, shared_grad

    Args, and errors, are those of :func:`~synkhronos.extensions.updates.sgd`.

    Returns:
        A shared vector of zeros of their dtype, the expression of the gradient that goes there,
        and for each parameter its part of the shared vector, in its shape.
    """
    params = check_params(params)
    zeros = np.zeros(vars_flat_size(params), common_dtype(params))
    vector = library.shared(zeros, name="flat_grad")
    # A vector that is known to have one element gets a broadcastable type of its own.
    flat_grad = with_pattern(flatten_vars(gradients(loss_or_grads, params)), vector)
    return vector, flat_grad, unflatten_vars(vector, params)


def nonflat_grads(loss_or_grads: Any, params: Any) -> tuple[list[Any], list[Any]]:
    """Return a shared variable of zeros and the gradient that goes there, for each parameter.

    The variables have the shape, dtype and broadcastable pattern of the parameters. To average
    many is slower than :func:`flat_unflat_grads`.
    """
    params = check_params(params)
    grads = gradients(loss_or_grads, params)
    return [zeros_like(param, i, "grad") for i, param in enumerate(params)], grads


def places(params: Sequence[Any]) -> list[slice]:
    """Return where in the flat vector the elements of each parameter are."""
    ends = np.cumsum([_value(param).size for param in params]).tolist()
    return [slice(start, end) for start, end in zip([0, *ends], ends)]


def zeros_like(param: Any, index: int, kind: str) -> Any:
    """Return a shared variable like ``param``, of zeros, with a name such as "velocity(W)"."""
    zeros = np.zeros(_value(param).shape, param.dtype)
    return shared_like(param, zeros, f"{kind}({label(param, index)})")


def _value(param: Any) -> Any:
    """Return the parameter's value where it lives (no copy off a GPU), for shape and size."""
    return param.get_value(borrow=True, return_internal_type=True)


def larger(x: Any, y: Any) -> Any:
    """Return the larger of ``x`` and ``y``, element by element; ``y`` where either is nan."""
    # T.maximum is C code that calls nan(""), which OpenCL does not have: the process would end.
    return T.switch(T.gt(x, y), x, y)
