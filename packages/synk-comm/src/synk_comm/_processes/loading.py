"""Modules to load before a rank can unpickle its work: the main script, modules by path."""

from __future__ import annotations

import importlib
import importlib.util
import io
import mmap
import os
import pickle
import runpy
import sys
from types import ModuleType
from typing import Any, NamedTuple

MAIN_NAMES = ("__main__", "__mp_main__")
"""What the main script is called where it runs, and where a rank has loaded it (as
``multiprocessing`` calls it)."""


class Source(NamedTuple):
    """Where a module comes from.

    Attributes:
        name: to import it by, or "".
        path: of its file, or "".
    """

    name: str
    path: str


def load_main(source: Source) -> None:
    """Load the parent's main script under another name, so that its guard keeps it still."""
    if source.name:
        names = runpy.run_module(source.name, run_name="__mp_main__", alter_sys=True)
    else:
        names = runpy.run_path(source.path, run_name="__mp_main__")
    module = ModuleType("__mp_main__")
    vars(module).update(names)
    for name in MAIN_NAMES:
        sys.modules[name] = module


def load(source: Source) -> None:
    """Import a module; from its file if its name leads nowhere, or elsewhere.

    Test modules and scripts in other folders are often not importable by name.
    """
    if source.name in sys.modules:
        return
    spec = None
    try:
        spec = importlib.util.find_spec(source.name)
    except ModuleNotFoundError as exc:
        if not f"{source.name}.".startswith(f"{exc.name}."):
            raise  # not its package is missing, but something that its package needs
    except ValueError:  # a module without a spec
        pass
    origin = spec.origin if spec is not None else None
    if not source.path or (
        origin and os.path.exists(origin) and os.path.samefile(origin, source.path)
    ):
        importlib.import_module(source.name)
        return
    spec = importlib.util.spec_from_file_location(source.name, source.path)
    if spec is None or spec.loader is None:
        raise ImportError(f"cannot load the module {source.name!r} from {source.path!r}")
    module = importlib.util.module_from_spec(spec)
    package = source.name.rpartition(".")[0]
    while package:  # pickle imports them, though they have no file
        sys.modules.setdefault(package, ModuleType(package))
        package = package.rpartition(".")[0]
    sys.modules[source.name] = module
    spec.loader.exec_module(module)


class _MainUnpickler(pickle.Unpickler):
    """Knows the main script by the name that the ranks give it."""

    def find_class(self, module_name: str, global_name: str) -> Any:
        if module_name == "__mp_main__" and module_name not in sys.modules:
            module_name = "__main__"
        return super().find_class(module_name, global_name)


def unpickled(data: bytes | mmap.mmap) -> Any:
    """Read what the parent of this process, or a rank of it, has sent."""
    return _MainUnpickler(io.BytesIO(data)).load()
