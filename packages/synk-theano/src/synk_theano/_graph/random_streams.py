"""States of random streams: recognize them, and seed them differently on every rank.

The states of Theano's random streams are shared variables tagged ``is_rng``. If all ranks drew the
same dropout masks, their gradients would have the same noise. So every worker seeds the states anew
from the state that it received and its rank. The master keeps the user's own state, as in serial
Theano.

A jump by a fixed distance per rank would not do: MRG_RandomStreams starts the streams of one
model's successive draws at such distances already, so ranks would draw each other's numbers.
"""

from __future__ import annotations

import zlib
from typing import Any

import numpy as np

from .engine import RandomStateType, next_stream

_MRG_M1 = 2147483647
_MRG_M2 = 2147462579
"""Moduli of MRG31k3p (L'Ecuyer and Touzin, 2000), as in theano.sandbox.rng_mrg."""


def is_random(variable: Any) -> bool:
    """Return whether a shared variable is tagged as the state of a random stream."""
    return bool(getattr(variable.tag, "is_rng", False))


def is_random_state(variable: Any) -> bool:
    """Return whether a variable holds the state of a random stream, tagged or not."""
    return is_random(variable) or isinstance(variable.type, RandomStateType)


def reseed(state: Any, rank: int) -> Any:
    """Return a state of the same kind and shape, determined by `state` and `rank`.

    Args:
        state: a numpy RandomState, or the int32 array of shape (streams, 6) (or (6,)) of
            MRG_RandomStreams. Anything else is returned unchanged.
    """
    if isinstance(state, np.random.RandomState):
        _, key, position, _, _ = state.get_state(legacy=True)
        seeds = _seed_sequence(np.asarray(key), int(position), rank)
        return np.random.RandomState(np.random.MT19937(seeds))
    if isinstance(state, np.ndarray) and state.dtype == np.int32 and state.shape[-1:] == (6,):
        return _reseed_mrg(state, rank)
    return state


def _seed_sequence(words: np.ndarray, extra: int, rank: int) -> np.random.SeedSequence:
    data = np.ascontiguousarray(words).tobytes()
    return np.random.SeedSequence([zlib.crc32(data), zlib.adler32(data), extra, rank])


def _reseed_mrg(state: np.ndarray, rank: int) -> np.ndarray:
    """Draw row 0 anew; the others follow at the distances of Theano's streams."""
    generator = np.random.Generator(np.random.PCG64(_seed_sequence(state, state.size, rank)))
    rows = np.empty((state.size // 6, 6), dtype=np.int32)
    if len(rows):
        rows[0, :3] = generator.integers(1, _MRG_M1, size=3)
        rows[0, 3:] = generator.integers(1, _MRG_M2, size=3)
    for i in range(1, len(rows)):
        rows[i] = next_stream(rows[i - 1])
    return rows.reshape(state.shape)
