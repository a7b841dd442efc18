"""Wrappers that bound the gradient before a rule sees it."""

from __future__ import annotations

from typing import Any

from synk_core.engine import T
from synkhronos.extensions.updates._arguments import scalar
from synkhronos.extensions.updates._elementwise import larger
from synkhronos.extensions.updates._flatten import SplitUpdates
from synkhronos.extensions.updates._wrapping import (
    UpdateRule,
    check_number,
    stores,
    with_gradients,
    wrap,
)


def clip_by_global_norm(rule: UpdateRule, max_norm: Any) -> UpdateRule:
    r"""Scale the whole gradient down to a largest Euclidean norm before ``rule`` sees it.

    .. math:: g \leftarrow g\, \frac{c}{\max(c, \lVert g \rVert_2)}

    The norm is that of all parameters' gradients together, averaged over the ranks: it is computed
    in the second half of the step, so that all ranks use the same factor, that of the whole batch.
    ``flat_grad`` keeps the unscaled gradient.

    ::

        train = make_train_function(
            loss, params, [x, y], updates.clip_by_global_norm(updates.adam, max_norm=1.0),
            learning_rate=1e-3,
        )

    A shorter gradient is unchanged, to the last bit. The norm is summed in float64 for every dtype
    of the parameters, since the squares of an exploding gradient quickly exceed float32. PyTorch's
    ``clip_grad_norm_`` divides by the norm plus 1e-6 and Lasagne's ``total_norm_constraint`` by the
    norm plus 1e-7; apart from that they are equal. A gradient with a nan makes all parameters nan,
    in all of them.

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

    def change(parts: SplitUpdates, _params: list[Any], _rate: Any) -> SplitUpdates:
        squares = [T.sum(T.sqr(T.cast(store, "float64"))) for store in stores(parts)]
        factor = limit / larger(limit, T.sqrt(sum(squares)))
        return with_gradients(
            parts, [store * T.cast(factor, store.dtype) for store in stores(parts)]
        )

    return wrap(rule, name, change)


def clip_by_value(rule: UpdateRule, max_value: Any) -> UpdateRule:
    r"""Bound each element of the gradient to [-max_value, max_value] before ``rule`` sees it.

    .. math:: g \leftarrow \min(\max(g, -c), c)

    As in :func:`clip_by_global_norm` it is the gradient averaged over the ranks that is bounded,
    in the second half of the step, and ``flat_grad`` keeps it as it was. The direction of the
    gradient changes. PyTorch's ``clip_grad_value_`` does the same.

    Args, returns and errors are those of :func:`clip_by_global_norm`; ``max_value`` is :math:`c`.

    Source: T. Mikolov, "Statistical Language Models Based on Neural Networks", PhD thesis, Brno
    University of Technology (2012).
    """
    name = "clip_by_value"
    limit = check_number(max_value, f"{name}: max_value", above=0)

    def change(parts: SplitUpdates, _params: list[Any], _rate: Any) -> SplitUpdates:
        bounds = [scalar(limit, str(store.dtype), "max_value") for store in stores(parts)]
        return with_gradients(
            parts,
            [T.clip(store, -bound, bound) for store, bound in zip(stores(parts), bounds)],
        )

    return wrap(rule, name, change)
