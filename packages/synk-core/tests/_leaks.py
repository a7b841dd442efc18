"""Check that nothing is left of the ranks that a block has started."""

from __future__ import annotations

from contextlib import contextmanager

from synk_shm.testing import no_segments_left
from synk_testing import BUT_PROCESSES, nothing_left


@contextmanager
def no_ranks_left(grace_s=5.0):
    """Assert that the block leaves no child process behind, and no shared memory."""
    with nothing_left(grace_s, without=BUT_PROCESSES), no_segments_left(grace_s):
        yield
