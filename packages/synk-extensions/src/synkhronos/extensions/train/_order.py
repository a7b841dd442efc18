"""In which order the rows come: shuffled for each epoch, from a state that can be kept."""

from __future__ import annotations

import copy
import itertools
import numbers
import warnings
from collections.abc import Iterator
from typing import Any

import numpy as np

from synkhronos.extensions.batches import index_batches


class Order:
    """The index batches of each epoch.

    Attributes:
        batches: Their number in an epoch.
        told: What has to be the same for an epoch to go on where it was, as a dict.

    Args:
        seed: What ``numpy.random.default_rng`` takes; or a Generator or RandomState, which is
            taken as it is.

    Raises:
        TypeError: ``batch_size`` is no integer.
        ValueError: There is no batch.
    """

    def __init__(
        self, rows: int, batch_size: Any, seed: Any, shuffle: bool, drop_last: bool
    ) -> None:
        if not isinstance(batch_size, numbers.Integral):
            raise TypeError(f"batch_size is {batch_size!r}; expected an integer")
        batch_size = int(batch_size)
        whole, rest = divmod(rows, max(batch_size, 1))
        self.batches = whole + (1 if rest and not drop_last else 0)
        if batch_size < 1 or not self.batches:
            raise ValueError(
                f"{rows} rows make no batch of batch_size {batch_size}; expected rows, and a "
                "batch_size of at least 1"
            )
        if batch_size > rows:
            warnings.warn(
                f"batch_size is {batch_size}, but there are only {rows} rows: each epoch is one "
                "step with all of them",
                stacklevel=3,
            )
        self.told = {
            "rows": rows,
            "batch_size": batch_size,
            "shuffle": shuffle,
            "drop_last": drop_last,
        }
        own = isinstance(seed, (np.random.Generator, np.random.RandomState))
        self._generator = seed if own else np.random.default_rng(seed)

    def epoch(self, state: dict[str, Any], start: int = 0) -> Iterator[Any]:
        """Yield an epoch's indexes from batch number ``start`` on.

        Args:
            state: The generator's, before it shuffles the rows of this epoch.
        """
        self.set_state(state)
        told = self.told
        batches = index_batches(
            told["rows"],
            told["batch_size"],
            self._generator if told["shuffle"] else None,
            bool(told["drop_last"]),
        )
        return itertools.islice(batches, start, None)

    def get_state(self) -> dict[str, Any]:
        """The generator's state, as a dict of numbers, strings and arrays."""
        generator = self._generator
        if isinstance(generator, np.random.RandomState):
            return {"kind": "RandomState", "state": generator.get_state(legacy=False)}
        # A copy: bit generators with arrays hand out their own.
        state = copy.deepcopy(generator.bit_generator.state)
        return {"kind": "Generator", "state": state}

    def set_state(self, state: dict[str, Any]) -> None:
        """Have the generator go on from a state."""
        if isinstance(self._generator, np.random.RandomState):
            self._generator.set_state(state["state"])
        else:
            self._generator.bit_generator.state = state["state"]

    def refusal(self, state: dict[str, Any]) -> str | None:
        """Why a state cannot be set, or None. Tried on a copy."""
        kind = type(self._generator).__name__
        if state["kind"] != kind:
            return f"seed: rows were shuffled by a {state['kind']}, here by a {kind}"
        trial = copy.copy(self)
        trial._generator = copy.deepcopy(self._generator)
        try:
            trial.set_state(state)
        except (ValueError, TypeError, KeyError, IndexError) as error:
            return f"seed: the generator refuses its state ({error})"
        return None
