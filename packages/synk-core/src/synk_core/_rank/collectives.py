"""Collectives over shared variables: every rank does its part with the same function.

Each function of `PERFORMERS` does one rank's part of one kind of `Collective`. The master has
checked the arguments; the communicator compares the ranks' shapes before data moves, those of
several variables in one comparison: so all change, or none.
"""

from __future__ import annotations

from operator import itemgetter
from typing import Any, Callable, Dict, Iterable, List, Optional, Sequence, Tuple

import numpy as np

from synk_core._graph import random_streams
from synk_core._graph.shared import storage_of, store, value_of
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

_VALUE = itemgetter(0)


class ActVariables:
    """The shared variables of a collective on this rank."""

    def __init__(self, here: Workplace, numbers: Sequence[int]) -> None:
        self._here, self._numbers = here, numbers
        # Not the storages: the registry counts who holds these.
        self._variables = [here.registry[number] for number in numbers]
        self.is_one = len(numbers) == 1

    @property
    def now(self) -> List[Any]:
        """The values, wherever they lie."""
        return list(map(_VALUE, map(storage_of, self._variables)))

    @property
    def names(self) -> List[str]:
        """For messages."""
        return [repr(self._here.registry.label(number)) for number in self._numbers]

    def values(self, through_host: bool = False, reducible: bool = False) -> List[Any]:
        """Return the values: the arrays themselves, without copies.

        All are on the default device if all variables are and the communicator takes them there;
        else all are in host memory, copied where necessary. All ranks choose alike.
        """
        values = list(map(_VALUE, map(storage_of, self._variables)))
        device = self._here.device
        if not device.is_gpu:
            return values
        if not through_host and device.takes(values, reducible):
            return [in_c_order(v) if is_on_device(v) else device.bring(v) for v in values]
        return list(map(on_host, values))

    def rooms(self, values: Sequence[Any]) -> List[Any]:
        """Return arrays for new values, like `values` in shape, dtype and place; if a device's
        arrays are never written, `values`, to show their forms."""
        rooms = []
        for number, variable, value in zip(self._numbers, self._variables, values):
            storage = variable.container.storage
            if self._here.device.is_functional and is_on_device(value):
                room = value
            elif value is storage[0]:
                room = self._here.journal.room(number, storage)
            else:
                room = value if is_plain(value) else empty_like(value, value.shape, value.dtype)
            rooms.append(room)
        return rooms

    def put(self, arrays: Iterable[np.ndarray]) -> None:
        """Store copies of arrays in shared memory where the variables' values lie."""
        bring = self._here.device.bring
        for i, array in enumerate(arrays):
            stays = is_on_default_device(value_of(self._variables[i]))
            self._store(i, bring(array) if stays else np.array(array))

    def store(self, values: Iterable[Any], alike: bool = False) -> None:
        """Store new values, `alike` if with the shapes and dtypes of the old ones; the journal
        keeps these."""
        for i, value in enumerate(values):
            self._store(i, value, alike)

    def _store(self, i: int, value: Any, alike: bool = False) -> None:
        storage = self._variables[i].container.storage
        old = storage[0]
        if old is value:
            return
        self._here.journal.keep([storage])
        if alike and type(old) is type(value):
            storage[0] = value  # what the variable's type would check is known
        else:
            store(self._variables[i], value)


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
        self._variables = ActVariables(here, act.variables)
        self._perform = PERFORMERS[act.kind]
        given, many = act.arguments, len(act.variables) > 1
        self._has_rows = given.get("rows") is not None
        self.name = self.doing = f"{act.kind}()"
        values = self._variables.now
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
        device = here.device
        is_plain = not device.is_gpu or device.is_functional or self._is_plain()
        self.synchronizes = self._ends_together and average is None and is_plain
        if average is not None and average.is_done:
            return None
        more = {"origin": origin} if self._has_rows else {}
        here.flight.enter(Phase.COLLECTIVE)
        try:
            result = self._perform(here, self._variables, **act.arguments, **more)
            if average is not None:
                average.learn()
            return result
        finally:
            if here.device.is_gpu:
                here.device.settle()

    def _is_plain(self) -> bool:
        """Return whether little can fail once the ranks have agreed: of a device's arrays that are
        written, unequal weights need some preparation."""
        here, given = self._here, self._act.arguments
        weights = given.get("weights")
        if given.get("weights_of") is not None:
            weights = here.functions[given["weights_of"]].counts
        return weights is None or len(set(weights)) == 1


def broadcast(
    here: Workplace,
    variables: ActVariables,
    values: Optional[Sequence[ArrayRef]],
    forms: Optional[Sequence[Tuple[Tuple[int, ...], str]]],
    through_host: bool = False,
) -> None:
    """Copy the master's values to all ranks; their (shape, dtype) are `forms`, which the master
    broadcasts first if they are None."""
    if values is not None:
        variables.put(here.arrays.get(ref) for ref in values)
        return
    arrays = variables.values(through_host)
    if forms is None:
        forms = [(value.shape, str(value.dtype)) for value in arrays]
        forms = here.comm.broadcast_object(forms, here.master)
    if not here.is_master:
        arrays = [
            room if value.shape == shape else empty_like(value, shape, dtype)
            for room, value, (shape, dtype) in zip(variables.rooms(arrays), arrays, forms)
        ]
    here.comm.broadcast(_bare(arrays), here.master)
    if not here.is_master:
        variables.store(arrays)


def scatter(
    here: Workplace,
    variables: ActVariables,
    values: Sequence[ArrayRef],
    rows: Sequence[Rows],
    origin: int,
) -> None:
    """Give each rank its share of the rows of each value."""
    variables.put(
        _take(here, ref, own, origin, *own.bounds[here.comm.rank]) for ref, own in zip(values, rows)
    )


def set_value(
    here: Workplace,
    variables: ActVariables,
    values: Sequence[ArrayRef],
    rank: int,
    rows: Optional[Rows],
    origin: int = 0,
) -> None:
    """Copy the values to one rank."""
    if here.comm.rank != rank:
        return
    variables.put(
        here.arrays.get(ref) if rows is None else _take(here, ref, rows, origin, *rows.bounds[0])
        for ref in values
    )


def _take(
    here: Workplace, ref: ArrayRef, rows: Rows, origin: int, start: int, stop: int
) -> np.ndarray:
    """Return rows ``start:stop`` of the selection: a view, or a copy."""
    array = here.arrays.get(ref)
    if rows.index is not None:
        return np.take(array, here.arrays.get(rows.index)[start:stop], axis=0)
    return array[rows.span(start, stop, origin)]


def get_value(here: Workplace, variables: ActVariables, rank: int) -> Optional[List[np.ndarray]]:
    """Return the values of one rank, in the master."""
    results = []
    for value in variables.now:
        # Only one rank has something to send, so it goes through host memory.
        mine = on_host(value) if here.comm.rank == rank else None
        parts = here.comm.gather(mine, here.master)
        if parts is not None:
            results.append(np.array(parts[rank]))
    return results if here.is_master else None


def gather(
    here: Workplace, variables: ActVariables, nd_up: int, through_host: bool = False
) -> Optional[List[np.ndarray]]:
    """Return all ranks' values in the master: stacked (nd_up=1) or concatenated (nd_up=0)."""
    comm: Any = here.comm  # of devices, if the values are there
    values = variables.values(through_host)
    gathered = _listed(comm.gather(_bare(values), here.master), variables)
    if not here.is_master:
        return None
    if is_on_device(values[0]):
        comm.synchronize()
    return [
        join([on_host(part) for part in parts], nd_up, name)
        for name, parts in zip(variables.names, gathered)
    ]


def all_gather(here: Workplace, variables: ActVariables, through_host: bool = False) -> None:
    """Replace every rank's value by all ranks' values, concatenated along axis 0."""
    values = variables.values(through_host)
    gathered = _listed(here.comm.all_gather(_bare(values)), variables)
    variables.store([join(parts, 0, name) for name, parts in zip(variables.names, gathered)])


def join(parts: Sequence[Any], nd_up: int, name: str) -> Any:
    """Stack (nd_up=1; in host memory) or concatenate (nd_up=0) the ranks' values."""
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
    here: Workplace, variables: ActVariables, op: str, in_place: bool, through_host: bool = False
) -> Optional[List[np.ndarray]]:
    """Reduce all ranks' values into the master; other ranks keep theirs."""
    values = variables.values(through_host, reducible=True)
    reduced = _listed(here.comm.reduce(_bare(values), op, here.master), variables)
    if not here.is_master:
        return None
    if in_place:
        variables.store(reduced)
        return None
    return reduced


def all_reduce(
    here: Workplace,
    variables: ActVariables,
    op: str,
    weights: Optional[Sequence[float]],
    weights_of: Optional[int] = None,
    through_host: bool = False,
) -> None:
    """Replace every rank's value by the reduction of all ranks' values; weights (None: equal ones)
    are the rows of the function `weights_of`, if the same step has called one before."""
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
    values: Any = variables.values(through_host, reducible=True)
    outs: Any = variables.rooms(values)
    if variables.is_one:
        (values,), (outs,) = values, outs
    if op == "avg":
        reduced = here.comm.all_reduce(values, "avg", weight=weight, out=outs)
    else:
        reduced = here.comm.all_reduce(None if weight == 0 else values, op, out=outs)
    variables.store([reduced] if variables.is_one else reduced, alike=True)


def get_shapes(here: Workplace, variables: ActVariables) -> Optional[List[Tuple[Any, ...]]]:
    """Return in the master, for each variable, the tuple of all ranks' shapes."""
    mine = [tuple(value.shape) for value in variables.now]
    by_rank = here.comm.gather_object(mine, root=here.master)
    return None if by_rank is None else list(zip(*by_rank))


def reseed(here: Workplace, variables: ActVariables, seed: Optional[int] = None) -> None:
    """Give each rank its own substreams of the master's random states, made from a seed if any.

    With a seed, NumPy's and Python's global generators are seeded as well.
    """
    states = None
    if here.is_master:
        states = [on_host(value) for value in variables.now]
        if seed is not None:
            states = [random_streams.seeded(state, (seed, i)) for i, state in enumerate(states)]
    states = here.comm.broadcast_object(states, here.master)
    if seed is not None or not here.is_master:
        own = [random_streams.reseed(state, here.seed) for state in states]
        variables.store(
            here.device.bring(state) if is_on_default_device(value) else state
            for value, state in zip(variables.now, own)
        )
    if seed is not None:
        random_streams.seed_globals(seed, here.seed)


def _bare(arrays: List[Any]) -> Any:
    """Unwrap a single array: a communicator takes it quicker than a list."""
    return arrays[0] if len(arrays) == 1 else arrays


def _listed(result: Any, variables: ActVariables) -> List[Any]:
    """Return results as a list, the reverse of `_bare`; a number as an array again."""
    return [array_of(result)] if variables.is_one else result


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
