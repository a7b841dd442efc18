"""No memory is left on the GPUs when a program has ended, if nothing else runs beside it."""

from __future__ import annotations

import os
from typing import Any, Iterator

import pytest
from _sets import memory_used, wait_for_memory


@pytest.fixture(autouse=True)
def no_gpu_memory_left(device_set: Any) -> Iterator[None]:
    """Fail the test after which more memory of a GPU is used than before."""
    if device_set.kind != "cuda" or "SYNK_DEVICE_ALONE" not in os.environ:
        yield
        return
    before = memory_used()
    yield
    assert not (left := wait_for_memory(before)), left


@pytest.fixture
def several(device_set: Any) -> Any:
    if device_set.ranks < 2:
        pytest.skip("one rank has no workers")
    return device_set


@pytest.fixture
def limit_s(device_set: Any) -> float:
    """What to give ``fork(timeout_s=...)``: NCCL starts within it, amid other programs, too."""
    return 30.0 if device_set.kind == "cuda" else 10.0
