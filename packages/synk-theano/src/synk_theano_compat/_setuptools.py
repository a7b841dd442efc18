"""P10: Theano and Lasagne do without setuptools, which is missing today, or takes long to import.

For a version they ask ``pkg_resources``, which environments of today do not have, at import only
and for next to nothing. What is lent here can do no more than that; who wants more in between gets
the true one, if there is one. And they take Python's own ``distutils`` instead of setuptools',
which bring all of setuptools with them: a quarter of the time of importing Theano, in the master
and in each worker.
"""

from __future__ import annotations

import importlib
import sys
from typing import Any

from synk_theano_compat import _lend

_NAME = "pkg_resources"
_SAME_IN_METADATA = {
    "get_distribution": "distribution",
    "DistributionNotFound": "PackageNotFoundError",
}
_finders: list[tuple[int, Any]] = []


def lend() -> str:
    """Put a stand-in for ``pkg_resources`` in place."""
    return _lend.lend(_NAME, _lend.stand_in(_NAME, _asked_for))


def take_back() -> str:
    """Remove what :func:`lend` has put there."""
    return _lend.take_back(_NAME)


def _asked_for(name: str) -> Any:
    # An optional import in between wants more: without setuptools, the module is not there for it.
    if name not in _SAME_IN_METADATA:
        return _lend.true_one(_NAME, name)
    # It takes a while to import, and is asked for by few.
    return getattr(importlib.import_module("importlib.metadata"), _SAME_IN_METADATA[name])


def plain_distutils() -> str:
    """Have ``import distutils`` find Python's own."""
    finder = getattr(sys.modules.get("_distutils_hack"), "DISTUTILS_FINDER", None)
    if finder not in sys.meta_path or "distutils" in sys.modules:
        return "not needed"
    _finders.append((sys.meta_path.index(finder), finder))
    sys.meta_path.remove(finder)
    return "Python's own"


def usual_distutils() -> str:
    """Undo :func:`plain_distutils`: who imports setuptools afterwards finds nothing unusual."""
    if not _finders:
        return "not needed"
    for name in [name for name in sys.modules if name.partition(".")[0] == "distutils"]:
        del sys.modules[name]
    sys.meta_path.insert(*_finders.pop())
    return "as it was"
