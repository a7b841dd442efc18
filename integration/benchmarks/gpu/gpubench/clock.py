"""What all that measure need: a wait for the device, and batches of rows."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
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


def batches(rows: int, size: int) -> Iterator[Any]:
    """Yield shuffled row numbers for one step after the other, epoch after epoch."""
    generator = np.random.default_rng(2)
    order = generator.permutation(rows)
    while True:
        if len(order) < size:
            order = generator.permutation(rows)
        batch, order = order[:size], order[size:]
        yield batch
