"""P13: what Theano imports of SciPy without need is left until something asks for it.

``scipy.special``, ``scipy.stats`` and ``scipy.linalg``, which some functions call, and
``scipy.signal``, for names that SciPy 1.8 removed, take more than half of the time of importing
Theano, in the master and in each worker. While the modules that ask for them are executed,
something empty stands in for them; SciPy itself imports the true ones when they are used. Of
``scipy.linalg`` the functions of BLAS are there, which Theano takes at once. The last cannot be
imported, as those names could not be.
"""

from __future__ import annotations

import functools
import importlib
import types
from pathlib import Path

from synk_theano_compat import _lend

_FUNCTIONS = ("scipy.special", "scipy.stats")
_LINALG = "scipy.linalg"
_SIGNAL = "scipy.signal"


def lend_functions() -> str:
    """Put stand-ins for ``scipy.special`` and ``scipy.stats`` in place."""
    return ", ".join(map(_lend_part, _FUNCTIONS))


def take_back_functions() -> str:
    """Remove what :func:`lend_functions` has put there."""
    return ", ".join(map(_lend.take_back, _FUNCTIONS))


def lend_linalg() -> str:
    """Put a stand-in for ``scipy.linalg`` in place, from which its own modules can be imported."""
    return _lend_part(_LINALG)


def take_back_linalg() -> str:
    """Remove what :func:`lend_linalg` has put there."""
    return _lend.take_back(_LINALG)


def hide_signal() -> str:
    """Have ``scipy.signal`` not found, if it does not have what is going to be asked for."""
    folder = Path(next(iter(_scipy().__path__)), "signal")
    if any(folder.glob("sigtools*")):
        return "not needed"
    return _lend.lend(_SIGNAL, None)


def show_signal() -> str:
    """Undo :func:`hide_signal`."""
    return _lend.take_back(_SIGNAL)


def _lend_part(name: str) -> str:
    """Lend a part of SciPy, if SciPy imports the true one by itself when it is used."""
    scipy, part = _scipy(), name.rpartition(".")[2]
    if part not in getattr(scipy, "submodules", ()):
        return "not needed"
    module = _lend.stand_in(name, functools.partial(_lend.true_one, name))
    module.__path__ = [str(Path(folder, part)) for folder in scipy.__path__]
    return _lend.lend(name, module)


def _scipy() -> types.ModuleType:
    return importlib.import_module("scipy")
