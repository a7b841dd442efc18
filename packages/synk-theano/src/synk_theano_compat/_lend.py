"""Stand-ins for modules that another one imports: there while that is executed, then gone."""

from __future__ import annotations

import sys
from types import ModuleType
from typing import Optional

_lent: dict[str, Optional[ModuleType]] = {}


def lend(name: str, module: Optional[ModuleType]) -> str:
    """Have ``import name`` find ``module``, or nothing (None), unless it was imported already."""
    if name in sys.modules:
        return "not needed"
    sys.modules[name] = _lent[name] = module  # type: ignore[assignment]
    return "lent"


def take_back(name: str) -> str:
    """Undo :func:`lend`, unless something else has taken its place."""
    if name not in _lent or sys.modules.get(name, sys) is not _lent.pop(name):
        return "not needed"
    del sys.modules[name]
    return "taken back"
