"""Stand-ins for modules that another one imports: there while that is executed, then gone."""

from __future__ import annotations

import importlib
import sys
from types import ModuleType
from typing import Any, Callable, Optional

_lent: dict[str, Optional[ModuleType]] = {}


def stand_in(name: str, true: Callable[[str], Any]) -> ModuleType:
    """Make an empty module that asks ``true`` for each public attribute."""

    def attribute(wanted: str) -> Any:
        # Python itself looks for private ones, also those that are modules and not yet imported.
        if wanted.startswith("_"):
            raise AttributeError(f"module {name!r} has no attribute {wanted!r}")
        return true(wanted)

    module = ModuleType(name, __doc__)
    vars(module)["__getattr__"] = attribute
    return module


def true_one(name: str, attribute: str) -> Any:
    """Take the stand-in back, and return the attribute of the true module; which may be missing.

    So is served who wants more in between than the one that it was lent for.
    """
    take_back(name)
    return getattr(importlib.import_module(name), attribute)


def lend(name: str, module: Optional[ModuleType]) -> str:
    """Have ``import name`` find ``module``, or nothing (None), unless it was imported already."""
    if name in sys.modules:
        return "not needed"
    sys.modules[name] = _lent[name] = module  # type: ignore[assignment]
    return "lent"


def take_back(name: str) -> str:
    """Undo :func:`lend`, unless something else has taken its place.

    Modules that were imported from within the stand-in go too: the true one will import its own.
    """
    if name not in _lent or sys.modules.get(name, sys) is not _lent.pop(name):
        return "not needed"
    for other in [other for other in sys.modules if other.startswith(f"{name}.")]:
        del sys.modules[other]
    del sys.modules[name]
    return "taken back"
