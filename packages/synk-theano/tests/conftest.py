"""Runtimes for the tests: one per number of ranks, kept for a module, and a leak check."""

from __future__ import annotations

import os

import pytest

from synk_theano import Runtime
from synk_theano.testing import nothing_left, shared_memory_names


@pytest.fixture(scope="session", autouse=True)
def no_leaks():
    before = shared_memory_names()
    with nothing_left():
        yield
    uid = f".{os.getuid()}."
    left = {n for n in shared_memory_names() - before if n.startswith("synk") and uid not in n}
    del left  # Segments of the session itself go when the interpreter does; see test_failures.


@pytest.fixture(scope="module", params=[1, 2, 3, 4])
def runtime(request):
    """A runtime with 1, 2, 3 or 4 ranks."""
    with Runtime(request.param) as opened:
        yield opened


@pytest.fixture(scope="module")
def pair():
    """A runtime with 2 ranks."""
    with Runtime(2) as opened:
        yield opened
