"""What is distributed, laid out in shared memory: written by the master, taken over by workers."""

from __future__ import annotations

import copy
from typing import Any, Dict, List, Optional, Sequence

import numpy as np

from synk_theano._graph import random_streams
from synk_theano._graph.shared import VariableRegistry
from synk_theano._graph.transfer.pickling import loads
from synk_theano._plan.rows import Bounds
from synk_theano._wire.messages import Distribute
from synk_theano_compat import locks

from .functions import LoadedFunction


def take_over(
    payload: np.ndarray,
    act: Distribute,
    registry: VariableRegistry,
    functions: Dict[int, LoadedFunction],
    seed: Optional[int],
) -> None:
    """Build what the master has sent.

    Args:
        payload: uint8 vector with the pickles.
        seed: for the states of random streams; None takes them as they are.
    """
    # The master compiled it all: with what it has left in the cache, nothing is compiled here.
    locks.refresh_cache()
    for record in _load(payload, act.variables, registry, copied=False):
        value = record.value
        if record.is_random and seed is not None:
            value = random_streams.reseed(value, seed)
        # A copy of its own: pickle keeps two variables with one array together.
        registry.adopt(record, copy.deepcopy(value))
    recipes, forms = _load(payload, act.functions, registry)
    for recipe in recipes:
        functions[recipe.function_id] = LoadedFunction(recipe)
    for function_id, form, function in forms:
        functions[function_id].forms[form] = function


def _load(
    payload: np.ndarray,
    extents: Sequence[Bounds],
    registry: VariableRegistry,
    copied: bool = True,
) -> Any:
    """Unpickle.

    Args:
        copied: have arrays of the result outlive the payload: else they lie in it.
    """
    data, *buffers = (payload[start:stop] for start, stop in extents)
    return loads(data.tobytes(), registry, [np.array(b) for b in buffers] if copied else buffers)


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
