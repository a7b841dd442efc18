"""P10, P13, P17: imports of Theano and Lasagne that are needless, and slow or missing.

While a module of theirs is executed, a stand-in takes the place of the module that it imports.
"""

from __future__ import annotations

import importlib
import importlib.util
import sys
from functools import partial
from pathlib import Path
from typing import Any, Callable

from . import stand_ins

# ---- P10: setuptools ---------------------------------------------------------------------------

_PKG_RESOURCES = "pkg_resources"
_SAME_IN_METADATA = {
    "get_distribution": "distribution",
    "DistributionNotFound": "PackageNotFoundError",
}
_finders: list[tuple[int, Any]] = []


def insert_pkg_resources() -> str:
    """P10: insert a stand-in for ``pkg_resources``, which looks up versions."""
    return stand_ins.insert(_PKG_RESOURCES, stand_ins.stand_in(_PKG_RESOURCES, _metadata))


remove_pkg_resources = partial(stand_ins.remove, _PKG_RESOURCES)


def _metadata(name: str) -> Any:
    # An optional import may ask for more: without setuptools it finds no such module.
    if name not in _SAME_IN_METADATA:
        return stand_ins.real_attribute(_PKG_RESOURCES, name)
    # Imported late because it is slow, and few ask for it.
    return getattr(importlib.import_module("importlib.metadata"), _SAME_IN_METADATA[name])


def plain_distutils() -> str:
    """P10: make ``import distutils`` find Python's own.

    That of setuptools imports all of it, a quarter of the time of an import of Theano.
    """
    finder = getattr(sys.modules.get("_distutils_hack"), "DISTUTILS_FINDER", None)
    if finder not in sys.meta_path or "distutils" in sys.modules:
        return "not needed"
    _finders.append((sys.meta_path.index(finder), finder))
    sys.meta_path.remove(finder)
    return "Python's own"


def usual_distutils() -> str:
    """Undo :func:`plain_distutils`, so that imports of setuptools are as usual again."""
    if not _finders:
        return "not needed"
    for name in [name for name in sys.modules if name.partition(".")[0] == "distutils"]:
        del sys.modules[name]
    sys.meta_path.insert(*_finders.pop())
    return "as it was"


# ---- P13: SciPy, more than half of the time of an import of Theano -------------------------------

_FUNCTIONS = ("scipy.special", "scipy.stats")
_SIGNAL = "scipy.signal"
_CONVOLUTIONS = ("theano.tensor.nnet.abstract_conv", "theano.tensor.nnet.conv")


def insert_functions() -> str:
    """P13: insert stand-ins for ``scipy.special`` and ``scipy.stats``."""
    return ", ".join(map(_insert_part, _FUNCTIONS))


def remove_functions() -> str:
    return ", ".join(map(stand_ins.remove, _FUNCTIONS))


def _insert_part(name: str) -> str:
    """Insert a stand-in for a part of SciPy, if SciPy imports the real one on its first use.

    The part's own modules can be imported from it: Theano needs that of BLAS at once.
    """
    scipy, part = importlib.import_module("scipy"), name.rpartition(".")[2]
    if part not in getattr(scipy, "submodules", ()):
        return "not needed"
    module = stand_ins.stand_in(name, partial(stand_ins.real_attribute, name))
    module.__path__ = [str(Path(folder, part)) for folder in scipy.__path__]
    return stand_ins.insert(name, module)


insert_linalg = partial(_insert_part, "scipy.linalg")
remove_linalg = partial(stand_ins.remove, "scipy.linalg")


def hide_signal() -> str:
    """P13: make imports of ``scipy.signal`` fail, if it lacks the names that Theano imports."""
    if any(_signal_folder().glob("sigtools*")):
        return "not needed"
    return stand_ins.insert(_SIGNAL, None)


def show_signal() -> str:
    """Undo :func:`hide_signal`, and give Theano's convolutions the functions that SciPy moved.

    Without a compiler they need these, and would ask for an installation of SciPy.
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
    return Path(next(iter(importlib.import_module("scipy").__path__)), "signal")


def _when_called(part: str, name: str) -> Callable[..., Any]:
    """Return a function that imports one of ``scipy.signal``, and calls it."""

    def function(*arguments: Any, **options: Any) -> Any:
        module = importlib.import_module(f"{_SIGNAL}.{part}")
        return getattr(module, name)(*arguments, **options)

    return function


# ---- P17: MPI, initialized when one of Theano's ops of messages runs -----------------------------


class _LaterWorld:
    """In place of ``MPI.COMM_WORLD`` until one of its methods is used."""

    def __getattr__(self, name: str) -> Any:
        return getattr(importlib.import_module("mpi4py.MPI").COMM_WORLD, name)


class _LaterMpi:
    """In place of ``mpi4py.MPI``, whose import initializes MPI.

    That starts threads and takes a tenth of a second; under another MPI's launcher it ends the
    process.
    """

    COMM_WORLD = _LaterWorld()

    def __getattr__(self, name: str) -> Any:
        return getattr(importlib.import_module("mpi4py.MPI"), name)


def insert_mpi4py() -> str:
    """P17: make ``from mpi4py import MPI`` initialize nothing."""
    if importlib.util.find_spec("mpi4py") is None:
        return "not needed"
    later = _LaterMpi()
    return stand_ins.insert("mpi4py", stand_ins.stand_in("mpi4py", {"MPI": later}.__getitem__))


remove_mpi4py = partial(stand_ins.remove, "mpi4py")
