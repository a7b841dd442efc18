"""Check the arguments of a rule: parameters, gradients and scalars."""

from __future__ import annotations

import functools
import numbers
from collections.abc import Iterable, Sequence
from typing import Any, Callable, TypeVar, cast

import numpy as np

from synk_core.engine import (
    NAME,
    TITLE,
    Assert,
    DisconnectedInputError,
    SharedVariable,
    T,
    Variable,
)

Rule = TypeVar("Rule", bound=Callable[..., Any])


def accepts_lr(rule: Rule) -> Rule:
    """Let ``rule`` take ``lr`` (the name in release 1.0) for its argument ``learning_rate``."""

    @functools.wraps(rule)
    def with_alias(*args: Any, **kwargs: Any) -> Any:
        if "lr" in kwargs:
            if "learning_rate" in kwargs or len(args) > 2:  # it is the third argument
                raise TypeError(
                    f"{rule.__name__}() got both lr and learning_rate; they are two names of one "
                    "argument, so give only one of them"
                )
            kwargs["learning_rate"] = kwargs.pop("lr")
        return rule(*args, **kwargs)

    return cast(Rule, with_alias)


def check_params(params: Any) -> list[Any]:
    """Return ``params`` as a list of distinct, floating-point shared variables."""
    if not isinstance(params, (Variable, Iterable)):
        raise TypeError(
            f"params is {params!r}; expected a list of shared variables (those of a Lasagne layer "
            "are lasagne.layers.get_all_params(layer, trainable=True))"
        )
    params = [params] if isinstance(params, Variable) else list(params)
    if not params:
        raise ValueError("params is empty; an update rule needs at least one shared variable")
    for index, param in enumerate(params):
        if not isinstance(param, SharedVariable):
            raise TypeError(
                f"params[{index}] is {param!r} of type {type(param).__name__}; expected a "
                f"{TITLE} shared variable ({NAME}.shared(...), or what "
                "lasagne.layers.get_all_params(network, trainable=True) returns)"
            )
        if not str(param.dtype).startswith("float"):
            raise TypeError(
                f"parameter {label(param, index)} has dtype {param.dtype}; expected a "
                "floating-point dtype, since a rule moves a parameter by small steps"
            )
        if any(param is earlier for earlier in params[:index]):
            raise ValueError(f"parameter {label(param, index)} is listed twice in params")
    return params


def pairs_of(updates: Any) -> list[Any]:
    """Return updates or givens, a mapping or a sequence of tuples, as a list."""
    return list(updates.items() if hasattr(updates, "items") else updates)


def common_dtype(params: Sequence[Any]) -> str:
    """Return the one dtype of ``params``, or raise a ``TypeError`` naming everyone's."""
    dtypes = {str(param.dtype) for param in params}
    if len(dtypes) > 1:
        listing = ", ".join(
            f"{label(param, index)}: {param.dtype}" for index, param in enumerate(params)
        )
        raise TypeError(
            "the gradient is kept in one flat vector, which has one dtype, but the parameters "
            f"have several ({listing}); make all parameters of one dtype, or use sgd_nonflat"
        )
    return dtypes.pop()


def gradients(loss_or_grads: Any, params: Sequence[Any]) -> list[Any]:
    """Return one gradient expression per parameter, each of its parameter's dtype and ndim.

    The shape of given gradients is checked in each call: in the flat vector, elements of a
    transposed gradient would go to other places without an error.
    """
    given = isinstance(loss_or_grads, (list, tuple))
    if given:
        grads = [T.as_tensor_variable(grad) for grad in loss_or_grads]
        if len(grads) != len(params):
            raise ValueError(
                f"got {len(grads)} gradients for {len(params)} parameters; expected one each"
            )
    elif isinstance(loss_or_grads, Variable) and loss_or_grads.ndim == 0:
        grads = _gradients_of(loss_or_grads, list(params))
    else:
        ndim = getattr(loss_or_grads, "ndim", None)
        got = f"{loss_or_grads!r}" + (f" with {ndim} dimensions" if ndim else "")
        layer = hasattr(loss_or_grads, "get_output_for")
        raise TypeError(
            f"the loss is {got}; expected a scalar {TITLE} expression (for instance the mean "
            "over the rows of the batch), or a list of gradients"
            + ("; a layer's output is lasagne.layers.get_output(layer)" if layer else "")
        )
    for index, (grad, param) in enumerate(zip(grads, params)):
        if grad.ndim != param.ndim:
            raise ValueError(
                f"the gradient for parameter {label(param, index)} has {grad.ndim} dimensions; "
                f"expected {param.ndim}, as the parameter has"
            )
    if given:
        grads = [_of_shape(g, param, index) for index, (g, param) in enumerate(zip(grads, params))]
    return [
        grad if grad.dtype == param.dtype else T.cast(grad, param.dtype)
        for grad, param in zip(grads, params)
    ]


def _gradients_of(loss: Any, params: list[Any]) -> list[Any]:
    try:
        return list(T.grad(loss, params))
    except DisconnectedInputError:
        found = T.grad(loss, params, disconnected_inputs="ignore", return_disconnected="None")
        unused = [i for i, grad in enumerate(found) if grad is None]
        names = ", ".join(f"params[{i}] ({params[i].name or params[i].type})" for i in unused)
        raise DisconnectedInputError(
            f"the loss does not use {names}; expected params that it depends on (what comes "
            "through disconnected_grad() or a comparison does not count): leave the others out"
        ) from None


def _of_shape(grad: Any, param: Any, index: int) -> Any:
    """Return ``grad``; computing it raises an AssertionError if it is not of the shape."""
    shape = param.get_value(borrow=True, return_internal_type=True).shape
    check = Assert(
        f"the gradient given for parameter {label(param, index)} has another shape than the "
        f"parameter; expected {tuple(shape)}"
    )
    return check(grad, *(T.eq(grad.shape[axis], size) for axis, size in enumerate(shape)))


def scalar(value: Any, dtype: str, name: str) -> Any:
    """Return ``value``, a number or a Theano scalar, as a Theano scalar of ``dtype``.

    Numbers become constants of exactly ``dtype``: Theano's own casting would round 0.1 to
    float32 for a float64 parameter when ``floatX=float32``, or turn a float32 update into float64.
    """
    if isinstance(value, Variable):
        if value.ndim != 0:
            raise ValueError(f"{name} is {value!r} with {value.ndim} dimensions; expected a scalar")
        return value if value.dtype == dtype else T.cast(value, dtype)
    if isinstance(value, numbers.Real) or (isinstance(value, np.ndarray) and value.ndim == 0):
        return T.constant(np.asarray(value, dtype=dtype))
    raise TypeError(
        f"{name} is {value!r} of type {type(value).__name__}; expected a number or a {TITLE} scalar"
    )


def label(param: Any, index: int) -> str:
    """Return the parameter's name, or its place in the list when it has none."""
    return str(param.name) if param.name else f"params[{index}]"
