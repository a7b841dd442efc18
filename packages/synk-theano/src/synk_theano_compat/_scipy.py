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
import sys
import types
from pathlib import Path
from typing import Any, Callable

from synk_theano_compat import _lend

_FUNCTIONS = ("scipy.special", "scipy.stats")
_LINALG = "scipy.linalg"
_SIGNAL = "scipy.signal"
_CONVOLUTIONS = ("theano.tensor.nnet.abstract_conv", "theano.tensor.nnet.conv")


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
    if any(_signal_folder().glob("sigtools*")):
        return "not needed"
    return _lend.lend(_SIGNAL, None)


def show_signal() -> str:
    """Undo :func:`hide_signal`, and give Theano's convolutions what SciPy has moved.

    They need it where there is no compiler, and would say that SciPy has to be installed.
    """
    shown = _lend.take_back(_SIGNAL)
    if not any(_signal_folder().glob("_sigtools*")):
        return shown
    for name in _CONVOLUTIONS:
        module: Any = sys.modules.get(name)
        if module is not None and not module.imported_scipy_signal:
            module._valfrommode = _when_called("_signaltools", "_valfrommode")
            module._bvalfromboundary = _when_called("_signaltools", "_bvalfromboundary")
            module._convolve2d = _when_called("_sigtools", "_convolve2d")
            module.convolve = _when_called("_signaltools", "convolve")
            module.imported_scipy_signal = True
    return shown


def _signal_folder() -> Path:
    return Path(next(iter(_scipy().__path__)), "signal")


def _when_called(part: str, name: str) -> Callable[..., Any]:
    """A function of ``scipy.signal`` that is imported when it is called."""

    def function(*arguments: Any, **options: Any) -> Any:
        module = importlib.import_module(f"{_SIGNAL}.{part}")
        return getattr(module, name)(*arguments, **options)

    return function


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
