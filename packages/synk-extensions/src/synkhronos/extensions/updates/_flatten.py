"""One flat vector for the gradients of all parameters.

A collective over one large vector is faster than many over small ones: each has a fixed cost
(a barrier, a kernel launch), and a model has dozens of parameters.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any, Callable, NamedTuple

import numpy as np

from synk_core.engine import T, library, shared_like, with_pattern
from synkhronos.extensions.updates._arguments import check_params, common_dtype, gradients, label


class SplitUpdates(NamedTuple):
    """The two halves of an update rule, and the gradient to average between them."""

    grad_updates: list[Any]
    """Pairs (shared, expression) that compute the raw gradient into :attr:`flat_grad`."""

    param_updates: list[Any]
    """Pairs (shared, expression) that update parameters and optimiser state from there."""

    flat_grad: Any
    """The flat shared vector (a list of shared variables for ``sgd_nonflat``)."""


class FlatGradient:
    """The gradients of several parameters, end to end in one shared vector.

    Attributes:
        vector: Shared variable with the shape ``(total number of elements,)``, named "flat_grad".
        updates: The one update that computes the gradient into :attr:`vector`.
        dtype: The dtype of the parameters and of the vector.

    Iterating yields ``(param, grad, state)`` for each parameter: ``grad`` is the parameter's part
    of the vector in the parameter's shape, and ``state(kind)`` makes a shared variable of zeros
    of the parameter's shape, dtype and broadcastable pattern, named ``kind(name of parameter)``.
    """

    def __init__(self, loss_or_grads: Any, params: Any) -> None:
        self._params = check_params(params)
        self.dtype = common_dtype(self._params)
        grads = gradients(loss_or_grads, self._params)
        zeros = np.zeros(vars_flat_size(self._params), self.dtype)
        self.vector = library.shared(zeros, name="flat_grad")
        # A vector that is known to have one element gets a broadcastable type of its own.
        self.updates = [(self.vector, with_pattern(flatten_vars(grads), self.vector))]

    def __iter__(self) -> Iterator[tuple[Any, Any, Callable[[str], Any]]]:
        for index, part in enumerate(unflatten_vars(self.vector, self._params)):
            yield self._params[index], part, partial(self._state, index)

    def _state(self, index: int, kind: str) -> Any:
        param = self._params[index]
        return zeros_like(param, f"{kind}({label(param, index)})")

    def scalar_state(self, name: str) -> Any:
        """Return a new shared scalar 0, one for all parameters, of their dtype."""
        return library.shared(np.zeros((), self.dtype), name=name)

    def split(self, param_updates: Sequence[tuple[Any, Any]]) -> SplitUpdates:
        """Return the result of a rule."""
        return SplitUpdates(list(self.updates), list(param_updates), self.vector)


def flatten_vars(variables: Sequence[Any]) -> Any:
    """Return a vector expression: the elements of all variables, in C order, end to end."""
    return T.concatenate([variable.flatten() for variable in variables])


def vars_flat_size(variables: Sequence[Any]) -> int:
    """Return how many elements these shared variables have together."""
    return int(sum(_value(variable).size for variable in variables))


def unflatten_vars(flat_var: Any, variables: Sequence[Any]) -> list[Any]:
    """Undo :func:`flatten_vars`: the parts of a vector, shaped as the shared variables are now."""
    parts = []
    for variable, place in zip(variables, places(variables)):
        part = flat_var[place].reshape(_value(variable).shape)
        parts.append(with_pattern(part, variable))
    return parts


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
    grads = FlatGradient(loss_or_grads, params)
    ((vector, flat_grad),) = grads.updates
    return vector, flat_grad, [part for _, part, _ in grads]


def nonflat_grads(loss_or_grads: Any, params: Any) -> tuple[list[Any], list[Any]]:
    """Return a shared variable of zeros and the gradient that goes there, for each parameter.

    The variables have the shape, dtype and broadcastable pattern of the parameters. To average
    many is slower than :func:`flat_unflat_grads`.
    """
    params = check_params(params)
    grads = gradients(loss_or_grads, params)
    return [zeros_like(param, f"grad({label(param, i)})") for i, param in enumerate(params)], grads


def places(params: Sequence[Any]) -> list[slice]:
    """Return where in the flat vector the elements of each parameter are."""
    ends = np.cumsum([_value(param).size for param in params]).tolist()
    return [slice(start, end) for start, end in zip([0, *ends], ends)]


def zeros_like(param: Any, name: str) -> Any:
    """Return a shared variable of zeros with the shape, dtype and pattern of ``param``."""
    return shared_like(param, np.zeros(_value(param).shape, param.dtype), name)


def _value(param: Any) -> Any:
    """Return the parameter's value where it lives (no copy off a GPU), for shape and size."""
    return param.get_value(borrow=True, return_internal_type=True)
