"""P13: what Theano imports of SciPy without need is left until something asks for it.

``scipy.stats``, for the survival function of chi squared, and ``scipy.signal``, for names that
SciPy 1.8 removed, take more than a third of the time of importing Theano, in the master and in each
worker. While the modules that ask for them are executed, something empty stands in for the first,
which SciPy itself imports when it is used, and the second cannot be imported, as those names could
not be.
"""

from __future__ import annotations

import importlib
import types
from pathlib import Path

from synk_theano_compat import _lend

_STATS, _SIGNAL = "scipy.stats", "scipy.signal"


def lend_stats() -> str:
    """Put a stand-in for ``scipy.stats`` in place, if SciPy imports the true one by itself."""
    scipy = _scipy()
    # What is executed then needs it; so the stand-in is there for a moment only.
    importlib.import_module("scipy.special")
    if "stats" not in getattr(scipy, "submodules", ()):
        return "not needed"
    return _lend.lend(_STATS, types.ModuleType(_STATS, __doc__))


def take_back_stats() -> str:
    """Remove what :func:`lend_stats` has put there."""
    return _lend.take_back(_STATS)


def hide_signal() -> str:
    """Have ``scipy.signal`` not found, if it does not have what is going to be asked for."""
    folder = Path(next(iter(_scipy().__path__)), "signal")
    if any(folder.glob("sigtools*")):
        return "not needed"
    return _lend.lend(_SIGNAL, None)


def show_signal() -> str:
    """Undo :func:`hide_signal`."""
    return _lend.take_back(_SIGNAL)


def _scipy() -> types.ModuleType:
    return importlib.import_module("scipy")
