"""The fixtures, and which tests run on which engine."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Optional

# Modules of the tests' own, whose names begin with "_", are imported by name.
sys.path.insert(0, str(Path(__file__).parent))

from _fixtures import (  # noqa: F401
    by_value,
    flight_records,
    frozen,
    house,
    no_leaks,
    pair,
    run_script,
    runtime,
    trio,
    zygote,
)

from synk_testing.engine import IS_THEANO

ON_BOTH = (
    *("atomic", "collectives", "failures", "flat", "function", "in_graph", "sequences", "step"),
    *("adapters", "check", "verify"),
)
"""Tests, by the names of their files, that run on any engine. The others build graphs by names that
Theano alone has, and on another engine run only if they are named."""


def pytest_ignore_collect(collection_path: Path) -> Optional[bool]:
    if IS_THEANO or collection_path == Path(__file__).parent:
        return None
    is_of_one = collection_path.stem.removeprefix("test_") not in ON_BOTH
    return True if is_of_one and collection_path.is_relative_to(Path(__file__).parent) else None
