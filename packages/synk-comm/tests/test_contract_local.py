"""The local backend keeps the contract, in threads."""

from __future__ import annotations

import gc
import os
import weakref

import numpy as np
import pytest

from synk_comm import ClosedError, CommTimeout, PeerLost, local_group
from synk_comm.testing import CommunicatorContract


class TestLocal(CommunicatorContract):
    sizes = (1, 2, 3, 4, 5) if os.environ.get("SYNK_TESTS") == "all" else (1, 3)

    @pytest.fixture
    def make_group(self):
        return lambda size: local_group(size, timeout_s=20)


def test_close_names_the_rank_that_does_not_take_its_message():
    """It is closed all the same, and lets the array go that it kept until then."""
    first, second = local_group(2, timeout_s=0.2)
    x = np.zeros(3_000_000)
    kept = weakref.ref(x)
    request = first.isend(x, 1)
    del x
    assert kept() is not None
    with pytest.raises(CommTimeout, match="send to rank 1") as caught:
        first.close()
    assert list(caught.value.missing) == [1]
    for call in (request.wait, request.test, first.barrier):
        with pytest.raises(ClosedError):
            call()
    first.close()
    del request, caught
    gc.collect()
    assert kept() is None
    with pytest.raises(PeerLost, match="closed"):
        second.recv(0)
    second.close()
