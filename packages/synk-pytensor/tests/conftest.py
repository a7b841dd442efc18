"""The fixtures of synk-core's tests."""

from __future__ import annotations

import sys
from pathlib import Path

# Where these and other modules are that tests of functions on ranks have in common.
sys.path.insert(0, str(Path(__file__).parents[2] / "synk-core/tests"))

from _fixtures import by_value, frozen, house, no_leaks, pair, run_script, runtime, trio, zygote  # noqa: F401 - of these tests, too
