"""The acts of the runtime itself: take over functions and variables, and those of its features."""

from __future__ import annotations

import contextlib
import copy
from typing import Any, List, Sequence

import numpy as np

from synk_core._graph import random_streams
from synk_core._graph.environment import follow
from synk_core._graph.shared import value_of
from synk_core._graph.transfer.pickling import loads
from synk_core._graph.values import empty_of, in_c_order, is_device_type
from synk_core._plan.rows import Bounds
from synk_core._wire.flight import KINDS, Phase
from synk_core._wire.messages import DISTRIBUTE, Distribute, Own
from synk_core.engine import compile_ahead, refresh_cache
from synk_core.exceptions import StartError

from .functions import LoadedFunction
from .workplace import Workplace

MOST_AT_ONCE = 200
"""Values of one broadcast: before it, ranks compare their calls, whose description is limited."""


def pack(*pickles: Any) -> Any:
    """Lay out pickles and their buffers: (parts, extents of each pickle, total bytes).

    Buffers start at multiples of 64 bytes, so that arrays in them are aligned.
    """
    parts: List[Any] = []
    extents: List[List[Bounds]] = []
    end = 0
    for data, buffers in pickles:
        places: List[Bounds] = []
        for part in (data, *buffers):
            start = -(-end // 64) * 64
            end = start + len(part)
            places.append((start, end))
            parts.append((start, end, part))
        extents.append(places)
    return parts, [tuple(places) for places in extents], end


class PreparedDistribution:
    """An act of `Distribute` that this rank has read."""

    name = doing = DISTRIBUTE
    record = (KINDS.index("distribute"), 0)
    synchronizes = False

    def __init__(self, here: Workplace, act: Distribute) -> None:
        self._here, self._act = here, act

    def __call__(self, origin: int, place: int) -> None:  # noqa: ARG002 - all acts are called alike
        """On a worker, build the functions and variables that the master has sent."""
        here, act = self._here, self._act
        here.flight.enter(Phase.DISTRIBUTE)
        if not here.is_master:
            with contextlib.suppress(StartError):  # that folder may be one of the master's host
                follow(act.path, act.folder, here.world)
            # The master has compiled everything: with its cache, nothing is compiled here.
            refresh_cache()
            self._take_variables(here.arrays.get(act.payload))
        if act.broadcast:
            self._broadcast_values()
        if not here.is_master:
            self._take_functions(here.arrays.get(act.payload))

    def _take_variables(self, payload: np.ndarray) -> None:
        here = self._here
        for record in self._load(payload, self._act.variables, copied=False):
            value = record.value
            if record.shape is not None:
                value = empty_of(record.type, record.shape)
            elif record.is_random:
                value = random_streams.reseed(value, here.seed)
            if not is_device_type(record.type):
                # A copy for each: pickle keeps two variables with one array together.
                value = copy.deepcopy(value)
            here.registry.adopt(record, value)

    def _broadcast_values(self) -> None:
        here, numbers = self._here, self._act.broadcast
        here.flight.enter(Phase.COLLECTIVE)
        for start in range(0, len(numbers), MOST_AT_ONCE):
            some = numbers[start : start + MOST_AT_ONCE]
            values = [in_c_order(value_of(here.registry[number])) for number in some]
            here.comm.broadcast(values, here.master)
        here.flight.enter(Phase.DISTRIBUTE)

    def _take_functions(self, payload: np.ndarray) -> None:
        here, act = self._here, self._act
        recipes, forms = self._load(payload, act.functions)
        for recipe in recipes:
            here.functions[recipe.function_id] = LoadedFunction(recipe)
        here.flight.enter(Phase.COMPILE)
        for function_id, form, function in forms:
            compile_ahead(function)
            here.functions[function_id].forms[form] = function

    def _load(self, payload: np.ndarray, extents: Sequence[Bounds], copied: bool = True) -> Any:
        """Unpickle; the result's arrays outlive the payload if they are `copied` from it."""
        data, *buffers = (payload[start:stop] for start, stop in extents)
        buffers = [np.array(buffer) for buffer in buffers] if copied else buffers
        return loads(data.tobytes(), self._here.registry, buffers)


class PreparedOwn:
    """An act of `Own` that this rank has read."""

    synchronizes = False

    def __init__(self, here: Workplace, act: Own) -> None:
        self._here, self._act = here, act
        self.name = self.doing = f"{act.perform.__name__}()"
        self.record = (KINDS.index("feature"), 0)

    def __call__(self, origin: int, place: int) -> Any:  # noqa: ARG002 - all acts are called alike
        """Do this rank's part."""
        return self._act.perform(self._here, self._act.argument)
