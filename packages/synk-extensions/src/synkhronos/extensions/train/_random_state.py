"""States of NumPy's RandomState as rows of numbers, so that they can travel between ranks.

Collectives carry arrays; a ``RandomStreams`` keeps objects. Two Ops turn one into the other inside
functions of all ranks, which gather and scatter the rows.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import theano.tensor as T
from theano.gof import Apply, Op
from theano.tensor.raw_random import random_state_type

_KEYS = 624  # 32-bit words of the Mersenne twister, each exact in a float64
ROW = _KEYS + 3


def to_row(state: np.random.RandomState) -> Any:
    """A RandomState as a float64 array of shape ``(627,)``.

    Raises:
        TypeError: It does not draw from the Mersenne twister.
    """
    told: Any = state.get_state(legacy=False)
    if told["bit_generator"] != "MT19937":
        raise TypeError(
            f"a random stream draws from {told['bit_generator']}; expected numpy's RandomState "
            "with its own MT19937, as RandomStreams makes them"
        )
    row = np.empty(ROW)
    row[:_KEYS] = told["state"]["key"]
    row[_KEYS:] = told["state"]["pos"], told["has_gauss"], told["gauss"]
    return row


def from_row(row: Any) -> np.random.RandomState:
    """The RandomState that :func:`to_row` was given."""
    state = np.random.RandomState(0)
    key = row[:_KEYS].astype(np.uint32)
    position, has_gauss, gauss = row[_KEYS:]
    state.set_state(("MT19937", key, int(position), int(has_gauss), float(gauss)))
    return state


class ToRow(Op):
    """Random state -> float64 matrix of one row."""

    __props__ = ()

    def make_node(self, state: Any) -> Any:
        return Apply(self, [state], [T.dmatrix()])

    def perform(self, node: Any, inputs: Any, output_storage: Any, params: Any = None) -> None:  # noqa: ARG002 - Theano's signature
        output_storage[0][0] = to_row(inputs[0])[np.newaxis]


class FromRow(Op):
    """Float64 matrix of one row -> random state."""

    __props__ = ()

    def make_node(self, row: Any) -> Any:
        return Apply(self, [T.as_tensor_variable(row)], [random_state_type()])

    def perform(self, node: Any, inputs: Any, output_storage: Any, params: Any = None) -> None:  # noqa: ARG002 - Theano's signature
        output_storage[0][0] = from_row(inputs[0][0])
