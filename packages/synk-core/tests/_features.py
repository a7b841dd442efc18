"""Which features the runtime has: tests marked with one that it lacks do not run."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, Dict

import synk_core

_ROOM = Path(synk_core.__file__).parent / "_features"

FEATURES = frozenset(path.parent.name for path in _ROOM.glob("*/__init__.py"))

STAND_INS = bool(os.environ.get("SYNKHRONOS_JAX_STAND_INS"))
"""Whether the ranks have stand-ins for GPUs of JAX's."""

UNPROVED: Dict[str, Any] = {"proof": False} if "proof" in FEATURES else {}
"""For operations that misbehave by their rows: a proof has the master compute all of them."""
