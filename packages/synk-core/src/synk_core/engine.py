"""The graph engine of this process, for this package and others that build graphs for any engine.

`library` is its package, `T` its module of tensors; other names are what engines differ in, each
with one meaning, which is written where an adapter defines it. An adapter is a module with all
these names, of a package of its own. The engine is the one that the program has imported, else the
one that is installed; in a worker it is the master's.

Nothing is imported before a name is asked for: what an engine reads when it is imported is set
before that.
"""

from __future__ import annotations

import importlib
from typing import Any

__all__ = [
    "ADAPTER",
    "DEVICES",
    "FLAGS",
    "FLATTENS",
    "NAME",
    "NOT_INHERITED",
    "RULED",
    "TITLE",
    "Apply",
    "Assert",
    "BatchNormTrain",
    "Constant",
    "Container",
    "DestroyHandler",
    "DimShuffle",
    "DisconnectedInputError",
    "DisconnectedType",
    "Elemwise",
    "FromFunctionOp",
    "Function",
    "FunctionGraph",
    "FunctionMaker",
    "In",
    "MissingInputError",
    "Mul",
    "NoneTypeT",
    "NotScalarConstantError",
    "Op",
    "RandomStateType",
    "Rebroadcast",
    "Reshape",
    "Second",
    "SharedVariable",
    "Subtensor",
    "T",
    "TensorType",
    "Variable",
    "ancestors",
    "build",
    "clients_of",
    "clone",
    "compile_ahead",
    "extras_of",
    "foreign_linker",
    "get_idx_list",
    "get_mode",
    "get_scalar_constant_value",
    "held_by",
    "inner_graph",
    "inner_outputs",
    "is_random",
    "leaves_of",
    "library",
    "link",
    "linked_by_kind",
    "machine_of",
    "n_returned",
    "options",
    "out_of_place",
    "raise_with_op",
    "random_state_type",
    "reduced",
    "refresh_cache",
    "returns_results_alone",
    "run_in_python",
    "shared_like",
    "slow_without_compiler",
    "state_of",
    "to_build_again",
    "upcast",
    "with_pattern",
    "without_test_values",
    "worker_cache",
    "worker_variables",
]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from synk_core._adapters import chosen  # workers get the name, and search nothing

    load(chosen().module)
    return globals()[name]


def load(adapter: str) -> None:
    """Take all names from a module, which is imported.

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
