"""Values of shared variables on all ranks, or in this process alone: one interface for both.

Collectives carry arrays, but a state of ``RandomStreams`` is an object of NumPy's: two Ops convert
it to a row of bytes, its text as JSON, and back, in functions that gather and scatter the rows.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import cache, partial
from typing import Any, Union

import numpy as np

import synkhronos as synk
from synk_core import whole
from synk_core.engine import Apply, Op, RandomStateType, T, random_state_type
from synkhronos import _default

from ._batches import set_state_of, state_of
from ._serial import SerialTrainFunction, set_values
from ._step import TrainFunction

_BITS = ("MT19937", "PCG64", "PCG64DXSM", "Philox", "SFC64")
ROW = 7168  # bytes: the Mersenne twister has 624 numbers of up to ten digits


class OneProcess:
    """This process alone, for the serial twin. An act: variables, and their new values or None."""

    size = 1
    """The number of ranks."""
    master = 0
    """The rank of this process."""

    def perform(self, acts: Sequence[Any]) -> list[Any]:
        """Perform acts, all or none; return their results. Blocks until every rank is done."""
        sets = [pair for variables, values in acts if values for pair in zip(variables, values)]
        before = [variable.get_value() for variable, _ in sets]

        def act() -> list[Any]:
            for variable, value in sets:
                variable.set_value(from_row(value) if _is_object(variable) else value)
            return [[] if values else [*map(_value, variables)] for variables, values in acts]

        return whole(act, partial(set_values, [variable for variable, _ in sets], before))

    def get(self, rank: int, variables: Sequence[Any]) -> Any:  # noqa: ARG002 - one rank
        """Return an act that returns copies of one rank's values, as arrays."""
        return variables, None

    def set(self, rank: int | None, variables: Sequence[Any], values: Sequence[Any]) -> Any:  # noqa: ARG002 - one rank
        """Return an act that sets one rank's values from arrays; None: those of all ranks."""
        return variables, values

    def average(self, variables: Sequence[Any]) -> None:
        """Replace every rank's values by the average over the ranks."""

    def get_states(self, variable: Any) -> Any:
        """Return an act that returns a random state: one array per rank."""
        return [variable], None

    def set_states(self, variable: Any, states: Sequence[Any]) -> list[Any]:
        """Return acts that set a random state, in the form of :meth:`get_states`."""
        return [([variable], states[:1])]


class AllRanks:
    """All ranks of the default runtime; see :class:`OneProcess`."""

    def __init__(self) -> None:
        self._reader, self._setter = cache(_reader), cache(_setter)

    @property
    def size(self) -> int:
        return _default.default().size

    @property
    def master(self) -> int:
        return _default.default().master

    def perform(self, acts: Sequence[Any]) -> list[Any]:
        results = iter(synk.step(*filter(None, acts)))
        return [next(results) if act else [] for act in acts]

    def get(self, rank: int, variables: Sequence[Any]) -> Any:
        return synk.delayed.get_value(rank, list(variables)) if variables else None

    def set(self, rank: int | None, variables: Sequence[Any], values: Sequence[Any]) -> Any:
        if not variables:
            return None
        delayed, pair = synk.delayed, (list(variables), list(values))
        return delayed.broadcast(*pair) if rank is None else delayed.set_value(rank, *pair)

    def average(self, variables: Sequence[Any]) -> None:
        if variables:
            synk.all_reduce(list(variables), op="avg")

    def get_states(self, variable: Any) -> Any:
        is_object = _is_object(variable)
        return self._reader(variable).delayed() if is_object else synk.delayed.gather(variable)

    def set_states(self, variable: Any, states: Sequence[Any]) -> list[Any]:
        if _is_object(variable):
            return [self._setter(variable).delayed(np.stack(states))]
        return [self.set(rank, [variable], [state]) for rank, state in enumerate(states)]


def _reader(variable: Any) -> Any:
    """Return a function that gathers a stream's states, a row of each rank; it draws nothing."""
    output = ToRow()(variable), "gather"
    return synk.function([], output, name="read random states", no_default_updates=True)


def _setter(variable: Any) -> Any:
    """Return a function that scatters rows to a stream's states, in the order of the ranks."""
    rows = T.matrix("rows", dtype="uint8")
    return synk.function([rows], updates=[(variable, FromRow()(rows))], name="set random states")


RankVariables = Union[OneProcess, AllRanks]
"""Read and set shared variables, by acts that are performed as one: all of them, or none."""


def ranks_of(train: Any) -> RankVariables:
    """Return access to the ranks of a training step: all, or this process of the serial twin."""
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
    """Return a RandomState or Generator as text: a uint8 array of shape ``(ROW,)``."""
    is_generator, saved = isinstance(state, np.random.Generator), state_of(state)
    known = _BITS if is_generator else _BITS[:1]
    if saved["bit_generator"] not in known:
        raise TypeError(
            f"a random stream uses {saved['bit_generator']}; expected one of {', '.join(known)}"
        )
    text = json.dumps([is_generator, saved], separators=(",", ":"), default=lambda a: a.tolist())
    return np.frombuffer(bytearray(text.encode().ljust(ROW)), np.uint8)


def from_row(row: Any) -> Any:
    """Return the RandomState or Generator that :func:`to_row` converted."""
    is_generator, saved = json.loads(row.tobytes())
    bits = {name: getattr(np.random, name) for name in _BITS}[saved["bit_generator"]](0)
    state = np.random.Generator(bits) if is_generator else np.random.RandomState(0)
    set_state_of(state, saved)
    return state


def is_state(saved: Any) -> bool:
    """Return whether a saved state of a random stream can be set: a row, or an array of MRG."""
    if saved.ndim == 2:
        return bool((saved >= 0).all())
    try:
        return np.array_equal(to_row(from_row(saved)), saved)
    except Exception:  # noqa: BLE001 - whatever NumPy finds wrong
        return False


class ToRow(Op):
    """Convert a random state to a uint8 matrix of one row."""

    __props__ = ()

    def make_node(self, state: Any) -> Any:
        return Apply(self, [state], [T.matrix(dtype="uint8")])

    def perform(self, node: Any, inputs: Any, output_storage: Any, params: Any = None) -> None:  # noqa: ARG002 - the engine's signature
        output_storage[0][0] = to_row(inputs[0])[np.newaxis]


class FromRow(Op):
    """Convert a uint8 matrix of one row to a random state."""

    __props__ = ()

    def make_node(self, row: Any) -> Any:
        return Apply(self, [T.as_tensor_variable(row)], [random_state_type()])

    def perform(self, node: Any, inputs: Any, output_storage: Any, params: Any = None) -> None:  # noqa: ARG002 - the engine's signature
        output_storage[0][0] = from_row(inputs[0][0])
