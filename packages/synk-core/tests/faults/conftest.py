"""Programs to be struck."""

from __future__ import annotations

import sys
from pathlib import Path

# Before the modules beside this one are imported.
sys.path.insert(0, str(Path(__file__).parent))

import pytest

pytest.register_assert_rewrite("_fault_case", "_fault_client")

from _fault_client import Hosts  # noqa: E402 - it asserts, too


@pytest.fixture(scope="session")
def hosts(tmp_path_factory, zygote):
    """Programs that are masters."""
    made = Hosts(tmp_path_factory.mktemp("hosts"), zygote)
    yield made
    made.end()
