"""The local backend keeps the contract, in threads."""

from __future__ import annotations

import os

import pytest

from synk_comm import local_group
from synk_comm.testing import CommunicatorContract


class TestLocal(CommunicatorContract):
    sizes = (1, 2, 3, 4, 5) if os.environ.get("SYNK_TESTS") == "all" else (1, 3)

    @pytest.fixture
    def make_group(self):
        return lambda size: local_group(size, timeout_s=20)
