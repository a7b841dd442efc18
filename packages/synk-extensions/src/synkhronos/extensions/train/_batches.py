"""Batches: row numbers in an order that a checkpoint can keep, or arrays drawn in a thread."""

from __future__ import annotations

import copy
import itertools
import numbers
import os
import threading
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from queue import SimpleQueue
from typing import Any

import numpy as np

from synk_core import RowSource
from synkhronos.extensions.batches import index_batches


class BatchSampler:
    """Generate the index batches of each epoch: so many ``batches``.

    To continue within an epoch, the ``settings`` have to be the same.
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
        sizes = {"rows": rows, "batch_size": batch_size}
        self.settings = {**sizes, "shuffle": shuffle, "drop_last": drop_last}
        own = isinstance(seed, (np.random.Generator, np.random.RandomState))
        self._generator = seed if own else np.random.default_rng(seed)

    def epoch(self, state: dict[str, Any], start: int = 0) -> Iterator[Any]:
        """Yield an epoch's indexes from batch ``start`` on, shuffled from a generator's state."""
        self.set_state(state)
        rows, batch_size, shuffle, drop_last = self.settings.values()
        generator = self._generator if shuffle else None
        batches = index_batches(rows, batch_size, generator, bool(drop_last))
        # The order is drawn here: a thread that nobody awaits may go through them.
        batches = itertools.chain([next(batches)], batches)
        return itertools.islice(batches, start, None)

    def get_state(self) -> dict[str, Any]:
        """Return the generator's state, as a dict of numbers, strings and arrays."""
        kind = "RandomState" if isinstance(self._generator, np.random.RandomState) else "Generator"
        return {"kind": kind, "state": state_of(self._generator)}

    def set_state(self, state: dict[str, Any]) -> None:
        """Continue the generator from a state."""
        set_state_of(self._generator, state["state"])

    def refusal(self, state: dict[str, Any]) -> str | None:
        """Return why a state cannot be set, or None. It is tried on a copy."""
        kind = self.get_state()["kind"]
        if state["kind"] != kind:
            return f"seed: rows were shuffled by a {state['kind']}, here by a {kind}"
        try:
            set_state_of(copy.deepcopy(self._generator), state["state"])
        except Exception as error:  # noqa: BLE001 - whatever NumPy finds wrong
            return f"seed: the generator refuses its state ({error})"
        return None


class BatchMaker:
    """The batches of each epoch, as arrays that the program makes; in place of a `BatchSampler`."""

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
        """Yield an epoch's batches from number ``start`` on; those before it are drawn, too."""
        number = state["state"]
        batches = self._data(number) if callable(self._data) else self._data
        if not hasattr(batches, "__iter__"):
            raise TypeError(f"data({number}) returned {batches!r}; expected an iterable of batches")
        for batch in itertools.islice(batches, start, None):
            # Of several ranks' rows, those of one may be none.
            parts = batch if isinstance(batch, (tuple, list)) and batch else [batch]
            if all(np.shape(part)[:1] == (0,) for part in parts):
                raise ValueError(f"a batch of epoch {number} has no rows; expected at least one")
            yield batch
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


def state_of(generator: Any) -> Any:
    """Return the state of a RandomState or Generator: numbers, strings and arrays."""
    if isinstance(generator, np.random.RandomState):
        return generator.get_state(legacy=False)
    return copy.deepcopy(generator.bit_generator.state)  # some return their own arrays


def set_state_of(generator: Any, state: Any) -> None:
    """Set the state of a RandomState or Generator; raise any exception if it cannot have it."""
    if isinstance(generator, np.random.RandomState):
        generator.set_state(state)
    else:
        generator.bit_generator.state = state
    state = state_of(generator)
    inner = state["state"] if isinstance(state["state"], dict) else {}
    # NumPy does not check positions in arrays, and would read what lies behind.
    if not 0 <= inner.get("pos", 0) <= 624 or not 0 <= state.get("buffer_pos", 0) <= 4:
        raise ValueError("a position is outside of its array")


def arrays_of(batch: Any) -> tuple[Any, ...]:
    """Return the arrays of a batch; raise TypeError if it is something else."""
    arrays = tuple(batch) if isinstance(batch, (tuple, list)) else (batch,)
    if not arrays or batch is None or isinstance(batch, (str, bytes, Mapping, Iterator)):
        raise TypeError(
            f"a batch is {batch!r:.60}; expected an array for each input, in a tuple, such as "
            "(x[rows], y[rows]), or a single array"
        )
    return arrays


def with_next(items: Iterator[Any], ahead: Callable[[], bool]) -> Iterator[tuple[Any, Any]]:
    """Yield each item, and the next one if `ahead()`, else None.

    If the iterator raises an Exception, the items before it come first.
    """
    after = None
    while (item := next(items, None) if after is None else after) is not None:
        after = failure = None
        if ahead():
            try:
                after = next(items, None)
            except Exception as error:  # noqa: BLE001 - raised below
                failure = error
        yield item, after
        if failure is not None:
            raise failure


_PLACES = 3
"""Sets of shared arrays: for a batch that is computed, and two that are drawn; or one that is
copied to the GPUs, and one that is drawn."""


def drawn_batches(
    batches: Iterable[Any],
    place: Callable[..., Any],
    executor: Any,
    sources: Sequence[RowSource],
    drawn: SimpleQueue[Any],
) -> Iterator[tuple[Any, ...]]:
    """Yield batches as tuples of ``Data``: a thread draws each, and copies it to shared memory.

    ``batches`` yields what `arrays_of` takes; with ``sources``, whose rows are then read straight
    to shared memory, what a call takes as ``batch``. ``place`` makes ``Data`` of the first arrays.
    The thread puts what it draws into ``drawn``. A batch keeps its values until the next one is
    drawn; one longer if the executor, that of the runtime, ``prefetches``.
    """
    asked: SimpleQueue[Any] = SimpleQueue()
    arguments = iter(batches), sources, executor, asked, drawn
    # At its end Python waits for all other threads, those of pools included.
    thread = threading.Thread(target=_draw, args=arguments, name="synkhronos batches", daemon=True)
    places: list[tuple[Any, ...]] = [()] * _PLACES
    ahead = _PLACES - 1 - executor.prefetches
    try:
        thread.start()
        for _ in range(ahead):
            asked.put(())
        for turn in itertools.cycle(range(_PLACES)):
            result = executor.await_thread(thread, drawn, "a batch, which is drawn here")
            if result is None:
                return
            if isinstance(result, BaseException):
                raise result
            values, in_place = result
            if not in_place and len(places[turn]) == len(values):
                for data, value in zip(places[turn], values):
                    data.set_value(value)
            elif not in_place:
                placed = place(*values)
                places[turn] = placed if isinstance(placed, tuple) else (placed,)
            asked.put(places[(turn + ahead) % _PLACES])
            yield places[turn]
    finally:
        asked.put(None)


def _draw(
    batches: Iterator[Any],
    sources: Sequence[RowSource],
    executor: Any,
    asked: SimpleQueue[Any],
    drawn: SimpleQueue[Any],
) -> None:
    """In the thread, draw a batch for each set of ``Data`` to copy it to."""
    owner = os.getpid()
    try:
        for held, batch in zip(iter(asked.get, None), batches):
            if os.getpid() != owner:  # a child that the iterable has forked
                executor.require_ready()
            drawn.put(_taken(batch, sources, held))
        drawn.put(None)
    except BaseException as error:
        if os.getpid() != owner:
            raise  # nobody awaits it
        drawn.put(error)


def _taken(batch: Any, sources: Sequence[RowSource], held: tuple[Any, ...]) -> tuple[Any, bool]:
    """Return a batch's arrays, and whether they were copied to `held`; else they are copies.

    The next batch may be the same arrays with other values. Only the thread that computes makes
    shared memory.
    """
    values: Any = [source.rows(batch) for source in sources] if sources else arrays_of(batch)
    if _fill(held, values):
        return held, True
    # By no map(), which a StopIteration of the program's ends early.
    return [np.asarray(value) if sources else _copied(value) for value in values], False


def _copied(value: Any) -> Any:
    if isinstance(value, (list, tuple, numbers.Number)):
        return copy.deepcopy(value)
    if isinstance(value, np.ndarray):
        return value.copy()
    # Not in one: some objects cannot be asked for a copy, and NumPy 2 would warn.
    return np.array(np.asarray(value))


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
