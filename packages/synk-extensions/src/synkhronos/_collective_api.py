"""Collectives over shared variables, of the default runtime.

Each blocks until all ranks have done their part. The argument ``nccl`` of 1.0 is accepted without
effect, since all ranks make the same choice automatically; the ops ``"c_avg"`` and so on use host
memory.
"""

from __future__ import annotations

from typing import Any, List, Tuple

from synk_core import DelayedCollectives, brief_traceback

from . import _default


@brief_traceback
def broadcast(shared_vars: Any, values: Any = None, nccl: bool = True) -> None:
    """Give every rank the master's values of shared variables, or `values`.

    Args:
        shared_vars: a Theano shared variable, or a list of them; so in all collectives.
        values: None, or an array or `Data` (one for each variable of a list).
    """
    _default.default().collectives.broadcast(shared_vars, values)


@brief_traceback
def scatter(shared_vars: Any, values: Any, batch: Any = None) -> None:
    """Split values along axis 0 over the ranks' shared variables.

    Args:
        shared_vars, values: as for `broadcast`.
        batch: rows of the values to use, as in calls.
    """
    _default.default().collectives.scatter(shared_vars, values, batch)


@brief_traceback
def gather(shared_vars: Any, nd_up: int = 1, nccl: bool = True) -> Any:
    """Return all ranks' values of shared variables, in the master.

    Args:
        nd_up: 1 stacks the values along a new first axis; 0 concatenates them along axis 0, where
            lengths may differ.

    Returns:
        An array; for a list of variables a tuple of arrays.
    """
    return _default.default().collectives.gather(shared_vars, nd_up)


@brief_traceback
def all_gather(shared_vars: Any, nccl: bool = True) -> None:
    """Replace every rank's value by all ranks' values, concatenated along axis 0."""
    _default.default().collectives.all_gather(shared_vars)


@brief_traceback
def reduce(shared_vars: Any, op: str = "avg", in_place: bool = True, nccl: bool = True) -> Any:
    """Reduce all ranks' values of shared variables into the master; workers' values do not change.

    Args:
        op: avg, sum, max, min or prod.
        in_place: overwrite the master's value; otherwise return the result.

    Returns:
        None if `in_place`; else an array, for a list of variables a tuple of arrays.
    """
    return _default.default().collectives.reduce(shared_vars, op, in_place)


@brief_traceback
def all_reduce(
    shared_vars: Any,
    op: str = "avg",
    nccl: bool = True,
    weights: Any = None,
) -> None:
    """Replace every rank's value of shared variables by the reduction of all ranks' values.

    Args:
        op: avg, sum, max, min or prod.
        weights: one number per rank, or a function. ``avg`` is then ``sum(w * x) / sum(w)``: with
            ``weights=f`` the average is exact for any split of the last call of ``f``.
    """
    _default.default().collectives.all_reduce(shared_vars, op, weights)


@brief_traceback
def set_value(rank: int, shared_vars: Any, values: Any, batch: Any = None) -> None:
    """Set the values of shared variables on one rank.

    Args:
        shared_vars, values: as for `broadcast`.
        batch: rows of the values to use, as in calls.
    """
    _default.default().collectives.set_value(rank, shared_vars, values, batch)


@brief_traceback
def get_value(rank: int, shared_vars: Any) -> Any:
    """Return the values of shared variables on one rank: an array, or a tuple for a list."""
    return _default.default().collectives.get_value(rank, shared_vars)


@brief_traceback
def get_lengths(shared_vars: Any) -> Tuple[Any, ...]:
    """Return the lengths of shared variables along axis 0 on all ranks, in rank order.

    Returns:
        A tuple of ints; for a list of variables a tuple of such tuples.
    """
    return tuple(_default.default().collectives.get_lengths(shared_vars))


@brief_traceback
def get_shapes(shared_vars: Any) -> Tuple[Any, ...]:
    """Return the shapes of shared variables on all ranks, in rank order.

    Returns:
        A tuple of shapes; for a list of variables a tuple of such tuples.
    """
    return tuple(_default.default().collectives.get_shapes(shared_vars))


class _StepCollectives:
    """The collectives for `step()`: ``delayed.all_reduce(...)`` and all others, with the arguments
    of the functions of those names. They return acts, which the step performs."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        return getattr(_default.default().delayed, name)

    def __dir__(self) -> List[str]:
        return [name for name in dir(DelayedCollectives) if not name.startswith("_")]


delayed = _StepCollectives()
