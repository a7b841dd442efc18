"""Common parts of the wrappers, which turn any rule into a rule of the same interface.

The expressions in ``param_updates`` read the stored gradient: to change the gradient, replace that
variable by another expression; to change the step, replace a parameter's new value.
"""

from __future__ import annotations

import functools
import inspect
import math
from collections.abc import Iterable, Sequence
from typing import Any, Callable

from synk_core.engine import Variable, clone
from synkhronos.extensions.updates._arguments import check_params, label, pairs_of, scalar
from synkhronos.extensions.updates._flatten import SplitUpdates

UpdateRule = Callable[..., Any]
"""``rule(loss_or_grads, params, ...) -> (grad_updates, param_updates, flat_grad)``."""


def wrap(
    rule: UpdateRule,
    wrapper: str,
    change: Callable[[SplitUpdates, list[Any], list[Any], Callable[[], Any]], SplitUpdates],
    params: Any = None,
) -> UpdateRule:
    """Return a rule that applies ``rule``, then ``change`` to its result.

    ``change`` gets the three parts, all parameters, those that ``params`` selects (all by default;
    one, several, or a function of one), and a function that returns the rule's learning rate.
    ``wrapper`` is the name for messages and for the new rule's name.
    """
    if not callable(rule) or isinstance(rule, Variable):
        raise TypeError(
            f"{wrapper}() got a {type(rule).__name__} as the rule; expected a function such as "
            f"synkhronos.extensions.updates.adam, not yet called: {wrapper}(adam, ...)(loss, "
            "params, learning_rate=...)"
        )
    choice = _checked_choice(params, wrapper)

    @functools.wraps(rule)
    def wrapped(loss_or_grads: Any, params: Any, *args: Any, **kwargs: Any) -> SplitUpdates:
        params = check_params(params)
        parts = three_parts(rule, rule(loss_or_grads, params, *args, **kwargs))
        rate = functools.partial(_learning_rate, rule, (loss_or_grads, params, *args), kwargs)
        return change(parts, params, _chosen(params, choice, wrapper), rate)

    wrapped.__name__ = wrapped.__qualname__ = f"{wrapper}({name_of(rule)})"
    return wrapped


def stores(parts: SplitUpdates) -> list[Any]:
    """Return the variables that hold the gradient: the flat vector, or one for each parameter."""
    return list(parts.flat_grad) if isinstance(parts.flat_grad, list) else [parts.flat_grad]


def with_gradients(parts: SplitUpdates, gradients: Sequence[Any]) -> SplitUpdates:
    """Return ``parts`` whose second half reads ``gradients`` instead of :func:`stores`."""
    # On a GPU the variable's type is not the one that an expression of it has.
    replace = [
        (store, store.type.filter_variable(gradient))
        for store, gradient in zip(stores(parts), gradients)
    ]
    targets, values = zip(*parts.param_updates)
    return parts._replace(param_updates=list(zip(targets, clone(list(values), replace))))


def wrap_values(
    rule: UpdateRule,
    wrapper: str,
    params: Any,
    new_value: Callable[[Any, Any, Callable[[], Any]], Any],
) -> UpdateRule:
    """Return a rule that changes the new values of the parameters that ``params`` selects.

    ``new_value`` gets a parameter, the value that ``rule`` moves it to, and the function that
    returns the learning rate.
    """

    def change(parts: SplitUpdates, _all: Any, chosen: list[Any], rate: Any) -> SplitUpdates:
        among, pairs = set(chosen), parts.param_updates
        changed = [(t, new_value(t, value, rate) if t in among else value) for t, value in pairs]
        return parts._replace(param_updates=changed)

    return wrap(rule, wrapper, change, params)


def _checked_choice(choice: Any, wrapper: str) -> Any:
    """Return None, a function, or a list of variables, which can be read more than once."""
    if choice is None or (callable(choice) and not isinstance(choice, Variable)):
        return choice
    is_one = isinstance(choice, Variable) or not isinstance(choice, Iterable)
    choice = [choice] if is_one else list(choice)
    for item in choice:
        if not isinstance(item, Variable):
            raise TypeError(
                f"{wrapper}() got {item!r} of type {type(item).__name__} in its params; expected "
                "shared variables, for instance lasagne.layers.get_all_params(network, "
                "regularizable=True), or a function such as lambda param: param.ndim > 1"
            )
    return choice


def _chosen(params: Sequence[Any], choice: Any, wrapper: str) -> list[Any]:
    """Return those of ``params`` that the choice selects."""
    if choice is None:
        return list(params)
    known = ", ".join(label(param, index) for index, param in enumerate(params))
    if callable(choice):
        selected = [param for param in params if choice(param)]
    else:
        selected = choice
        for index, param in enumerate(selected):
            if not any(param is one for one in params):
                raise ValueError(
                    f"{wrapper}() got {label(param, index)} in its params, which is not among "
                    f"the parameters that the rule moves: {known}; take it out, or give it "
                    "to the rule as well"
                )
    if not selected:
        raise ValueError(
            f"the params of {wrapper}() select none of the rule's parameters {known}; "
            "expected at least one (omit the wrapper if there is none)"
        )
    return selected


def check_number(value: Any, name: str, least: float | None = None, above: Any = None) -> Any:
    """Return ``value``; a plain number has to be at least ``least`` and larger than ``above``.

    Theano scalars are taken as they are: their value is known in the call only.
    """
    scalar(value, "float64", name)
    if isinstance(value, Variable):
        return value
    bound = f" larger than {above}" if above is not None else ""
    bound += f" of at least {least}" if least is not None else ""
    good = not math.isnan(value) and (above is None or value > above)
    if not good or (least is not None and value < least):
        raise ValueError(f"{name} is {value!r}; expected a number{bound}")
    return value


def name_of(rule: UpdateRule) -> str:
    """Return the rule's name, through ``functools.partial``."""
    while isinstance(rule, functools.partial):
        rule = rule.func
    return str(getattr(rule, "__name__", type(rule).__name__))


def three_parts(rule: UpdateRule, parts: Any) -> SplitUpdates:
    """Return ``parts``, the result of a rule, if they are three."""
    if not isinstance(parts, tuple) or len(parts) != 3:
        raise TypeError(
            f"update rule {name_of(rule)!r} returned a {type(parts).__name__}; expected "
            "(grad_updates, param_updates, flat_grad). The rules of lasagne.updates do not split a "
            "step: use the rule of that name in synkhronos.extensions.updates"
        )
    grad_updates, param_updates, flat_grad = parts
    return SplitUpdates(list(grad_updates), pairs_of(param_updates), flat_grad)


def _learning_rate(rule: UpdateRule, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Return the learning rate that ``rule(*args, **kwargs)`` works with."""
    inner: Any = rule
    while isinstance(inner, functools.partial) or hasattr(inner, "__wrapped__"):
        if isinstance(inner, functools.partial):
            args, kwargs = (*inner.args, *args), {**inner.keywords, **kwargs}
        inner = inner.func if isinstance(inner, functools.partial) else inner.__wrapped__
    if "lr" in kwargs:
        return kwargs["lr"]
    bound = inspect.signature(inner).bind(*args, **kwargs)
    bound.apply_defaults()
    if "learning_rate" not in bound.arguments:
        raise TypeError(
            f"update rule {name_of(rule)!r} has no argument learning_rate; expected one, by which "
            "the decay is multiplied (or say times_learning_rate=False)"
        )
    return bound.arguments["learning_rate"]
