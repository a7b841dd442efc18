"""Check, in tests of packages that use shared arrays, that no segment is left.

As a context manager::

    with no_segments_left():
        run_something()

As a pytest fixture, with ``pytest_plugins = ["synk_shm.testing"]`` in a conftest.py::

    def test_something(no_segments_left): ...
"""

from __future__ import annotations

import contextlib
import gc
import time
from collections.abc import Iterator

from synk_shm._arrays.listing import list_segments
from synk_shm._processes import families

__all__ = ["no_segments_left"]

DEAD_S = 30.0
"""Seconds until segments of dead processes, also of other programs, count as left."""


@contextlib.contextmanager
def no_segments_left(timeout_s: float = 5.0) -> Iterator[None]:
    """Fail if the block leaves segments that were not there before.

    Segments of this process, of its multiprocessing children and of dead processes count;
    those of other living programs do not. Children may still be ending: it waits up to
    `timeout_s` seconds for their segments, and up to 30 seconds for those of dead processes,
    which another program may be about to remove.

    Raises:
        AssertionError: with the names that are left.
    """
    before = {name for name, _ in families.names_of_user()}
    yield
    gc.collect()
    began = time.monotonic()
    while True:
        found = [info for info in list_segments() if before.isdisjoint(info.names)]
        left = [info.name for info in found if info.mine or not info.alive]
        if not left:
            return
        limit_s = timeout_s if any(info.mine for info in found) else max(timeout_s, DEAD_S)
        if time.monotonic() > began + limit_s:
            raise AssertionError(f"{len(left)} shared memory segments are left: {left}")
        time.sleep(0.01)


try:
    import pytest
except ImportError:  # the context manager works without
    pass
else:

    @pytest.fixture(name="no_segments_left")
    def _fixture() -> Iterator[None]:
        """Fail the test if it leaves segments behind."""
        with no_segments_left():
            yield
