"""Timing: rounds of calls, with a wait for the device at the end of each."""

from __future__ import annotations

import ctypes
import gc
import time
from typing import Any, Callable

import numpy as np


def device_wait(variable: Any) -> Callable[[], None]:
    """Return what waits until all that was ordered on the device of a shared variable is done.

    Does nothing for a variable in host memory.
    """
    value = variable.get_value(borrow=True, return_internal_type=True)
    context = getattr(value, "context", None)
    if context is None:
        return lambda: None
    if context.kind not in (b"cuda", "cuda"):
        return lambda: variable.get_value(borrow=True, return_internal_type=True).sync()
    driver = ctypes.CDLL("libcuda.so.1")

    def wait() -> None:
        # All of the device: libgpuarray knows nothing of what NCCL does to its arrays.
        with context:
            status = driver.cuCtxSynchronize()
        assert status == 0, f"cuCtxSynchronize: {status}"

    return wait


def rounds(
    ways: dict[str, Callable[[], Any]],
    wait: Callable[[], None],
    count: int,
    calls: int,
    warm: int = 2,
) -> dict[str, list[float]]:
    """Seconds per call of several ways that take turns, `count` rounds of `calls` each.

    Args:
        ways: what to call, by name.
        wait: called at the end of each round, within its time.
        count: number of rounds.
        calls: number of calls in a round.
        warm: calls of each before the first round, not counted.
    """
    for way in ways.values():
        for _ in range(warm):
            way()
    wait()
    times: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(count):
        gc.collect()
        for name, way in ways.items():
            wait()
            began = time.perf_counter()
            for _ in range(calls):
                way()
            wait()
            times[name].append((time.perf_counter() - began) / calls)
    return times


class Batches:
    """Shuffled row numbers for one step after the other, epoch after epoch.

    Args:
        rows: of the data set.
        size: of a batch.
    """

    def __init__(self, rows: int, size: int) -> None:
        self._generator = np.random.default_rng(2)
        self._rows, self._size = rows, size
        self._order: Any = ()

    def __call__(self) -> Any:
        """Return the next batch: an int64 array."""
        if len(self._order) < self._size:
            self._order = self._generator.permutation(self._rows)
        batch, self._order = self._order[: self._size], self._order[self._size :]
        return batch
