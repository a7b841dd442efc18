"""Modules of the tests' own, whose names begin with "_", are imported by name."""

from __future__ import annotations

import signal
import sys
from pathlib import Path
from typing import Optional

sys.path.insert(0, str(Path(__file__).parent))

import pytest

from synk_testing.engine import is_left_out

ON_BOTH = (*("cli", "examples", "nn", "sync_trainer", "train", "updates"),)
"""Tests, by the names of their files, that run on any engine, whenever tests run. Of the others,
those that import no Theano do so at night. Those of PyMC are run by a pytest of their own."""


@pytest.fixture
def ctrl_c():
    """Make Ctrl-C raise KeyboardInterrupt, as in a program."""
    usual = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, usual)


@pytest.fixture(scope="module")
def two_ranks():
    from _training import forked

    with forked(2):
        yield


def pytest_ignore_collect(collection_path: Path) -> Optional[bool]:
    return is_left_out(collection_path, ON_BOTH) or None
