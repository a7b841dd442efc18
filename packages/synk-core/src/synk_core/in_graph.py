"""Reductions over ranks in the middle of a graph: computed from the rows of all ranks.

::

    mean = in_graph.all_reduce(x.mean(axis=0), "avg")    # over all rows, on every rank
    f = synk.function([x], outputs=((x - mean) ** 2).mean())

Every rank waits there for the others, in every execution of the function.
"""

from __future__ import annotations

from typing import Any

from ._graph.reduce_op import AllReduce
from ._plan.ops import normalize
from .engine import NAME, T
from .exceptions import OpError, SpecError

__all__ = ["all_gather", "all_reduce", "positions"]


def all_reduce(x: Any, op: str = "sum", *, cost: str = "mean") -> Any:
    r"""Reduce an expression over the ranks that take part in a call; every rank gets the result.

    It blocks until all of them have computed their `x`, and goes through host memory, also where
    the ranks compute on GPUs. Where there are no other ranks (plain Theano, ``f.as_theano()``, a
    single rank) it is `x` itself: a graph over all rows means the same there as over the ranks'.

    Ranks without rows contribute nothing, and no slice waits for another: with ``num_slices=``,
    the k-th slices of all ranks are reduced together. In a function without rows every rank takes
    part with the same weight.

    A gradient through it goes the same way back, summed over the ranks. Gradients of the ranks' own
    costs, averaged over ranks (``all_reduce(flat_grad, "avg", weights=f)``), are those of the whole
    cost. With n rows in all and :math:`n_r` of them on rank r, that is :math:`\sum_r (n_r / n) c_r`
    if each cost is a mean over rows (`cost` "mean"), and :math:`\sum_r c_r` if each is a sum
    ("sum").

    An update that is computed only from such results and from values equal on all ranks, such as a
    running average, has the same new value on all ranks after a call, also on those without rows.
    In a call of several slices it is the average over slices, by rows of all ranks.

    Args:
        x: expression, a tensor of the same shape on all ranks; its dtype is kept.
        op: "sum", or "avg": the average weighted by rows, ``sum(n_r * x_r) / n``. That of a mean
            over rows is the mean over all rows, that of a sum is none.
        cost: how the costs that are differentiated combine over ranks: "mean" or "sum".

    Returns:
        An expression of the type of `x`.

    Raises:
        OpError: another `op` or `cost`.
        SpecError: (a TypeError) an average of integers, a sum of booleans, no numbers at all. When
            a function is built: it is inside of a scan, or in a function with an ``ifelse``, which
            ranks may run a different number of times, or in DebugMode.

    A call raises WorkerFailed if another rank has failed before it came here, InputValueError if
    the ranks' shapes differ.
    """
    plain = normalize(op, ("sum", "avg"), "in_graph.all_reduce()")
    _require_cost(cost, "all_reduce")
    x = T.as_tensor_variable(x)
    has_fractions = str(x.dtype).startswith(("float", "complex"))
    if x.dtype == "bool" or (plain == "avg" and not has_fractions):
        raise SpecError(
            f"in_graph.all_reduce(): got op {plain!r} for dtype {x.dtype}, which has no exact "
            f"result in it; cast x, e.g. T.cast(x, {NAME}.config.floatX)"
        )
    return AllReduce(str(plain), cost)(x)[0]


def all_gather(x: Any, *, cost: str = "mean") -> Any:
    """Concatenate the rows of an expression over the ranks; every rank gets all of them.

    ::

        z_all = in_graph.all_gather(z)                   # the embeddings of the whole batch
        logits = T.dot(z, z_all.T)                       # own rows against all rows

    The rows are in the order of the inputs, whatever number each rank has. All that `all_reduce`
    says of other ranks, slices, gradients and errors holds here: a rank gets, for its own rows,
    the sum of all ranks' gradients. A loss of own rows against all rows, or of all rows on every
    rank, is trained exactly, if it is a mean over rows (or `cost` is "sum").

    Args:
        x: expression, a tensor with rows along axis 0; other lengths are the same on all ranks.
        cost: how the costs that are differentiated combine over ranks: "mean" or "sum".

    Returns:
        An expression of the dtype and number of dimensions of `x`.

    Raises:
        OpError: another `cost`.
        SpecError: (a TypeError) `x` has no rows. When a function is built: as of `all_reduce`.
    """
    _require_cost(cost, "all_gather")
    return AllReduce("gather", cost)(_with_rows(x, "all_gather"))[0]


def positions(x: Any) -> Any:
    """Return the positions of the rank's own rows in ``all_gather(x)``: an int64 vector.

    It is ``T.arange(x.shape[0])`` without other ranks. Ranks exchange only their numbers of rows.

    Raises:
        SpecError: (a TypeError) `x` has no rows. When a function is built: as of `all_reduce`.
    """
    count = _with_rows(x, "positions").shape[0]
    return AllReduce("before", "mean")(count)[0] + T.arange(count)


def _require_cost(cost: str, name: str) -> None:
    if cost not in ("mean", "sum"):
        raise OpError(f"in_graph.{name}(): got cost {cost!r}, expected 'mean' or 'sum'")


def _with_rows(x: Any, name: str) -> Any:
    x = T.as_tensor_variable(x)
    if x.ndim == 0:
        raise SpecError(
            f"in_graph.{name}(): got a scalar, which has no rows; expected a tensor with rows "
            f"along axis 0 (of one value per rank, x.dimshuffle('x'))"
        )
    return x
