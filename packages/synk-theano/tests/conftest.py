"""Runtimes for the tests: one per number of ranks, kept for all of them, and a leak check."""

from __future__ import annotations

import os
import sys
from pathlib import Path

# Most of the time of these tests goes into compiling: less of it, and less often anew.
os.environ.setdefault("THEANO_FLAGS", "gcc.cxxflags=-O0,optimizer_excluding=fusion")

# Modules of the tests' own, whose names begin with "_", are imported by name.
sys.path.insert(0, str(Path(__file__).parent))

import pytest

from synk_theano import Runtime
from synk_theano.testing import nothing_left


@pytest.fixture(scope="session", autouse=True)
def flight_records(tmp_path_factory):
    """Records of failures that are meant to be are not the user's."""
    os.environ["SYNKHRONOS_FLIGHT_DIR"] = str(tmp_path_factory.mktemp("flight"))


@pytest.fixture(scope="session", autouse=True)
def no_leaks():
    """No child process and no shared memory is left when all tests are done."""
    with nothing_left():
        yield


# To start workers, which import Theano, takes longer than most tests.
@pytest.fixture(scope="session", params=[1, 2, 3, 4])
def runtime(request):
    """A runtime with 1, 2, 3 or 4 ranks."""
    with Runtime(request.param) as opened:
        yield opened


@pytest.fixture(scope="session")
def pair():
    """A runtime with 2 ranks."""
    with Runtime(2) as opened:
        yield opened
