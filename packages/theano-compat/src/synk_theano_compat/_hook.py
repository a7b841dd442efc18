"""The finder on ``sys.meta_path``, which patches Theano, Lasagne and pygpu when they are imported.

It wraps the real loader of a watched module, so that ``apply.before(name)`` and ``.after(name)``
surround the execution. This module is loaded whenever a Python of the environment starts, so it
imports only ``sys``. The import of any other module costs one look-up in a set.
"""

from __future__ import annotations

import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from importlib.machinery import ModuleSpec
    from types import ModuleType
    from typing import Any

DOWNSAMPLE = "theano.tensor.signal.downsample"

# The modules with patches before or after their execution: _patches/apply.py has the table. A patch
# belongs to the module that it changes, which is complete then.
WATCHED = frozenset(
    (
        "theano",
        "theano.compile.function_module",
        "theano.configparser",
        "theano.gof.graph",
        "theano.gof.op",
        "theano.gof.cc",
        "theano.gof.cmodule",
        "theano.gof.compilelock",
        "theano.gpuarray",
        "theano.gpuarray.dnn",
        "theano.gpuarray.elemwise",
        "theano.gpuarray.linalg",
        "theano.gpuarray.opt",
        "theano.scalar.basic_scipy",
        "theano.scalar.basic",
        "theano.tensor.basic",
        "theano.tensor.blas",
        "theano.tensor.blas_c",
        "theano.tensor.io",
        "theano.tensor.nnet.abstract_conv",
        "theano.tensor.nnet.conv",
        "theano.tensor.opt",
        "theano.tensor.slinalg",
        "theano.tensor.sort",
        "theano.tensor.signal.pool",
        DOWNSAMPLE,
        "lasagne",
        "pygpu",
    )
)


class Finder:
    """Wraps the loaders of the watched modules, and provides the removed ``downsample``."""

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Return the spec of a watched module; leave all others to the other finders."""
        if name not in WATCHED:
            return None
        others = [finder for finder in sys.meta_path if not isinstance(finder, Finder)]
        specs = (one.find_spec(name, path, target) for one in others if hasattr(one, "find_spec"))
        spec = next(filter(None, specs), None)
        if name == DOWNSAMPLE:
            from synk_theano_compat._patches import apply

            return spec or apply.removed_module(name)
        if spec is not None and spec.loader is not None:
            spec.loader = Loader(spec.loader)  # type: ignore[assignment]
        return spec


class Loader:
    """The real loader, with patches before and after the execution of its module."""

    def __init__(self, real: Any) -> None:
        self._real = real

    def __getattr__(self, name: str) -> Any:
        return getattr(self._real, name)

    def exec_module(self, module: ModuleType) -> None:
        """Execute and patch the module, and remove this wrapper from it."""
        from synk_theano_compat._patches import apply

        name = module.__name__
        module.__loader__ = self._real
        if module.__spec__ is not None:
            module.__spec__.loader = self._real
        apply.before(name)
        try:
            self._real.exec_module(module)
        except BaseException:
            apply.undo(name)
            raise
        apply.after(name)


def installed() -> bool:
    """Return whether the finder is on ``sys.meta_path``."""
    return any(isinstance(finder, Finder) for finder in sys.meta_path)


def install() -> None:
    """Put the finder first on ``sys.meta_path``, once."""
    if not installed():
        sys.meta_path.insert(0, Finder())
