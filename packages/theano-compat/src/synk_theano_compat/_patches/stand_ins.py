"""Stand-ins for modules that another module imports: there while it is executed, then removed."""

from __future__ import annotations

import importlib
import sys
from types import ModuleType
from typing import Any, Callable, Optional

_inserted: dict[str, Optional[ModuleType]] = {}


def stand_in(name: str, attribute: Callable[[str], Any]) -> ModuleType:
    """Make an empty module that calls ``attribute`` with the name of each public attribute."""

    def __getattr__(wanted: str) -> Any:  # noqa: N807 - a module's
        # Python itself looks for private ones, and for modules that are not imported yet.
        if wanted.startswith("_"):
            raise AttributeError(f"module {name!r} has no attribute {wanted!r}")
        return attribute(wanted)

    module = ModuleType(name, __doc__)
    vars(module)["__getattr__"] = __getattr__
    return module


def real_attribute(name: str, attribute: str) -> Any:
    """Remove the stand-in for an importer that needs more; return the real module's attribute."""
    remove(name)
    return getattr(importlib.import_module(name), attribute)


def insert(name: str, module: Optional[ModuleType]) -> str:
    """Make ``import name`` find ``module``, or nothing (None), unless it was imported already."""
    if name in sys.modules:
        return "not needed"
    sys.modules[name] = _inserted[name] = module  # type: ignore[assignment]
    return "stand-in inserted"


def remove(name: str) -> str:
    """Undo :func:`insert`, unless another module has taken the place.

    Modules from within the stand-in go, too: the real one imports its own.
    """
    if name not in _inserted or sys.modules.get(name, sys) is not _inserted.pop(name):
        return "not needed"
    for other in [other for other in sys.modules if other.startswith(f"{name}.")]:
        del sys.modules[other]
    del sys.modules[name]
    return "stand-in removed"
