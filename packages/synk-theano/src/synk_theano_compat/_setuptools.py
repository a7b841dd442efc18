"""P10: Theano and Lasagne ask ``pkg_resources`` for a version; setuptools no longer brings it.

Environments of today come without setuptools, or with one that has dropped the module. Both ask at
import only, for next to nothing. What is lent here can do no more than that, and is taken back
afterwards, so that others see that there is none.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import sys
import types
from typing import Any

_NAME = "pkg_resources"


def lend() -> str:
    """Put a stand-in for ``pkg_resources`` in place if there is none."""
    if _NAME in sys.modules or importlib.util.find_spec(_NAME) is not None:
        return "not needed"
    module: Any = types.ModuleType(_NAME, __doc__)
    module.get_distribution = importlib.metadata.distribution
    module.DistributionNotFound = importlib.metadata.PackageNotFoundError
    module.__getattr__ = _missing
    module.lent_by = __name__
    sys.modules[_NAME] = module
    return "lent"


def take_back() -> str:
    """Remove what :func:`lend` has put there."""
    if vars(sys.modules.get(_NAME, types)).get("lent_by") != __name__:
        return "not needed"
    del sys.modules[_NAME]
    return "taken back"


def _missing(name: str) -> Any:
    # For an optional import in between that wants more: to it, the module is not there.
    raise ImportError(f"{_NAME} is not installed (asked for {name!r})", name=_NAME)
