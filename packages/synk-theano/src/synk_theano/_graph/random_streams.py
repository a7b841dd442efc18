"""Different random numbers on every rank.

Replicas that draw the same dropout masks learn from the same noise. So the states of Theano's
random streams, which are shared variables tagged ``is_rng``, are seeded anew on every worker,
from the state that arrived and the rank. The master keeps the user's own state, as in serial
Theano.

A jump by a fixed distance per rank would not do: MRG_RandomStreams starts the streams of one
model's successive draws at such distances already, so ranks would meet each other's numbers.
"""

from __future__ import annotations

import zlib
from typing import Any

import numpy as np

_MRG_M1 = 2147483647
_MRG_M2 = 2147462579
"""Moduli of MRG31k3p (L'Ecuyer and Touzin, 2000), as in theano.sandbox.rng_mrg."""


def reseed(state: Any, rank: int) -> Any:
    """A state of the same kind and shape, determined by `state` and `rank`.

    Args:
        state: a numpy RandomState, or the int32 array of shape (streams, 6) (or (6,)) of
            MRG_RandomStreams. Anything else is returned as it is.
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
    """Row 0 is drawn anew; the others follow at the distances that Theano gives its streams."""
    from theano.sandbox.rng_mrg import ff_2p72

    generator = np.random.Generator(np.random.PCG64(_seed_sequence(state, state.size, rank)))
    rows = np.empty((state.size // 6, 6), dtype=np.int32)
    if len(rows):
        rows[0, :3] = generator.integers(1, _MRG_M1, size=3)
        rows[0, 3:] = generator.integers(1, _MRG_M2, size=3)
    for i in range(1, len(rows)):
        rows[i] = ff_2p72(rows[i - 1])
    return rows.reshape(state.shape)
