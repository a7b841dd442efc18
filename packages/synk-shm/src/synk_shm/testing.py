"""For tests of packages that use shared arrays: prove that nothing is left behind.

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
"""For what processes made that are gone: those of the block, or another program's."""


@contextlib.contextmanager
def no_segments_left(timeout_s: float = 5.0) -> Iterator[None]:
    """Fail if the block leaves segments that were not there before.

    What counts is what this process and its multiprocessing children made, and what
    processes made of which none is left. Segments of other living programs do not count.
    Children of the block may still be on their way out: it waits for them up to `timeout_s`
    seconds; and up to 30 for what dead processes made, which another program may be about to
    remove.

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
