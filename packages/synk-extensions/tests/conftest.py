"""Tests that import no Theano run on any engine; those of PyMC have a pytest of their own.

Modules of the tests' own, whose names begin with "_", are imported by name.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Optional

sys.path.insert(0, str(Path(__file__).parent))

from synk_testing.engine import needs_theano


def pytest_ignore_collect(collection_path: Path) -> Optional[bool]:
    return needs_theano(collection_path) or None
