"""Collectives over shared variables: every rank does its part with the same function.

Each function here performs one kind of `Collective` command on one rank. Arguments are checked
by the master before anything is sent; shapes of different ranks are compared by the communicator
before data moves.
"""

from __future__ import annotations

from typing import Any, Callable, Dict, List, Optional, Sequence, Tuple

import numpy as np

from ._messages import ArrayRef, Rows
from ._shared_vars import VariableRegistry, store, value_of
from .exceptions import InputValueError


class Group:
    """What a collective works with on one rank."""

    def __init__(self, comm: Any, master: int, registry: VariableRegistry, arrays: Any) -> None:
        self.comm = comm
        self.master = master
        self.registry = registry
        self.arrays = arrays

    @property
    def is_master(self) -> bool:
        return bool(self.comm.rank == self.master)


def broadcast(
    group: Group,
    variables: Sequence[int],
    values: Optional[Sequence[ArrayRef]],
    forms: Sequence[Tuple[Tuple[int, ...], str]],
) -> None:
    """All ranks take the master's values, whose (shape, dtype) are `forms`."""
    for i, number in enumerate(variables):
        variable = group.registry[number]
        if values is not None:
            store(variable, np.array(group.arrays.get(values[i])))
            continue
        shape, dtype = forms[i]
        value = value_of(variable)
        if not group.is_master and (value.shape != shape or not value.flags.writeable):
            value = np.empty(shape, dtype)
        group.comm.broadcast(value, root=group.master)
        if not group.is_master:
            store(variable, value)


def scatter(group: Group, variables: Sequence[int], values: Sequence[ArrayRef], rows: Rows) -> None:
    """Each rank takes its share of the rows."""
    start, stop = rows.bounds[group.comm.rank]
    for number, ref in zip(variables, values):
        store(group.registry[number], _take(group, ref, rows, start, stop))


def set_value(
    group: Group,
    variables: Sequence[int],
    values: Sequence[ArrayRef],
    rank: int,
    rows: Optional[Rows],
) -> None:
    """One rank takes the values."""
    if group.comm.rank != rank:
        return
    for number, ref in zip(variables, values):
        if rows is None:
            value = np.array(group.arrays.get(ref))
        else:
            value = _take(group, ref, rows, *rows.bounds[0])
        store(group.registry[number], value)


def _take(group: Group, ref: ArrayRef, rows: Rows, start: int, stop: int) -> np.ndarray:
    """A private copy of rows ``start:stop`` of the selection."""
    array = group.arrays.get(ref)
    if rows.index is not None:
        return np.take(array, group.arrays.get(rows.index)[start:stop], axis=0)
    positions = np.arange(rows.start + start * rows.step, rows.start + stop * rows.step, rows.step)
    return np.take(array, positions, axis=0)


def get_value(group: Group, variables: Sequence[int], rank: int) -> Optional[List[np.ndarray]]:
    """The values of one rank, in the master."""
    results = []
    for number in variables:
        mine = value_of(group.registry[number]) if group.comm.rank == rank else None
        parts = group.comm.gather(mine, root=group.master)
        if parts is not None:
            results.append(np.array(parts[rank]))
    return results if group.is_master else None


def gather(group: Group, variables: Sequence[int], nd_up: int) -> Optional[List[np.ndarray]]:
    """All ranks' values in the master: stacked (nd_up=1) or concatenated (nd_up=0)."""
    results = []
    for number in variables:
        parts = group.comm.gather(value_of(group.registry[number]), root=group.master)
        if parts is not None:
            results.append(join(parts, nd_up, _name(group, number)))
    return results if group.is_master else None


def all_gather(group: Group, variables: Sequence[int]) -> None:
    """Every rank's variable becomes the concatenation of all ranks' values along axis 0."""
    for number in variables:
        parts = group.comm.all_gather(value_of(group.registry[number]))
        store(group.registry[number], join(parts, 0, _name(group, number)))


def join(parts: Sequence[np.ndarray], nd_up: int, name: str) -> np.ndarray:
    """Stack (nd_up=1) or concatenate (nd_up=0) the ranks' values.

    Raises:
        InputValueError: if shapes do not allow it; all ranks' shapes are listed.
    """
    try:
        return np.stack(parts) if nd_up else np.concatenate(parts)
    except ValueError:
        shapes = {rank: part.shape for rank, part in enumerate(parts)}
        cure = (
            "use nd_up=0 to concatenate them along axis 0"
            if nd_up
            else "they have no axis 0 in common"
        )
        raise InputValueError(
            f"cannot gather {name}: its shapes by rank are {shapes}; {cure}"
        ) from None


def reduce(
    group: Group, variables: Sequence[int], op: str, in_place: bool
) -> Optional[List[np.ndarray]]:
    """All ranks' values reduced in the master; other ranks' values stay."""
    results = []
    for number in variables:
        value = group.comm.reduce(value_of(group.registry[number]), op, root=group.master)
        if value is None:
            continue
        if in_place:
            store(group.registry[number], value)
        results.append(value)
    return results if group.is_master and not in_place else None


def all_reduce(
    group: Group, variables: Sequence[int], op: str, weights: Optional[Sequence[float]]
) -> None:
    """Every rank's variable becomes the reduction of all ranks' values."""
    weight = None if weights is None else weights[group.comm.rank]
    for number in variables:
        variable = group.registry[number]
        value = value_of(variable)
        if op == "avg":
            result = group.comm.all_reduce(value, "avg", weight=weight)
        else:
            result = group.comm.all_reduce(None if weight == 0 else value, op)
        store(variable, result)


def get_shapes(group: Group, variables: Sequence[int]) -> Optional[List[Tuple[Any, ...]]]:
    """Per variable the tuple of all ranks' shapes, in the master."""
    mine = [tuple(value_of(group.registry[number]).shape) for number in variables]
    by_rank = group.comm.gather_object(mine, root=group.master)
    return None if by_rank is None else list(zip(*by_rank))


def _name(group: Group, number: int) -> str:
    return repr(group.registry[number].name or f"shared variable {number}")


KINDS: Dict[str, Callable[..., Any]] = {
    function.__name__: function
    for function in (
        broadcast,
        scatter,
        set_value,
        get_value,
        gather,
        all_gather,
        reduce,
        all_reduce,
        get_shapes,
    )
}
