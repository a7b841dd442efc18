"""P13: postpone Theano's needless imports of SciPy until something uses them.

``scipy.special``, ``scipy.stats`` and ``scipy.linalg``, which some functions call, and
``scipy.signal``, for names that SciPy 1.8 removed, take more than half of the time of importing
Theano, in the master and in each worker. While the modules that import them are executed, an empty
module stands in; SciPy itself imports the real ones when they are used. The stand-in of
``scipy.linalg`` has the functions of BLAS, which Theano needs at once. ``scipy.signal`` cannot be
imported meanwhile, just as those names could not be.
"""

from __future__ import annotations

import functools
import importlib
import sys
import types
from pathlib import Path
from typing import Any, Callable

from . import stand_ins

_FUNCTIONS = ("scipy.special", "scipy.stats")
_LINALG = "scipy.linalg"
_SIGNAL = "scipy.signal"
_CONVOLUTIONS = ("theano.tensor.nnet.abstract_conv", "theano.tensor.nnet.conv")


def insert_functions() -> str:
    """Insert stand-ins for ``scipy.special`` and ``scipy.stats``."""
    return ", ".join(map(_insert_part, _FUNCTIONS))


def remove_functions() -> str:
    """Undo :func:`insert_functions`."""
    return ", ".join(map(stand_ins.remove, _FUNCTIONS))


def insert_linalg() -> str:
    """Insert a stand-in for ``scipy.linalg``, from which its own modules can be imported."""
    return _insert_part(_LINALG)


def remove_linalg() -> str:
    """Undo :func:`insert_linalg`."""
    return stand_ins.remove(_LINALG)


def hide_signal() -> str:
    """Make imports of ``scipy.signal`` fail, if it lacks the names that Theano imports."""
    if any(_signal_folder().glob("sigtools*")):
        return "not needed"
    return stand_ins.insert(_SIGNAL, None)


def show_signal() -> str:
    """Undo :func:`hide_signal`, and give Theano's convolutions the functions that SciPy moved.

    Without a compiler they need these, and would ask for SciPy to be installed.
    """
    shown = stand_ins.remove(_SIGNAL)
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
    """Return a function that imports one of ``scipy.signal``, and calls it."""

    def function(*arguments: Any, **options: Any) -> Any:
        module = importlib.import_module(f"{_SIGNAL}.{part}")
        return getattr(module, name)(*arguments, **options)

    return function


def _insert_part(name: str) -> str:
    """Insert a stand-in for a part of SciPy, if SciPy imports the real one on its first use."""
    scipy, part = _scipy(), name.rpartition(".")[2]
    if part not in getattr(scipy, "submodules", ()):
        return "not needed"
    module = stand_ins.stand_in(name, functools.partial(stand_ins.real_attribute, name))
    module.__path__ = [str(Path(folder, part)) for folder in scipy.__path__]
    return stand_ins.insert(name, module)


def _scipy() -> types.ModuleType:
    return importlib.import_module("scipy")
