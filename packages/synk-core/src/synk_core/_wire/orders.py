"""Send orders: a broadcast of one line of integers, 256 bytes, and a second one of extras."""

from __future__ import annotations

import pickle
from dataclasses import replace
from typing import Any, Callable, List, Optional

import numpy as np

from .messages import Extras, Order, Step

WIDTH = 32
"""Integers in a line: serial, bytes of extras, number of steps, then two for each step."""

_HEADER = 3
STEPS_IN_LINE = (WIDTH - _HEADER) // 2

_GRAIN = 512
"""Extras are padded to multiples of this many bytes: few lengths, few different broadcasts."""


class OrderLine:
    """Sends orders in the master; receives them in a worker."""

    def __init__(self, comm: Any, master: int) -> None:
        self._broadcast: Callable[..., Any] = comm.broadcast
        self._master = master
        self._line = np.zeros(WIDTH, np.int64)
        # Single integers go in quicker this way.
        self._words: Any = memoryview(self._line)  # type: ignore[arg-type] # says NumPy 1

    def give(self, order: Order, timeout_s: Optional[float] = None) -> None:
        """Send an order to all other ranks; block until they take it, at most for `timeout_s`
        seconds (None: the communicator's)."""
        serial, steps, extras = order
        words = self._words
        words[0], words[1], words[2] = serial, 0, len(steps)
        payload = b""
        if len(steps) > STEPS_IN_LINE:
            extras = replace(extras or Extras({}), steps=list(steps))
        else:
            place = _HEADER
            for number, origin in steps:
                words[place], words[place + 1] = number, origin
                place += 2
        if extras is not None:
            payload = pickle.dumps(extras, protocol=5)
            words[1] = len(payload)
        self._broadcast(self._line, self._master, timeout_s=timeout_s)
        if payload:
            padded = np.zeros(_padded(len(payload)), np.uint8)
            padded[: len(payload)] = np.frombuffer(payload, np.uint8)
            self._broadcast(padded, self._master, timeout_s=timeout_s)

    def take(self) -> Order:
        """Wait for the master's next order, or for the master's end."""
        self._broadcast(self._line, self._master)
        serial, length, count, *words = self._line.tolist()
        steps: List[Step] = []
        if count <= STEPS_IN_LINE:
            steps = [Step(words[2 * i], words[2 * i + 1]) for i in range(count)]
        if not length:
            return Order(serial, steps)
        padded = np.empty(_padded(length), np.uint8)
        self._broadcast(padded, self._master)
        # From the master alone: through memory that only its children can open, or by MPI.
        extras: Extras = pickle.loads(padded[:length].tobytes())
        return Order(serial, steps if extras.steps is None else extras.steps, extras)


def _padded(length: int) -> int:
    return -(-length // _GRAIN) * _GRAIN
