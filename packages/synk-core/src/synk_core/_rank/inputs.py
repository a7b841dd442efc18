"""The arguments of a call on one rank: its rows of scattered arrays, and other arrays whole."""

from __future__ import annotations

from typing import Any, List, Sequence

import numpy as np

from synk_core._graph.values import is_device_type
from synk_core._wire.messages import Call, Rows
from synk_core.engine import machine_of

from .functions import LoadedFunction
from .workplace import Workplace


class CallInputs:
    """Takes the rows of a call, again and again.

    Attributes:
        scattered: the arrays of which rows are taken, and how.
        broadcast: arrays that are taken whole.
        copies: whether rows are copied: by an index, or for a copy to the device.
        brought: by argument, whether it lies on the device when the function gets it.
    """

    def __init__(self, here: Workplace, call: Call, loaded: LoadedFunction, function: Any) -> None:
        arrays = here.arrays
        self._here, self._buffers = here, loaded.buffers
        self._rows = call.rows or Rows(bounds=())
        self._index = None if self._rows.index is None else arrays.get(self._rows.index)
        self.scattered = [(arrays.get(item.array), item) for item in call.scattered]
        self.broadcast = [arrays.get(ref) for ref in call.broadcast]
        self.brought: List[bool] = getattr(machine_of(function), "brought", None) or [
            is_device_type(item.variable.type) for item in function.maker.inputs
        ]
        self.brings = any(self.brought)
        self.copies = self._index is not None
        for i, array in enumerate(self.arrays):
            is_scattered = i < len(self.scattered)
            # Rows by an index go through a buffer anyway.
            if self.brought[i] and not (is_scattered and self._index is not None):
                if not here.device.lock(array) and is_scattered:
                    self.copies = True

    @property
    def arrays(self) -> List[np.ndarray]:
        """All arrays, in the order of the arguments."""
        return [array for array, _ in self.scattered] + self.broadcast

    def take(self, origin: int, start: int, stop: int, turn: int = 0) -> List[np.ndarray]:
        """Return the arguments for rows ``start:stop`` of the selection: views, or copies in
        buffers of this `turn` that are reused from call to call; `origin` is its lowest row."""
        arguments = []
        for position, (array, item) in enumerate(self.scattered):
            every = np.moveaxis(array, item.axis, 0) if item.axis else array
            if item.selected:
                rows = every[start:stop]
            elif self._index is not None:
                buffer = self._buffer(position, every, stop - start, turn)
                rows = self._here.arrays.take(every, self._index[start:stop], buffer)
            else:
                span = self._rows.span(start, stop, origin, origin if item.minibatch else 0)
                rows = every[span]
                if self.copies and self.brought[position]:
                    buffer = self._buffer(position, every, stop - start, turn)
                    np.copyto(buffer, rows)
                    rows = buffer
            arguments.append(np.moveaxis(rows, 0, item.axis) if item.axis else rows)
        return arguments + self.broadcast

    def _buffer(self, position: int, like: np.ndarray, length: int, turn: int) -> np.ndarray:
        """Return memory for `length` rows of the input at `position`."""
        held, row = self._buffers.get((position, turn)), like.shape[1:]
        if held is None or len(held) < length or held.shape[1:] != row or held.dtype != like.dtype:
            held = self._here.device.buffer((length, *row), like.dtype)
            self._buffers[position, turn] = held
        return held[:length]

    def bring(self, arguments: Sequence[Any]) -> List[Any]:
        """Return arguments where the function gets them; `Device.settle` follows."""
        bring = self._here.device.bring
        return [bring(a) if b else a for a, b in zip(arguments, self.brought)]

    def close(self) -> None:
        """Drop references to shared memory."""
        self.scattered, self.broadcast = [], []
        self._index = None
