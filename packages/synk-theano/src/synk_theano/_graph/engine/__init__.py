"""The graph engine of this environment: Theano or PyTensor.

An engine is a module, `_theano` or `_pytensor`: both define the same names, and have in them all
that the two differ in. The rest of `synk_theano` takes these names from here, and names no engine.

Nothing is imported before a name is asked for: what an engine reads when it is imported is set
before that.
"""

from __future__ import annotations

import importlib
import importlib.util
import sys
from typing import Any

_ENGINES = ("theano", "pytensor")

__all__ = [
    "FLAGS",
    "FLATTENS",
    "HAS_DEVICES",
    "NAME",
    "OF_OTHER_FORM",
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
    "SliceType",
    "Subtensor",
    "T",
    "TensorType",
    "Variable",
    "ancestors",
    "build",
    "cache_folder",
    "clients_of",
    "clone",
    "compile_ahead",
    "deep_copy_op",
    "default_context",
    "extras_of",
    "foreign_linker",
    "get_idx_list",
    "get_mode",
    "get_scalar_constant_value",
    "held_by",
    "inner_outputs",
    "is_random",
    "leaves_of",
    "library",
    "link",
    "linked_by_kind",
    "machine_of",
    "n_returned",
    "next_stream",
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
    "to_device",
    "upcast",
    "with_pattern",
    "without_test_values",
    "worker_cache",
    "worker_variables",
]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(importlib.import_module(f"._{_chosen()}", __name__), name)
    globals()[name] = value
    return value


def _chosen() -> str:
    """Return the engine that the program has imported; else the first that is installed."""
    imported = [name for name in _ENGINES if name in sys.modules]
    installed = (name for name in _ENGINES if importlib.util.find_spec(name) is not None)
    return next(iter(imported), None) or next(installed, _ENGINES[0])
