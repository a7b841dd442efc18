"""States of random streams: recognize them, and seed them differently on every rank.

The states are shared variables. If all ranks drew the same dropout masks, their gradients would
have the same noise. So every worker seeds the states anew from the received state and its rank. The
master keeps the user's own state, as in one process.

A jump by a fixed distance per rank would not do: MRG_RandomStreams starts the streams of one
model's successive draws at such distances already, so ranks would draw each other's numbers.
"""

from __future__ import annotations

import ctypes
import hashlib
import random
import zlib
from collections.abc import Mapping
from typing import Any, Iterable, Iterator, Optional, Sequence, Tuple

import numpy as np

from synk_core.engine import NAME, Constant, RandomStateType, ancestors, inner_outputs, is_random
from synk_core.exceptions import SpecError

from .values import is_array

_MRG = (
    (((0, 1 << 22, (1 << 7) + 1), (1, 0, 0), (0, 1, 0)), 2147483647),
    (((1 << 15, 0, (1 << 15) + 1), (1, 0, 0), (0, 1, 0)), 2147462579),
)
"""MRG31k3p (L'Ecuyer and Touzin, 2000), as in the engines' MRG streams: of each half of a state the
matrix by which it makes a step, and the modulus."""

_MRG_DISTANCE = 72
"""Two streams are 2 to this power steps apart."""

_MT19937_BYTES = 625 * 4
"""Of a Mersenne twister's state in memory: its words, and the position among them."""

_DRAWS = frozenset(["mrg_uniform", "GPUA_mrg_uniform", "RandomFunction", "RandomVariable"])
"""Names of drawing operations, or of their parents."""

_BIT_GENERATORS = ("MT19937", "PCG64", "PCG64DXSM", "Philox", "SFC64")
"""NumPy's own, by name: each can be made from a `SeedSequence`."""


def is_random_state(variable: Any) -> bool:
    """Return whether a variable holds the state of a random stream, of the engine's or not."""
    return is_random(variable) or isinstance(variable.type, RandomStateType)


def is_draw(op: Any) -> bool:
    """Return whether an operation draws random numbers."""
    return not _DRAWS.isdisjoint(base.__name__ for base in type(op).__mro__)


def reseed(state: Any, rank: Optional[int]) -> Any:
    """Return a state of the same kind and shape, determined by `state` and `rank`, if any."""
    if rank is None:
        return state
    digest = hashlib.sha256(b"".join(_words(state))).digest()
    return seeded(state, [*np.frombuffer(digest, np.uint32), rank])


def seeded(state: Any, seeds: Sequence[int]) -> Any:
    """Return a state of the same kind and shape, determined by `seeds`: a numpy Generator or
    RandomState, or an int32 array of shape (streams, 6), or (6,), of MRG_RandomStreams. Anything
    else is returned unchanged."""
    sequence = np.random.SeedSequence(seeds)
    if isinstance(state, np.random.Generator):
        bits: Any = type(state.bit_generator)
        return np.random.Generator(bits(sequence))
    if isinstance(state, np.random.RandomState):
        return np.random.RandomState(np.random.MT19937(sequence))
    if isinstance(state, np.ndarray) and state.dtype == np.int32 and state.shape[-1:] == (6,):
        return _seeded_mrg(state.shape, np.random.Generator(np.random.PCG64(sequence)))
    return state


def content(state: Any) -> bytes:
    """Return the content of a NumPy object, which a program can change; b"" for arrays."""
    if is_array(state):
        return b""
    bits = state._bit_generator
    if type(bits) is np.random.MT19937:  # its `state` takes as long as a whole call
        return ctypes.string_at(bits.ctypes.state_address, _MT19937_BYTES)
    return repr(bits.state).encode()


def global_seed() -> int:
    """Return a number determined by the state of NumPy's global generator; draw nothing."""
    state = np.random.get_state(legacy=False)  # noqa: NPY002 - it is the global one
    return zlib.crc32(b"".join(_words(state)))


def seed_globals(seed: int, rank: Optional[int]) -> None:
    """Seed NumPy's and Python's global generators: with `seed` itself, if there is no rank."""
    if rank is not None:
        seed = int(np.random.SeedSequence([seed, rank]).generate_state(1)[0])
    np.random.seed(seed)  # noqa: NPY002 - it is the global one
    random.seed(seed)


def _words(state: Any) -> Iterator[bytes]:
    """Yield the content of a state, the same in each process."""
    if isinstance(state, np.random.Generator):
        state = state.bit_generator.state
    elif isinstance(state, np.random.RandomState):
        state = state.get_state(legacy=False)
    if isinstance(state, Mapping):
        for key in sorted(state):
            yield from (key.encode(), *_words(state[key]))
    else:
        yield state.tobytes() if isinstance(state, np.ndarray) else repr(state).encode()


def require_reseedable(compiled: Any, values: Iterable[Any]) -> None:
    """Raise SpecError if all ranks would draw the same numbers in a function; `values` are its
    expressions, because its compiled graph may have numbers drawn from a constant as constants."""
    for variable in compiled.get_shared():
        require_seedable(variable)
    if any(isinstance(constant.type, RandomStateType) for constant in _constants(values)):
        raise SpecError(
            f"a random state is a constant of the graph of {compiled.name or 'this function'}, so "
            f"all ranks would draw the same numbers; make it a shared variable: "
            f"{NAME}.shared(state)"
        )


def require_seedable(variable: Any) -> None:
    """Raise SpecError if a variable holds a random state that cannot be seeded for each rank."""
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


def _constants(outputs: Iterable[Any]) -> Iterator[Any]:
    """Yield the constants of a graph, and of the graphs inside its operations."""
    for variable in ancestors(list(outputs)):
        if isinstance(variable, Constant):
            yield variable
        elif variable.owner is not None and variable is variable.owner.outputs[0]:
            yield from _constants(inner_outputs(variable.owner.op))


def _seeded_mrg(shape: Tuple[int, ...], generator: np.random.Generator) -> np.ndarray:
    """Draw row 0; the others follow at the distances of the engine's streams."""
    rows = np.empty((int(np.prod(shape[:-1])), 6), dtype=np.int64)
    for half, (matrix, modulus) in zip((rows[:, :3], rows[:, 3:]), _MRG):
        half[:1] = generator.integers(1, modulus, size=3)
        jump = np.array(matrix)
        for _ in range(_MRG_DISTANCE):
            jump = _multiplied(jump, jump, modulus)
        done = 1
        while done < len(half):
            half[done : 2 * done] = _multiplied(half[: len(half) - done][:done], jump.T, modulus)
            jump = _multiplied(jump, jump, modulus)
            done *= 2
    return rows.astype(np.int32).reshape(shape)


def _multiplied(a: np.ndarray, b: np.ndarray, modulus: int) -> np.ndarray:
    """Return a matrix product of numbers below 2**31, whose sums would not fit int64."""
    return (a[:, :, None] * b % modulus).sum(axis=1) % modulus
