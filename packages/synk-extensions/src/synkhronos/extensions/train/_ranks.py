"""Values of shared variables on all ranks, or in this process alone: one interface for both.

The Trainer and its checkpoints use it, so that they work with a parallel step and with its serial
twin. Collectives carry arrays, but a state of ``RandomStreams`` is an object of NumPy's: two
Ops convert between such a state and a row of numbers, inside functions of all ranks that gather and
scatter the rows.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any, Protocol

import numpy as np

import synkhronos as synk
from synk_core import whole
from synk_core.engine import Apply, Op, RandomStateType, T, random_state_type
from synkhronos import _default

from ._batches import has_positions
from ._serial import SerialTrainFunction, set_values
from ._step import TrainFunction

_KEYS = 624  # 32-bit words of the Mersenne twister, each exact in a float64
ROW = _KEYS + 3


class RankVariables(Protocol):
    """Read and set shared variables, by acts that are performed as one: all of them, or none."""

    @property
    def size(self) -> int:
        """The number of ranks."""

    @property
    def master(self) -> int:
        """The rank of this process."""

    def perform(self, acts: Sequence[Any], here: Sequence[Any] = ()) -> list[Any]:
        """Perform acts; return their results. Blocks until every rank has done its part.

        Args:
            here: Acts of :class:`OneProcess` in their place if the runtime is closed.
        """

    def get(self, rank: int, variables: Sequence[Any]) -> Any:
        """Return an act that returns copies of one rank's values, as arrays."""

    def set(self, rank: int | None, variables: Sequence[Any], values: Sequence[Any]) -> Any:
        """Return an act that sets one rank's values from arrays; None: those of all ranks."""

    def average(self, variables: Sequence[Any]) -> None:
        """Replace every rank's values by the average over the ranks."""

    def get_states(self, variable: Any) -> Any:
        """Return an act that returns a random state: one array per rank."""

    def set_states(self, variable: Any, states: Sequence[Any]) -> list[Any]:
        """Return acts that set a random state, in the form of :meth:`get_states`."""


class OneProcess:
    """This process alone, for the serial twin. An act: variables, and their new values or None."""

    size = 1
    master = 0

    def perform(self, acts: Sequence[Any], here: Sequence[Any] = ()) -> list[Any]:  # noqa: ARG002 - as below
        sets = [pair for variables, values in acts if values for pair in zip(variables, values)]
        before = [variable.get_value() for variable, _ in sets]

        def act() -> list[Any]:
            for variable, value in sets:
                variable.set_value(from_row(value) if _is_object(variable) else value)
            return [[] if values else [*map(_value, variables)] for variables, values in acts]

        return whole(act, partial(set_values, [variable for variable, _ in sets], before))

    def get(self, rank: int, variables: Sequence[Any]) -> Any:  # noqa: ARG002 - one rank
        return variables, None

    def set(self, rank: int | None, variables: Sequence[Any], values: Sequence[Any]) -> Any:  # noqa: ARG002 - one rank
        return variables, values

    def average(self, variables: Sequence[Any]) -> None:
        """Do nothing: one rank's values are their average."""

    def get_states(self, variable: Any) -> Any:
        return [variable], None

    def set_states(self, variable: Any, states: Sequence[Any]) -> list[Any]:
        return [([variable], states[:1])]


class AllRanks:
    """All ranks of the default runtime."""

    def __init__(self) -> None:
        self._functions: dict[Any, Any] = {}

    @property
    def size(self) -> int:
        return _default.default().size

    @property
    def master(self) -> int:
        return _default.default().master

    def perform(self, acts: Sequence[Any], here: Sequence[Any] = ()) -> list[Any]:
        if here and _default.default().closed:
            return OneProcess().perform(here)
        results = iter(synk.step(*filter(None, acts)))
        return [next(results) if act else [] for act in acts]

    def get(self, rank: int, variables: Sequence[Any]) -> Any:
        return synk.delayed.get_value(rank, list(variables)) if variables else None

    def set(self, rank: int | None, variables: Sequence[Any], values: Sequence[Any]) -> Any:
        if not variables:
            return None
        pair = list(variables), list(values)
        return (
            synk.delayed.broadcast(*pair) if rank is None else synk.delayed.set_value(rank, *pair)
        )

    def average(self, variables: Sequence[Any]) -> None:
        if variables:
            synk.all_reduce(list(variables), op="avg")

    def get_states(self, variable: Any) -> Any:
        return (
            self._reader(variable).delayed()
            if _is_object(variable)
            else synk.delayed.gather(variable)
        )

    def set_states(self, variable: Any, states: Sequence[Any]) -> list[Any]:
        if _is_object(variable):
            # One row for each rank: scattered, in the order of the ranks.
            return [self._writer(variable).delayed(np.stack(states))]
        return [self.set(rank, [variable], [state]) for rank, state in enumerate(states)]

    def _reader(self, variable: Any) -> Any:
        """Return a function that gathers the states of one stream, a row for each rank."""
        key = ("read", variable)
        if key not in self._functions:
            self._functions[key] = synk.function(
                [],
                (ToRow()(variable), "gather"),
                name="read random states",
                # Reading a state must not draw from it.
                no_default_updates=True,
            )
        return self._functions[key]

    def _writer(self, variable: Any) -> Any:
        key = ("write", variable)
        if key not in self._functions:
            rows = T.dmatrix("rows")
            self._functions[key] = synk.function(
                [rows], updates=[(variable, FromRow()(rows))], name="set random states"
            )
        return self._functions[key]


def ranks_of(train: Any) -> RankVariables:
    """Return access to the ranks of a training step: all, or this process of the serial twin.

    Raises:
        TypeError: It is no training step.
    """
    if isinstance(train, SerialTrainFunction):
        return OneProcess()
    if isinstance(train, TrainFunction):
        return AllRanks()
    raise TypeError(
        f"train is {train!r}; expected a result of make_train_function() or "
        "make_train_function_theano()"
    )


def is_float(variable: Any) -> bool:
    """Return whether a shared variable holds floating-point numbers, which can be averaged."""
    return str(getattr(variable, "dtype", "")).startswith("float")


def _value(variable: Any) -> Any:
    value = variable.get_value()
    return to_row(value) if _is_object(variable) else np.array(value)


def _is_object(variable: Any) -> bool:
    """Return whether a random state is a NumPy object, and not an array of MRG_RandomStreams."""
    return isinstance(variable.type, RandomStateType)


def to_row(state: Any) -> Any:
    """Return a RandomState or Generator as a float64 array of shape ``(627,)`` or ``(629,)``.

    Raises:
        TypeError: It uses none of NumPy's own bit generators; a RandomState, another one than the
            Mersenne twister.
    """
    if isinstance(state, np.random.Generator):
        return _row_of_generator(state)
    saved: Any = state.get_state(legacy=False)
    if saved["bit_generator"] != "MT19937":
        raise TypeError(
            f"a random stream uses {saved['bit_generator']}; expected a RandomState of NumPy "
            "with its own MT19937, as RandomStreams makes them"
        )
    row = np.empty(ROW)
    row[:_KEYS] = saved["state"]["key"]
    row[_KEYS:] = saved["state"]["pos"], saved["has_gauss"], saved["gauss"]
    return row


def from_row(row: Any) -> Any:
    """Return the RandomState or Generator that :func:`to_row` converted."""
    if row[0] < 0:
        return _generator_of_row(row)
    state = np.random.RandomState(0)
    key = row[:_KEYS].astype(np.uint32)
    position, has_gauss, gauss = row[_KEYS:]
    state.set_state(("MT19937", key, int(position), int(has_gauss), float(gauss)))
    return state


def is_state(saved: Any) -> bool:
    """Return whether a saved state of a random stream can be set: a row, or an array of MRG."""
    if saved.ndim == 2:
        return bool((saved >= 0).all())
    try:
        made = from_row(saved)
        bits = made.bit_generator.state if saved[0] < 0 else made.get_state(legacy=False)
        return has_positions(bits) and np.array_equal(to_row(made), saved)
    except Exception:  # noqa: BLE001 - whatever NumPy finds wrong
        return False


_BITS = ("MT19937", "PCG64", "PCG64DXSM", "Philox", "SFC64")
_WORDS = 4  # of 32 bits: the longest number in a state has 128 bits


def _row_of_generator(state: np.random.Generator) -> Any:
    """Return the numbers of a state in 32-bit words, after one below 0 for the bit generator."""
    saved: Any = state.bit_generator.state
    if saved["bit_generator"] not in _BITS:
        raise TypeError(
            f"a random stream uses {saved['bit_generator']}; expected one of {', '.join(_BITS)}"
        )
    row, end = np.zeros(1 + _KEYS + _WORDS), 1
    row[0] = -1 - _BITS.index(saved["bit_generator"])
    for place, key in _numbers(saved):
        number = place[key]
        if isinstance(number, np.ndarray):
            words = np.ascontiguousarray(number).view(np.uint32)
        else:
            words = np.frombuffer(int(number).to_bytes(4 * _WORDS, "little"), "<u4")
        row[end : end + len(words)] = words
        end += len(words)
    return row


def _generator_of_row(row: Any) -> np.random.Generator:
    bits = getattr(np.random, _BITS[-1 - int(row[0])])(0)
    saved, end = bits.state, 1
    for place, key in _numbers(saved):
        number = place[key]
        size = number.view(np.uint32).size if isinstance(number, np.ndarray) else _WORDS
        words = row[end : end + size].astype("<u4")
        end += size
        if isinstance(number, np.ndarray):
            place[key] = words.view(number.dtype)
        else:
            place[key] = int.from_bytes(words.tobytes(), "little")
    bits.state = saved
    return np.random.Generator(bits)


def _numbers(saved: Any) -> Iterator[tuple[Any, str]]:
    """Yield where the numbers of a bit generator's state are: a dict, and a key."""
    for key, value in sorted(saved.items()):
        if isinstance(value, dict):
            yield from _numbers(value)
        elif not isinstance(value, str):
            yield saved, key


class ToRow(Op):
    """Convert a random state to a float64 matrix of one row."""

    __props__ = ()

    def make_node(self, state: Any) -> Any:
        return Apply(self, [state], [T.dmatrix()])

    def perform(self, node: Any, inputs: Any, output_storage: Any, params: Any = None) -> None:  # noqa: ARG002 - the engine's signature
        output_storage[0][0] = to_row(inputs[0])[np.newaxis]


class FromRow(Op):
    """Convert a float64 matrix of one row to a random state."""

    __props__ = ()

    def make_node(self, row: Any) -> Any:
        return Apply(self, [T.as_tensor_variable(row)], [random_state_type()])

    def perform(self, node: Any, inputs: Any, output_storage: Any, params: Any = None) -> None:  # noqa: ARG002 - the engine's signature
        output_storage[0][0] = from_row(inputs[0][0])
