"""One flat vector for the gradients of all parameters.

A collective over one large vector is faster than many over small ones: each has a fixed cost
(a barrier, a kernel launch), and a model has dozens of parameters.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import theano
import theano.tensor as T

from synkhronos.extensions.updates._arguments import (
    check_params,
    common_dtype,
    gradients,
    label,
)


class SplitUpdates(NamedTuple):
    """The two halves of an update rule, and what is to be averaged between them."""

    grad_updates: list[Any]
    """Pairs (shared, expression) that compute the raw gradient into :attr:`flat_grad`."""

    param_updates: list[Any]
    """Pairs (shared, expression) that move parameters and optimiser state from there."""

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
        size = sum(_value(param).size for param in self._params)
        self.vector = theano.shared(np.zeros(size, self.dtype), name="flat_grad")
        joined = T.concatenate([grad.flatten() for grad in grads])
        # A vector that is known to have one element gets a broadcastable type of its own.
        self.updates = [(self.vector, T.patternbroadcast(joined, (False,)))]

    def __iter__(self) -> Iterator[tuple[Any, Any, State]]:
        for index, (param, place) in enumerate(zip(self._params, places(self._params))):
            part = self.vector[place].reshape(_value(param).shape)
            yield param, T.patternbroadcast(part, param.broadcastable), State(param, index)

    def scalar_state(self, name: str) -> Any:
        """Return a new shared scalar 0, one for all parameters, of their dtype."""
        return theano.shared(np.zeros((), self.dtype), name=name)

    def split(self, param_updates: Sequence[tuple[Any, Any]]) -> SplitUpdates:
        """Return what a rule returns."""
        return SplitUpdates(list(self.updates), list(param_updates), self.vector)


class State:
    """Makes the state variables of one parameter: ``state("velocity")``."""

    def __init__(self, param: Any, index: int) -> None:
        self._param = param
        self._index = index

    def __call__(self, kind: str) -> Any:
        return zeros_like(self._param, f"{kind}({label(self._param, self._index)})")


def places(params: Sequence[Any]) -> list[slice]:
    """Return where in the flat vector the elements of each parameter are."""
    ends = np.cumsum([_value(param).size for param in params]).tolist()
    return [slice(start, end) for start, end in zip([0, *ends], ends)]


def zeros_like(param: Any, name: str) -> Any:
    """Return a shared variable of zeros with the shape, dtype and pattern of ``param``."""
    return theano.shared(
        np.zeros(_value(param).shape, param.dtype), name=name, broadcastable=param.broadcastable
    )


def _value(param: Any) -> Any:
    """Return the parameter's value where it lives (no copy off a GPU), for shape and size."""
    return param.get_value(borrow=True, return_internal_type=True)
