"""P10: import Theano and Lasagne without setuptools, which is often missing and slow to import.

They import ``pkg_resources`` only to look up a version. Its stand-in can do no more than that;
an importer that needs more gets the real module, if there is one. They also get Python's own
``distutils`` in place of that of setuptools, which would import all of setuptools: a quarter of the
time of importing Theano, in the master and in each worker.
"""

from __future__ import annotations

import importlib
import sys
from typing import Any

from . import stand_ins

_NAME = "pkg_resources"
_SAME_IN_METADATA = {
    "get_distribution": "distribution",
    "DistributionNotFound": "PackageNotFoundError",
}
_finders: list[tuple[int, Any]] = []


def insert_stand_in() -> str:
    """Insert a stand-in for ``pkg_resources``."""
    return stand_ins.insert(_NAME, stand_ins.stand_in(_NAME, _attribute))


def remove_stand_in() -> str:
    """Undo :func:`insert_stand_in`."""
    return stand_ins.remove(_NAME)


def _attribute(name: str) -> Any:
    # An optional import may ask for more: without setuptools it finds no such module.
    if name not in _SAME_IN_METADATA:
        return stand_ins.real_attribute(_NAME, name)
    # Imported late because it is slow, and few ask for it.
    return getattr(importlib.import_module("importlib.metadata"), _SAME_IN_METADATA[name])


def plain_distutils() -> str:
    """Make ``import distutils`` find Python's own."""
    finder = getattr(sys.modules.get("_distutils_hack"), "DISTUTILS_FINDER", None)
    if finder not in sys.meta_path or "distutils" in sys.modules:
        return "not needed"
    _finders.append((sys.meta_path.index(finder), finder))
    sys.meta_path.remove(finder)
    return "Python's own"


def usual_distutils() -> str:
    """Undo :func:`plain_distutils`, so that setuptools can be imported afterwards as usual."""
    if not _finders:
        return "not needed"
    for name in [name for name in sys.modules if name.partition(".")[0] == "distutils"]:
        del sys.modules[name]
    sys.meta_path.insert(*_finders.pop())
    return "as it was"
