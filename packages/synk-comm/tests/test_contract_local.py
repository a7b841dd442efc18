"""The local backend keeps the contract, in threads."""

from __future__ import annotations

import pytest

from synk_comm import local_group
from synk_comm.testing import CommunicatorContract


class TestLocal(CommunicatorContract):
    @pytest.fixture
    def make_group(self):
        return lambda size: local_group(size, timeout_s=20)
