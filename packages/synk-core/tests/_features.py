"""Which features the runtime has: tests marked with one that it lacks do not run."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Dict

import synk_core

_ROOM = Path(synk_core.__file__).parent / "_features"

FEATURES = frozenset(path.parent.name for path in _ROOM.glob("*/__init__.py"))

UNPROVED: Dict[str, Any] = {"proof": False} if "proof" in FEATURES else {}
"""For operations that misbehave by their rows: a proof has the master compute all of them."""
