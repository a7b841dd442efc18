"""Collectives over shared variables: every rank does its part with the same function.

Each function of `PERFORMERS` does one rank's part of one kind of `Collective`. The master has
checked the arguments; the communicator compares the ranks' shapes before data moves, those of
several variables in one comparison: so all change, or none.
"""

from __future__ import annotations

from typing import Any, Callable, Dict, List, Optional, Sequence, Tuple

import numpy as np

from synk_core._graph import random_streams
from synk_core._graph.shared import store, value_of
from synk_core._graph.values import (
    array_of,
    concatenated,
    empty_like,
    in_c_order,
    is_on_default_device,
    is_on_device,
    is_plain,
    on_host,
)
from synk_core._wire.flight import KINDS, Phase
from synk_core._wire.messages import ArrayRef, Collective, Rows
from synk_core.exceptions import InputValueError

from .workplace import Workplace


class PreparedCollective:
    """A collective that this rank has read and can perform again and again.

    Attributes:
        averages: number of a function, and of the variable that is averaged by the rows of its last
            call; None if the act does anything else.
        average: what may have averaged it already, in the act before this one.
        synchronizes: whether all ranks are known to have come to the end of it, when it returns.
            What is left to them is to take values that they have, or that their devices compute.
    """

    def __init__(self, here: Workplace, act: Collective) -> None:
        self._here = here
        self._act = act
        self._perform = PERFORMERS[act.kind]
        given, many = act.arguments, len(act.variables) > 1
        self._has_rows = given.get("rows") is not None
        self.name = self.doing = f"{act.kind}()"
        values = [value_of(here.registry[number]) for number in act.variables]
        self.record = (KINDS.index(act.kind), len(act.variables))
        self.synchronizes = self._ends_together = act.kind == "all_reduce" and (
            # Through host memory, a rank may still fail to copy its result to the device.
            not here.device.is_gpu
            or ("through_host" not in given and here.device.takes(values, reducible=True))
        )
        self.averages: Optional[Tuple[int, int]] = None
        if given.get("weights_of") is not None and given["op"] == "avg":
            if not many and "through_host" not in given:
                self.averages = (given["weights_of"], act.variables[0])
        self.average: Any = None

    def __call__(self, origin: int, place: int) -> Any:  # noqa: ARG002 - all acts are called alike
        """Do this rank's part; `origin` is the lowest row of a selection."""
        here, act = self._here, self._act
        average, self.average = self.average, None  # or it would keep a function alive
        # What was averaged ahead was agreed on before the ranks computed.
        self.synchronizes = self._ends_together and average is None and self._is_plain()
        if average is not None and average.is_done:
            return None
        more = {"origin": origin} if self._has_rows else {}
        here.flight.enter(Phase.COLLECTIVE)
        try:
            result = self._perform(here, act.variables, **act.arguments, **more)
            if average is not None:
                average.learn()
            return result
        finally:
            here.device.settle()

    def _is_plain(self) -> bool:
        """Return whether little can fail once the ranks have agreed: on a device, unequal weights
        need some preparation."""
        here, given = self._here, self._act.arguments
        if not here.device.is_gpu:
            return True
        weights = given.get("weights")
        if given.get("weights_of") is not None:
            weights = here.functions[given["weights_of"]].counts
        return weights is None or len(set(weights)) == 1


def broadcast(
    here: Workplace,
    variables: Sequence[int],
    values: Optional[Sequence[ArrayRef]],
    forms: Optional[Sequence[Tuple[Tuple[int, ...], str]]],
    through_host: bool = False,
) -> None:
    """Give all ranks the master's values, whose (shape, dtype) are `forms`.

    Without `forms` the master broadcasts these first.
    """
    if values is not None:
        for number, ref in zip(variables, values):
            _put(here, number, here.arrays.get(ref))
        return
    arrays = _values(here, variables, through_host)
    if forms is None:
        forms = [(value.shape, str(value.dtype)) for value in arrays]
        forms = here.comm.broadcast_object(forms, here.master)
    if not here.is_master:
        arrays = [
            _room(here, number, value) if value.shape == shape else empty_like(value, shape, dtype)
            for number, value, (shape, dtype) in zip(variables, arrays, forms)
        ]
    here.comm.broadcast(_bare(arrays), here.master)
    if not here.is_master:
        _store_all(here, variables, arrays)


def scatter(
    here: Workplace,
    variables: Sequence[int],
    values: Sequence[ArrayRef],
    rows: Sequence[Rows],
    origin: int,
) -> None:
    """Give each rank its share of the rows of each value."""
    for number, ref, own in zip(variables, values, rows):
        _put(here, number, _take(here, ref, own, origin, *own.bounds[here.comm.rank]))


def set_value(
    here: Workplace,
    variables: Sequence[int],
    values: Sequence[ArrayRef],
    rank: int,
    rows: Optional[Rows],
    origin: int = 0,
) -> None:
    """Give one rank the values."""
    if here.comm.rank != rank:
        return
    for number, ref in zip(variables, values):
        if rows is None:
            value = here.arrays.get(ref)
        else:
            value = _take(here, ref, rows, origin, *rows.bounds[0])
        _put(here, number, value)


def _take(
    here: Workplace, ref: ArrayRef, rows: Rows, origin: int, start: int, stop: int
) -> np.ndarray:
    """Return rows ``start:stop`` of the selection: a view, or a copy."""
    array = here.arrays.get(ref)
    if rows.index is not None:
        return np.take(array, here.arrays.get(rows.index)[start:stop], axis=0)
    return array[rows.span(start, stop, origin)]


def get_value(here: Workplace, variables: Sequence[int], rank: int) -> Optional[List[np.ndarray]]:
    """Return the values of one rank, in the master."""
    results = []
    for number in variables:
        # Only one rank has something to send, so it goes through host memory.
        mine = on_host(value_of(here.registry[number])) if here.comm.rank == rank else None
        parts = here.comm.gather(mine, here.master)
        if parts is not None:
            results.append(np.array(parts[rank]))
    return results if here.is_master else None


def gather(
    here: Workplace, variables: Sequence[int], nd_up: int, through_host: bool = False
) -> Optional[List[np.ndarray]]:
    """Return all ranks' values in the master: stacked (nd_up=1) or concatenated (nd_up=0)."""
    comm: Any = here.comm  # of devices, if the values are there
    values = _values(here, variables, through_host)
    gathered = _listed(comm.gather(_bare(values), here.master), variables)
    if not here.is_master:
        return None
    if is_on_device(values[0]):
        comm.synchronize()
    return [
        join([on_host(part) for part in parts], nd_up, _name(here, number))
        for number, parts in zip(variables, gathered)
    ]


def all_gather(here: Workplace, variables: Sequence[int], through_host: bool = False) -> None:
    """Replace every rank's value by all ranks' values, concatenated along axis 0."""
    values = _values(here, variables, through_host)
    gathered = _listed(here.comm.all_gather(_bare(values)), variables)
    joined = [join(parts, 0, _name(here, number)) for number, parts in zip(variables, gathered)]
    _store_all(here, variables, joined)


def join(parts: Sequence[Any], nd_up: int, name: str) -> Any:
    """Stack (nd_up=1; in host memory) or concatenate (nd_up=0) the ranks' values.

    Raises:
        InputValueError: the shapes do not allow it; the message lists those of all ranks.
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
    here: Workplace, variables: Sequence[int], op: str, in_place: bool, through_host: bool = False
) -> Optional[List[np.ndarray]]:
    """Reduce all ranks' values into the master; other ranks keep theirs."""
    values = _values(here, variables, through_host, reducible=True)
    reduced = _listed(here.comm.reduce(_bare(values), op, here.master), variables)
    if not here.is_master:
        return None
    if in_place:
        _store_all(here, variables, reduced)
        return None
    return reduced


def all_reduce(
    here: Workplace,
    variables: Sequence[int],
    op: str,
    weights: Optional[Sequence[float]],
    weights_of: Optional[int] = None,
    through_host: bool = False,
) -> None:
    """Replace every rank's value by the reduction of all ranks' values.

    Args:
        weights: by rank; None for equal ones.
        weights_of: the number of a function that the same step has called before: its rows are
            the weights.
    """
    if weights_of is not None:
        loaded = here.functions[weights_of]
        weights = loaded.counts
        if not any(weights):
            raise InputValueError(
                f"all_reduce(weights=f): function {loaded.recipe.name!r} had no rows in this step, "
                f"so there is nothing to average"
            )
    if here.comm.size == 1:
        return
    weight = None if weights is None else float(weights[here.comm.rank])
    values = _values(here, variables, through_host, reducible=True)
    outs = [_room(here, number, value) for number, value in zip(variables, values)]
    if op == "avg":
        here.comm.all_reduce(_bare(values), "avg", weight=weight, out=_bare(outs))
    else:
        here.comm.all_reduce(None if weight == 0 else _bare(values), op, out=_bare(outs))
    for number, out in zip(variables, outs):
        _store(here, number, out, alike=True)


def get_shapes(here: Workplace, variables: Sequence[int]) -> Optional[List[Tuple[Any, ...]]]:
    """Return in the master, for each variable, the tuple of all ranks' shapes."""
    mine = [tuple(value_of(here.registry[number]).shape) for number in variables]
    by_rank = here.comm.gather_object(mine, root=here.master)
    return None if by_rank is None else list(zip(*by_rank))


def reseed(here: Workplace, variables: Sequence[int], seed: Optional[int] = None) -> None:
    """Give each rank its own substreams of the master's random states, made from a seed if any.

    With a seed, NumPy's and Python's global generators are seeded as well.
    """
    states = None
    if here.is_master:
        states = [on_host(value_of(here.registry[number])) for number in variables]
        if seed is not None:
            states = [random_streams.seeded(state, (seed, i)) for i, state in enumerate(states)]
    states = here.comm.broadcast_object(states, here.master)
    for number, state in zip(variables, states):
        if seed is not None or not here.is_master:
            state = random_streams.reseed(state, here.seed)
            stays = is_on_default_device(value_of(here.registry[number]))
            _store(here, number, here.device.bring(state) if stays else state)
    if seed is not None:
        random_streams.seed_globals(seed, here.seed)


def _values(
    here: Workplace, variables: Sequence[int], through_host: bool = False, reducible: bool = False
) -> List[Any]:
    """Return this rank's values of variables: the arrays themselves, without copies.

    All are on the default device if all variables are and the communicator takes them there; else
    all are in host memory, copied where necessary. All ranks choose alike.

    Args:
        through_host: use host memory in any case.
        reducible: they are to be reduced.
    """
    values = [value_of(here.registry[number]) for number in variables]
    if not through_host and here.device.takes(values, reducible):
        return [in_c_order(value) for value in values]
    return [on_host(value) for value in values]


def _put(here: Workplace, number: int, array: np.ndarray) -> None:
    """Store a copy of an array in shared memory as a variable's value."""
    stays = is_on_default_device(value_of(here.registry[number]))
    _store(here, number, here.device.bring(array) if stays else np.array(array))


def _room(here: Workplace, number: int, value: Any) -> Any:
    """Return an array for a variable's new value, like `value` in shape, dtype and place."""
    storage = here.registry[number].container.storage
    if value is storage[0]:
        return here.journal.room(number, storage)
    return value if is_plain(value) else empty_like(value, value.shape, value.dtype)


def _store(here: Workplace, number: int, value: Any, alike: bool = False) -> None:
    """Store a variable's value; the journal keeps the old one.

    Args:
        alike: it has the old one's shape and dtype.
    """
    variable = here.registry[number]
    storage = variable.container.storage
    old = storage[0]
    if old is value:
        return
    here.journal.keep([storage])
    if alike and type(old) is type(value):
        storage[0] = value  # what the variable's type would check is known
    else:
        store(variable, value)


def _bare(arrays: List[Any]) -> Any:
    """Unwrap a single array: a communicator takes it quicker than a list."""
    return arrays[0] if len(arrays) == 1 else arrays


def _listed(result: Any, variables: Sequence[int]) -> List[Any]:
    """Return results as a list, the reverse of `_bare`; a number as an array again."""
    return [array_of(result)] if len(variables) == 1 else result


def _store_all(here: Workplace, variables: Sequence[int], values: Sequence[Any]) -> None:
    for number, value in zip(variables, values):
        _store(here, number, value)


def _name(here: Workplace, number: int) -> str:
    return repr(here.registry.label(number))


PERFORMERS: Dict[str, Callable[..., Any]] = {
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
        reseed,
    )
}
