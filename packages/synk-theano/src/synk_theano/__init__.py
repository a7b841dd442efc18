"""Data-parallel Theano functions: one master, many ranks, exact results.

`Runtime` starts worker processes; `Runtime.function` builds functions that all ranks compute
together; `Runtime.collectives` works on Theano shared variables. The package `synkhronos` offers
the same with one default runtime.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

# Before Theano is imported: it makes Theano 1.0.5 work on today's Python and NumPy.
from synk_theano_compat import _hook as _compat_hook

from .exceptions import (
    AlreadyForked,
    BatchError,
    Closed,
    DecompositionWarning,
    InputTypeError,
    InputValueError,
    LintWarning,
    NestedCall,
    NotFinite,
    NotForked,
    NotSharedVariable,
    OpError,
    ReplicasDiffer,
    ReplicaWarning,
    SpecError,
    StallWarning,
    StartError,
    SynkError,
    VerifyError,
    WorkerDied,
    WorkerFailed,
    WorkerStalled,
)

if TYPE_CHECKING:
    from ._check import Verdict, Verdicts
    from ._data import Data
    from ._delayed import Delayed
    from ._function import Function
    from ._lint import Finding, Findings
    from ._runtime import Runtime
    from ._sentinels._api import FiniteWatch
    from ._sentinels._drift import ReplicaDifference, ReplicaWatch
    from ._shared_api import Collectives, DelayedCollectives
    from ._stats import FunctionStats, Stats
    from ._timeline import Timeline
    from ._verify import Report

_compat_hook.install()

__version__ = "0.1.0"

_HOMES = {
    "._check": "Verdict Verdicts",
    "._data": "Data",
    "._delayed": "Delayed",
    "._function": "Function",
    "._lint": "Finding Findings",
    "._runtime": "Runtime",
    "._sentinels._api": "FiniteWatch",
    "._sentinels._drift": "ReplicaDifference ReplicaWatch",
    "._shared_api": "Collectives DelayedCollectives",
    "._stats": "FunctionStats Stats",
    "._timeline": "Timeline",
    "._verify": "Report",
}
"""Where what users meet is defined. Workers, which need half of the package, import no more."""

_MODULES = ("flight", "in_graph", "testing")

__all__ = [
    "AlreadyForked",
    "BatchError",
    "Closed",
    "Collectives",
    "Data",
    "DecompositionWarning",
    "Delayed",
    "DelayedCollectives",
    "Finding",
    "Findings",
    "FiniteWatch",
    "Function",
    "FunctionStats",
    "InputTypeError",
    "InputValueError",
    "LintWarning",
    "NestedCall",
    "NotFinite",
    "NotForked",
    "NotSharedVariable",
    "OpError",
    "ReplicaDifference",
    "ReplicaWarning",
    "ReplicaWatch",
    "ReplicasDiffer",
    "Report",
    "Runtime",
    "SpecError",
    "StallWarning",
    "StartError",
    "Stats",
    "SynkError",
    "Timeline",
    "Verdict",
    "Verdicts",
    "VerifyError",
    "WorkerDied",
    "WorkerFailed",
    "WorkerStalled",
]


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return importlib.import_module(f"{__name__}.{name}")
    for home, names in _HOMES.items():
        if name in names.split():
            value = getattr(importlib.import_module(home, __name__), name)
            globals()[name] = value
            return value
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__, *_MODULES})
