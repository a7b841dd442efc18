"""The fixtures; tests that import no Theano run on any engine."""

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

from synk_testing.engine import needs_theano


def pytest_ignore_collect(collection_path: Path) -> Optional[bool]:
    return needs_theano(collection_path) or None
