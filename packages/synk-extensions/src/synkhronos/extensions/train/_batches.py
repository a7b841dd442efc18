"""Batches: row numbers in an order that a checkpoint can keep, or arrays drawn in a thread."""

from __future__ import annotations

import copy
import itertools
import numbers
import warnings
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np

from synk_core import RowSource
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
            raise TypeError(
                f"batch_size is {batch_size!r}; expected an integer (the data of several inputs "
                "are one tuple: Trainer(train, (x, y), 64))"
            )
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
                stacklevel=4,  # behind the Trainer's __init__, and what checks its keywords
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
            if not has_positions(trial.get_state()["state"]):
                raise ValueError("a position is outside of its array")
        except Exception as error:  # noqa: BLE001 - whatever NumPy finds wrong
            return f"seed: the generator refuses its state ({error})"
        return None


class BatchMaker:
    """The batches of each epoch, as arrays that the program makes; in place of a `BatchSampler`.

    Args:
        data: A function from the number of finished epochs to an iterable of batches, or an
            iterable that can be iterated anew for each epoch.
        batch_size: None: the batches have their own.

    Raises:
        TypeError: ``data`` gives one epoch only, or there is a ``batch_size``.
    """

    KIND = "loader"

    def __init__(self, data: Any, batch_size: Any) -> None:
        if hasattr(data, "__next__"):
            raise TypeError(
                f"data is {data!r}, which ends after one epoch; expected a function that returns "
                "a new one: Trainer(train, lambda epoch: batches())"
            )
        if batch_size is not None:
            raise TypeError(
                f"batch_size is {batch_size!r}, but data yields batches, which have a size; "
                "expected None"
            )
        self._data = data
        self._epoch = 0
        self.batches = len(data) if hasattr(data, "__len__") else None
        self.settings = {"batches": self.KIND}

    @staticmethod
    def makes(data: Any) -> bool:
        """Return whether the Trainer's ``data`` are batches, rather than arrays."""
        is_array = isinstance(data, (tuple, list, str, dict)) or hasattr(data, "shape")
        return callable(data) or (hasattr(data, "__iter__") and not is_array)

    def epoch(self, state: dict[str, Any], start: int = 0) -> Iterator[Any]:
        """Return an epoch's batches from number ``start`` on; those before it are drawn, too.

        Raises:
            TypeError: The program's function returned no iterable.
        """
        number = state["state"]
        batches = self._data(number) if callable(self._data) else self._data
        if not hasattr(batches, "__iter__"):
            raise TypeError(f"data({number}) returned {batches!r}; expected an iterable of batches")
        return self._rest(batches, start, number)

    def _rest(self, batches: Iterable[Any], start: int, number: int) -> Iterator[Any]:
        yield from itertools.islice(batches, start, None)
        self._epoch = number + 1

    def get_state(self) -> dict[str, Any]:
        """Return the number of the next epoch, as a `BatchSampler` returns its state."""
        return {"kind": self.KIND, "state": self._epoch}

    def set_state(self, state: dict[str, Any]) -> None:
        """Continue with an epoch."""
        self._epoch = state["state"]

    def refusal(self, state: dict[str, Any]) -> str | None:
        """Return why a state cannot be set, or None."""
        if state["kind"] != self.KIND:
            return f"data: rows were shuffled by a {state['kind']}, here batches come from a loader"
        is_number = type(state["state"]) is int and state["state"] >= 0
        return None if is_number else f"data: {state['state']!r:.80} is no number of an epoch"


def has_positions(state: Any) -> bool:
    """Return whether the positions in a bit generator's state are within its arrays.

    NumPy does not check them, and would read what lies behind.
    """
    inner = state["state"] if isinstance(state["state"], dict) else {}
    return 0 <= inner.get("pos", 0) <= 624 and 0 <= state.get("buffer_pos", 0) <= 4


def noted(batches: Iterator[Any]) -> tuple[Iterator[Any], deque[int | None]]:
    """Return batches, and a queue of the rows of each, with None after the last.

    The first is drawn here, each further one when it is asked for, in any thread.
    """
    rows: deque[int | None] = deque()

    def draw() -> Any:
        batch = next(batches, None)
        first: Any = batch[0] if isinstance(batch, (tuple, list)) and batch else batch
        # A step refuses what has no rows.
        rows.append(None if batch is None else len(first) if np.ndim(first) else 0)
        return batch

    def drawn(batch: Any) -> Iterator[Any]:
        while batch is not None:
            yield batch
            batch = draw()

    return drawn(draw()), rows


def with_next(items: Iterator[Any]) -> Iterator[tuple[Any, Any]]:
    """Yield each item and the next one, None after the last.

    If the iterator raises an Exception, the items before it come first.
    """
    failures: list[Exception] = []

    def following() -> Any:
        try:
            return next(items, None)
        except Exception as error:  # noqa: BLE001 - raised below
            failures.append(error)
            return None

    item = following()
    while item is not None:
        after = following()
        yield item, after
        item = after
    if failures:
        raise failures[0]


_PLACES = 3
"""Sets of shared arrays: for a batch that is computed, one that is copied to the GPUs meanwhile,
and one that is drawn."""

_END = object()


class DrawnBatches:
    """Batches that come as arrays: a thread draws each, and copies it to shared memory.

    Args:
        batches: Yields an array for each input of a step, in a tuple; or a single one. With
            ``sources``, what a call takes as ``batch``.
        place: Makes a ``Data`` of each of the first arrays, as ``Function.build_inputs`` does.
        sources: Of which each batch has rows; they are read to where they are to lie.

    Iterating yields tuples of ``Data``, each of which keeps its values until the iterator has been
    asked twice more.
    """

    def __init__(
        self,
        batches: Iterable[Any],
        place: Callable[..., Any],
        sources: Sequence[RowSource] = (),
    ) -> None:
        self._batches = iter(batches)
        self._place = place
        self._sources = sources
        self._places: list[tuple[Any, ...]] = [()] * _PLACES
        self._count = 0
        self._thread = ThreadPoolExecutor(1, "synkhronos batches")
        self._drawn = self._thread.submit(self._draw, self._places[0])

    def __iter__(self) -> DrawnBatches:
        return self

    def __next__(self) -> tuple[Any, ...]:
        """Return the next batch. Blocks until it is drawn."""
        drawn, in_place = self._drawn.result()
        if drawn is _END:
            raise StopIteration
        turn = self._count % _PLACES
        if not in_place:
            held = self._places[turn]
            if len(held) == len(drawn):
                for data, value in zip(held, drawn):
                    data.set_value(value)
            else:
                placed = self._place(*drawn)
                self._places[turn] = placed if isinstance(placed, tuple) else (placed,)
        self._count += 1
        following = self._places[self._count % _PLACES]
        self._drawn = self._thread.submit(self._draw, following)
        return self._places[turn]

    def close(self) -> None:
        """Draw no more. Does not wait for a batch that is being drawn."""
        self._thread.shutdown(wait=False, cancel_futures=True)

    def _draw(self, held: tuple[Any, ...]) -> tuple[Any, bool]:
        """Return the next batch, and whether it was copied to `held`; only new memory is left to
        the thread that computes."""
        batch = next(self._batches, _END)
        if batch is _END:
            return _END, True
        values: tuple[Any, ...]
        if self._sources:
            values = tuple(source.rows(batch) for source in self._sources)
        else:
            values = tuple(batch) if isinstance(batch, (tuple, list)) else (batch,)
        if _fill(held, values):
            return held, True
        return (tuple(map(np.asarray, values)) if self._sources else values), False


def _fill(held: Sequence[Any], values: Sequence[Any]) -> bool:
    """Copy values to each ``Data``; return False, having done nothing, if they are too small."""
    if len(values) != len(held):
        return False
    arrays = [data.condition_data(value) for data, value in zip(held, values)]
    if any(array.size > data.alloc_size for data, array in zip(held, arrays)):
        return False
    for data, array in zip(held, arrays):
        data.set_shape(array.shape)
        data[...] = array
    return True
