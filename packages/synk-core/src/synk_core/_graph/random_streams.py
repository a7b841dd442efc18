"""States of random streams: recognize them, and seed them differently on every rank.

The states are shared variables. If all ranks drew the same dropout masks, their gradients would
have the same noise. So every worker seeds the states anew from the state that it received and its
rank. The master keeps the user's own state, as in one process.

A jump by a fixed distance per rank would not do: MRG_RandomStreams starts the streams of one
model's successive draws at such distances already, so ranks would draw each other's numbers.
"""

from __future__ import annotations

import hashlib
import zlib
from collections.abc import Mapping
from typing import Any, Iterable, Iterator

import numpy as np

from synk_core.engine import (
    NAME,
    Constant,
    RandomStateType,
    ancestors,
    inner_outputs,
    is_random,
)
from synk_core.exceptions import SpecError

_MRG_M1 = 2147483647
_MRG_M2 = 2147462579
_MRG_A1 = ((0, 1 << 22, (1 << 7) + 1), (1, 0, 0), (0, 1, 0))
_MRG_A2 = ((1 << 15, 0, (1 << 15) + 1), (1, 0, 0), (0, 1, 0))
"""MRG31k3p (L'Ecuyer and Touzin, 2000), as in theano.sandbox.rng_mrg: moduli, and the matrices by
which the halves of a state make a step."""

_MRG_DISTANCE = 72
"""Two streams are 2 to this power steps apart."""


_BIT_GENERATORS = ("MT19937", "PCG64", "PCG64DXSM", "Philox", "SFC64")
"""NumPy's own, by name: each can be made from a `SeedSequence`."""


def is_random_state(variable: Any) -> bool:
    """Return whether a variable holds the state of a random stream, even if the engine's streams
    do not know it."""
    return is_random(variable) or isinstance(variable.type, RandomStateType)


def reseed(state: Any, rank: int) -> Any:
    """Return a state of the same kind and shape, determined by `state` and `rank`.

    Args:
        state: a numpy Generator or RandomState, or the int32 array of shape (streams, 6) (or (6,))
            of MRG_RandomStreams. Anything else is returned unchanged.
    """
    if isinstance(state, np.random.Generator):
        bits: Any = state.bit_generator
        digest = hashlib.sha256(b"".join(_words(bits.state))).digest()
        seeds = np.random.SeedSequence([*np.frombuffer(digest, np.uint32), rank])
        return np.random.Generator(type(bits)(seeds))
    if isinstance(state, np.random.RandomState):
        _, key, position, _, _ = state.get_state(legacy=True)
        seeds = _seed_sequence(np.asarray(key), int(position), rank)
        return np.random.RandomState(np.random.MT19937(seeds))
    if isinstance(state, np.ndarray) and state.dtype == np.int32 and state.shape[-1:] == (6,):
        return _reseed_mrg(state, rank)
    return state


def _words(state: Any) -> Iterator[bytes]:
    """Yield the content of a bit generator's state, the same in each process."""
    if isinstance(state, Mapping):
        for key in sorted(state):
            yield from (key.encode(), *_words(state[key]))
    else:
        yield state.tobytes() if isinstance(state, np.ndarray) else repr(state).encode()


def require_reseedable(compiled: Any, values: Iterable[Any]) -> None:
    """Return if each rank can draw numbers of its own in a function.

    Args:
        values: the expressions that it was compiled from; numbers that are drawn from a constant
            may be constants of the compiled graph.

    Raises:
        SpecError: all ranks would draw the same numbers.
    """
    for variable in compiled.get_shared():
        value = variable.container.storage[0]
        bits = type(getattr(value, "bit_generator", None)).__name__
        if isinstance(variable.type, RandomStateType) and not (
            isinstance(value, np.random.RandomState) or bits in _BIT_GENERATORS
        ):
            raise SpecError(
                f"the random state {variable} is a {type(value).__name__} of {bits}, which cannot "
                f"be seeded for each rank, so all would draw the same numbers; expected a numpy "
                f"Generator of one of {', '.join(_BIT_GENERATORS)}, or "
                f"fork(random_streams='identical')"
            )
    if any(isinstance(constant.type, RandomStateType) for constant in _constants(values)):
        raise SpecError(
            f"a random state is a constant of the graph of {compiled.name or 'this function'}, so "
            f"all ranks would draw the same numbers; make it a shared variable: "
            f"{NAME}.shared(state)"
        )


def _constants(outputs: Iterable[Any]) -> Iterator[Any]:
    """Yield the constants of a graph, and of the graphs inside its operations."""
    for variable in ancestors(list(outputs)):
        if isinstance(variable, Constant):
            yield variable
        elif variable.owner is not None and variable is variable.owner.outputs[0]:
            yield from _constants(inner_outputs(variable.owner.op))


def _seed_sequence(words: np.ndarray, extra: int, rank: int) -> np.random.SeedSequence:
    data = np.ascontiguousarray(words).tobytes()
    return np.random.SeedSequence([zlib.crc32(data), zlib.adler32(data), extra, rank])


def _reseed_mrg(state: np.ndarray, rank: int) -> np.ndarray:
    """Draw row 0 anew; the others follow at the distances of Theano's streams."""
    generator = np.random.Generator(np.random.PCG64(_seed_sequence(state, state.size, rank)))
    rows = np.empty((state.size // 6, 6), dtype=np.int64)
    for half, matrix, modulus in (
        (rows[:, :3], _MRG_A1, _MRG_M1),
        (rows[:, 3:], _MRG_A2, _MRG_M2),
    ):
        half[:1] = generator.integers(1, modulus, size=3)
        jump = np.array(matrix)
        for _ in range(_MRG_DISTANCE):
            jump = _multiplied(jump, jump, modulus)
        done = 1
        while done < len(half):
            half[done : 2 * done] = _multiplied(half[: len(half) - done][:done], jump.T, modulus)
            jump = _multiplied(jump, jump, modulus)
            done *= 2
    return rows.astype(np.int32).reshape(state.shape)


def _multiplied(a: np.ndarray, b: np.ndarray, modulus: int) -> np.ndarray:
    """Return a matrix product of numbers below 2**31, whose sums would not fit int64."""
    return (a[:, :, None] * b % modulus).sum(axis=1) % modulus
