"""The order of the rows: shuffled for each epoch, from a state that a checkpoint can keep."""

from __future__ import annotations

import copy
import itertools
import numbers
import warnings
from collections.abc import Iterator
from typing import Any

import numpy as np

from synkhronos.extensions.batches import index_batches


class BatchSampler:
    """Generate the index batches of each epoch.

    Attributes:
        batches: Number of batches in an epoch.
        settings: Values that have to be the same to continue within an epoch, as a dict.

    Args:
        seed: Anything that ``numpy.random.default_rng`` takes; or a Generator or RandomState,
            which is used directly.

    Raises:
        TypeError: ``batch_size`` is not an integer.
        ValueError: An epoch would have no batch.
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
        self.settings = {
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
            state: The generator's state before it shuffles the rows of this epoch.
        """
        self.set_state(state)
        settings = self.settings
        batches = index_batches(
            settings["rows"],
            settings["batch_size"],
            self._generator if settings["shuffle"] else None,
            bool(settings["drop_last"]),
        )
        return itertools.islice(batches, start, None)

    def get_state(self) -> dict[str, Any]:
        """Return the generator's state, as a dict of numbers, strings and arrays."""
        generator = self._generator
        if isinstance(generator, np.random.RandomState):
            return {"kind": "RandomState", "state": generator.get_state(legacy=False)}
        # A copy: some bit generators return their own arrays.
        state = copy.deepcopy(generator.bit_generator.state)
        return {"kind": "Generator", "state": state}

    def set_state(self, state: dict[str, Any]) -> None:
        """Continue the generator from a state."""
        if isinstance(self._generator, np.random.RandomState):
            self._generator.set_state(state["state"])
        else:
            self._generator.bit_generator.state = state["state"]

    def refusal(self, state: dict[str, Any]) -> str | None:
        """Return why a state cannot be set, or None. It is tried on a copy."""
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
