"""The fixtures, and which tests run on which engine."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import List, Optional

import pytest

# Modules of the tests' own, whose names begin with "_", are imported by name.
sys.path.insert(0, str(Path(__file__).parent))
sys.path.insert(0, str(Path(__file__).parent / "faults"))

from _features import FEATURES
from _fixtures import (  # noqa: F401
    by_value,
    frozen,
    house,
    no_leaks,
    pair,
    python_on_cores,
    run_script,
    runtime,
    trio,
    unproved,
    zygote,
)

from synk_testing.engine import is_left_out

ON_BOTH = (
    *("atomic", "collectives", "failures", "flat", "function", "in_graph", "sequences", "step"),
    *("adapters", "bare", "check", "data", "proof", "row_axis", "seeds", "spec"),
)
"""Tests, by the names of their files, that run on any engine, whenever tests run. Of the others,
those that import no Theano do so at night."""


def pytest_ignore_collect(collection_path: Path) -> Optional[bool]:
    return is_left_out(collection_path, ON_BOTH) or None


def pytest_collection_modifyitems(items: List[pytest.Item]) -> None:
    items[:] = [
        item
        for item in items
        if FEATURES.issuperset(one for mark in item.iter_markers("feature") for one in mark.args)
    ]
