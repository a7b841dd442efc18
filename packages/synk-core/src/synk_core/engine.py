"""The graph engine of this process, for this package and others that build graphs for any engine.

`library` is its package, `T` its module of tensors; in other names engines differ, and an adapter
documents the meaning of each. An adapter is a module with all these names, of a package of its own.
The engine is the one that the program has imported, else the one that is installed; in a worker it
is the master's.

An engine is imported when a name is first used, because its settings have to be made before that.
"""

from __future__ import annotations

import importlib
from contextlib import contextmanager
from typing import Any, Iterator

__all__ = [  # noqa: RUF022 - by subject
    # its names and settings
    "ADAPTER", "NAME", "TITLE", "FLAGS", "DEVICES", "FLATTENS", "library", "T", "options",
    "worker_variables", "worker_cache", "refresh_cache", "slow_without_compiler",
    # graphs
    "Apply", "Constant", "Op", "SharedVariable", "Variable", "TensorType", "NoneTypeT",
    "RandomStateType", "random_state_type", "DisconnectedType", "Assert", "DimShuffle",
    "Elemwise", "FromFunctionOp", "Mul", "Reshape", "Second", "Subtensor",
    "ancestors", "clone", "get_idx_list", "inner_graph", "inner_outputs", "is_random",
    "leaves_of", "shared_like", "upcast", "with_pattern",
    # building functions
    "In", "build", "get_mode", "out_of_place", "compile_ahead",
    "without_test_values", "run_in_python", "DisconnectedInputError", "MissingInputError",
    # compiled functions, also on their way to other processes
    "Container", "DestroyHandler", "Function", "FunctionGraph", "FunctionMaker", "extras_of",
    "foreign_linker", "link", "linked_by_kind", "machine_of", "raise_with_op", "reduced",
    "state_of",
]  # fmt: skip


@contextmanager
def replaced(holder: Any, name: str, value: Any) -> Iterator[None]:
    """For the duration of the block, give an attribute another value, as adapters do if an engine
    has no option."""
    plain = getattr(holder, name)
    setattr(holder, name, value)
    try:
        yield
    finally:
        setattr(holder, name, plain)


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from synk_core._adapters import chosen  # workers get the name, and search nothing

    load(chosen().module)
    return globals()[name]


def load(adapter: str) -> None:
    """Import an adapter, and take all names from it.

    Raises:
        ImportError: it lacks some: its package is for another version of this one.
    """
    module = importlib.import_module(adapter)
    missing = [name for name in __all__ if not hasattr(module, name)]
    if missing:
        packages = f"synk-core {adapter.partition('.')[0].replace('_', '-')}"
        raise ImportError(
            f"{adapter} lacks {', '.join(missing)}, so it does not fit this synk-core: "
            f"pip install --upgrade {packages}"
        )
    globals().update((name, getattr(module, name)) for name in __all__)
