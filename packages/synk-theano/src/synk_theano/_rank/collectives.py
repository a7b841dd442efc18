"""Collectives over shared variables: every rank does its part with the same function.

Each function here performs one kind of `Collective` on one rank. Arguments are checked by the
master before anything is sent; shapes of different ranks are compared by the communicator before
data moves, those of several variables in one comparison: so all change, or none.
"""

from __future__ import annotations

from time import perf_counter
from typing import TYPE_CHECKING, Any, Callable, Dict, List, Optional, Sequence, Tuple

import numpy as np

from synk_theano._graph.devices.device import takes_reduction
from synk_theano._graph.shared import store, value_of
from synk_theano._graph.values import (
    concatenated,
    empty_like,
    in_c_order,
    is_array,
    is_on_device,
    is_plain,
    on_host,
)
from synk_theano._watch.flight import KINDS as ACT_KINDS
from synk_theano._watch.flight import Phase
from synk_theano._wire.messages import ArrayRef, Collective, Rows
from synk_theano.exceptions import InputValueError

from .digest import digest

if TYPE_CHECKING:
    from .rank import Rank


class Group:
    """What a collective works with on one rank."""

    def __init__(self, rank: Rank) -> None:
        self.comm: Any = rank.comm
        self.device = rank.device
        self.master = rank.master
        self.registry = rank.registry
        self.arrays = rank.arrays
        self.functions = rank.functions
        self._journal = rank.journal

    @property
    def is_master(self) -> bool:
        return bool(self.comm.rank == self.master)

    def values(
        self, variables: Sequence[int], through_host: bool = False, reducible: bool = False
    ) -> List[Any]:
        """The values of variables on this rank: the arrays themselves.

        All of them in host memory, in copies where need be, unless all of them lie on devices and
        the communicator can take them there. All ranks come to the same choice.

        Args:
            through_host: take copies in host memory in any case.
            reducible: they are to be reduced.
        """
        values = [value_of(self.registry[number]) for number in variables]
        if (
            not through_host
            and self.device.takes_collectives
            and all(map(is_on_device, values))
            and (not reducible or takes_reduction(values))
        ):
            return [in_c_order(value) for value in values]
        return [on_host(value) for value in values]

    def put(self, number: int, array: np.ndarray) -> None:
        """Make a copy of an array in shared memory the variable's value."""
        on_device = is_on_device(value_of(self.registry[number]))
        self.store(number, self.device.bring(array) if on_device else np.array(array))

    def room(self, number: int, value: Any) -> Any:
        """Room for the variable's new value, which is like `value`: like the one it has, maybe
        in host memory where it lies on a device."""
        storage = self.registry[number].container.storage
        if value is storage[0]:
            return self._journal.room(number, storage)
        return value if is_plain(value) else empty_like(value, value.shape, value.dtype)

    def store(self, number: int, value: Any) -> None:
        """Make `value` the variable's; the journal keeps what it was."""
        variable = self.registry[number]
        if value_of(variable) is not value:
            self._journal.keep([variable.container.storage])
            store(variable, value)


class PreparedCollective:
    """A collective that this rank has read and can perform again and again."""

    # A rank may still be at work when the master has all it wanted.
    synchronizes = False

    def __init__(self, rank: Rank, act: Collective) -> None:
        self._group = group = Group(rank)
        self._recorder = rank.recorder
        self._flight = rank.flight
        self._act = act
        self._perform = KINDS[act.kind]
        self._has_rows = act.arguments.get("rows") is not None
        self.name = self.doing = f"{act.kind}()"
        values = (value_of(group.registry[number]) for number in act.variables)
        nbytes = sum(v.size * v.dtype.itemsize for v in values if is_array(v))
        self.record = (ACT_KINDS.index(act.kind), len(act.variables), 0, nbytes)

    def __call__(self, origin: int, place: int) -> Any:  # noqa: ARG002 - all acts are called alike
        """Do this rank's part; `origin` is the lowest of the rows that are taken."""
        act = self._act
        more = {"origin": origin} if self._has_rows else {}
        began = perf_counter()
        self._flight.enter(Phase.COLLECTIVE)
        try:
            return self._perform(self._group, act.variables, **act.arguments, **more)
        finally:
            self._group.device.settle()
            self._recorder.add("collective", self.name, began, perf_counter())


def broadcast(
    group: Group,
    variables: Sequence[int],
    values: Optional[Sequence[ArrayRef]],
    forms: Optional[Sequence[Tuple[Tuple[int, ...], str]]],
    through_host: bool = False,
) -> None:
    """All ranks take the master's values, whose (shape, dtype) are `forms`.

    Without `forms` the master tells them first.
    """
    if values is not None:
        for number, ref in zip(variables, values):
            group.put(number, group.arrays.get(ref))
        return
    arrays = group.values(variables, through_host)
    if forms is None:
        forms = [(value.shape, str(value.dtype)) for value in arrays]
        forms = group.comm.broadcast_object(forms, group.master)
    if not group.is_master:
        arrays = [
            group.room(number, value) if value.shape == shape else empty_like(value, shape, dtype)
            for number, value, (shape, dtype) in zip(variables, arrays, forms)
        ]
    group.comm.broadcast(_bare(arrays), group.master)
    if not group.is_master:
        _store_all(group, variables, arrays)


def scatter(
    group: Group,
    variables: Sequence[int],
    values: Sequence[ArrayRef],
    rows: Sequence[Rows],
    origin: int,
) -> None:
    """Each rank takes its share of the rows of each value."""
    for number, ref, own in zip(variables, values, rows):
        group.put(number, _take(group, ref, own, origin, *own.bounds[group.comm.rank]))


def set_value(
    group: Group,
    variables: Sequence[int],
    values: Sequence[ArrayRef],
    rank: int,
    rows: Optional[Rows],
    origin: int = 0,
) -> None:
    """One rank takes the values."""
    if group.comm.rank != rank:
        return
    for number, ref in zip(variables, values):
        if rows is None:
            value = group.arrays.get(ref)
        else:
            value = _take(group, ref, rows, origin, *rows.bounds[0])
        group.put(number, value)


def _take(
    group: Group, ref: ArrayRef, rows: Rows, origin: int, start: int, stop: int
) -> np.ndarray:
    """Rows ``start:stop`` of the selection: a view, or a copy."""
    array = group.arrays.get(ref)
    if rows.index is not None:
        return np.take(array, group.arrays.get(rows.index)[start:stop], axis=0)
    first = rows.first(origin)
    begin, end = first + start * rows.step, first + stop * rows.step
    return array[begin : (None if end < 0 else end) : rows.step]


def get_value(group: Group, variables: Sequence[int], rank: int) -> Optional[List[np.ndarray]]:
    """The values of one rank, in the master."""
    results = []
    for number in variables:
        # One rank's array is not everybody's business: it comes through host memory.
        mine = on_host(value_of(group.registry[number])) if group.comm.rank == rank else None
        parts = group.comm.gather(mine, group.master)
        if parts is not None:
            results.append(np.array(parts[rank]))
    return results if group.is_master else None


def gather(
    group: Group, variables: Sequence[int], nd_up: int, through_host: bool = False
) -> Optional[List[np.ndarray]]:
    """All ranks' values in the master: stacked (nd_up=1) or concatenated (nd_up=0)."""
    values = group.values(variables, through_host)
    gathered = _listed(group.comm.gather(_bare(values), group.master), variables)
    if not group.is_master:
        return None
    if is_on_device(values[0]):
        group.comm.synchronize()
    return [
        join([on_host(part) for part in parts], nd_up, _name(group, number))
        for number, parts in zip(variables, gathered)
    ]


def all_gather(group: Group, variables: Sequence[int], through_host: bool = False) -> None:
    """Every rank's variable becomes the concatenation of all ranks' values along axis 0."""
    values = group.values(variables, through_host)
    gathered = _listed(group.comm.all_gather(_bare(values)), variables)
    joined = [join(parts, 0, _name(group, number)) for number, parts in zip(variables, gathered)]
    _store_all(group, variables, joined)


def join(parts: Sequence[Any], nd_up: int, name: str) -> Any:
    """Stack (nd_up=1; in host memory) or concatenate (nd_up=0) the ranks' values.

    Raises:
        InputValueError: if shapes do not allow it; all ranks' shapes are listed.
    """
    try:
        return np.stack(parts) if nd_up else concatenated(parts)
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
    group: Group, variables: Sequence[int], op: str, in_place: bool, through_host: bool = False
) -> Optional[List[np.ndarray]]:
    """All ranks' values reduced in the master; other ranks' values stay."""
    values = group.values(variables, through_host, reducible=True)
    reduced = _listed(group.comm.reduce(_bare(values), op, group.master), variables)
    if not group.is_master:
        return None
    if in_place:
        _store_all(group, variables, reduced)
        return None
    return reduced


def all_reduce(
    group: Group,
    variables: Sequence[int],
    op: str,
    weights: Optional[Sequence[float]],
    weights_of: Optional[int] = None,
    through_host: bool = False,
) -> None:
    """Every rank's variable becomes the reduction of all ranks' values.

    Args:
        weights: by rank; None stands for equal ones.
        weights_of: the number of a function that was called before, in the same step: its rows
            are the weights.
    """
    if weights_of is not None:
        loaded = group.functions[weights_of]
        weights = loaded.counts
        if not any(weights):
            raise InputValueError(
                f"all_reduce(weights=f): function {loaded.recipe.name!r} had no rows in this step, "
                f"so there is nothing to average"
            )
    if group.comm.size == 1:
        return
    weight = None if weights is None else float(weights[group.comm.rank])
    values = group.values(variables, through_host, reducible=True)
    outs = [group.room(number, value) for number, value in zip(variables, values)]
    if op == "avg":
        group.comm.all_reduce(_bare(values), "avg", weight=weight, out=_bare(outs))
    else:
        group.comm.all_reduce(None if weight == 0 else _bare(values), op, out=_bare(outs))
    _store_all(group, variables, outs)


def get_shapes(group: Group, variables: Sequence[int]) -> Optional[List[Tuple[Any, ...]]]:
    """Per variable the tuple of all ranks' shapes, in the master."""
    mine = [tuple(value_of(group.registry[number]).shape) for number in variables]
    by_rank = group.comm.gather_object(mine, root=group.master)
    return None if by_rank is None else list(zip(*by_rank))


def get_digests(group: Group, variables: Sequence[int]) -> Optional[List[Tuple[str, ...]]]:
    """Per variable the tuple of all ranks' digests, in the master."""
    mine = [digest(on_host(value_of(group.registry[number]))) for number in variables]
    by_rank = group.comm.gather_object(mine, root=group.master)
    return None if by_rank is None else list(zip(*by_rank))


def _bare(arrays: List[Any]) -> Any:
    """One array by itself: a communicator has quicker ways for it than for a list."""
    return arrays[0] if len(arrays) == 1 else arrays


def _listed(result: Any, variables: Sequence[int]) -> List[Any]:
    """The reverse of `_graph.fast_call`, for results."""
    return [result] if len(variables) == 1 else result


def _store_all(group: Group, variables: Sequence[int], values: Sequence[Any]) -> None:
    for number, value in zip(variables, values):
        group.store(number, value)


def _name(group: Group, number: int) -> str:
    return repr(group.registry.label(number))


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
        get_digests,
    )
}
