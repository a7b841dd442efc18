"""Data-parallel functions of a graph engine: one master, many ranks, exact results.

`Runtime` starts worker processes; `Runtime.function` builds functions that all ranks compute
together; `Runtime.collectives` works on shared variables. The engine is another package's, which
adapts it. The package `synkhronos` offers the same with one default runtime.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from .exceptions import (
    AlreadyForked,
    BatchError,
    Closed,
    DecompositionWarning,
    InputTypeError,
    InputValueError,
    NestedCall,
    NotExact,
    NotFinite,
    NotForked,
    NotSharedVariable,
    OpError,
    PerformanceWarning,
    ProofWarning,
    ReplicasDiffer,
    ReplicaWarning,
    SharedMemoryFull,
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
    from ._api.collectives import Collectives, DelayedCollectives
    from ._api.function import Delayed, Function
    from ._api.runtime import Runtime
    from ._features.finite.watch import FiniteWatch
    from ._features.proof.report import Report
    from ._features.stats.stats import FunctionStats, Stats
    from ._features.timeline.timeline import Timeline
    from ._graph.flat_updates import flat_updates
    from ._graph.rowwise.check import Verdict, Verdicts, check_outputs
    from ._tracebacks import brief_traceback
    from ._wire.data import Data
    from ._wire.sources import RowSource
    from ._workers.interrupts import whole

__version__ = "0.1.0"

_HOMES = {
    "._graph.flat_updates": "flat_updates",
    "._graph.rowwise.check": "Verdict Verdicts check_outputs",
    "._wire.data": "Data",
    "._wire.sources": "RowSource",
    "._api.function": "Delayed Function",
    "._api.runtime": "Runtime",
    "._features.finite.watch": "FiniteWatch",
    "._api.collectives": "Collectives DelayedCollectives",
    "._features.stats.stats": "FunctionStats Stats",
    "._features.timeline.timeline": "Timeline",
    "._tracebacks": "brief_traceback",
    "._features.proof.report": "Report",
    "._workers.interrupts": "whole",
}
"""Where what users meet is defined. Workers, which need half of the package, import no more."""

_MODULES = ("engine", "exceptions", "in_graph", "mpi")

__all__ = [
    "AlreadyForked",
    "BatchError",
    "Closed",
    "Collectives",
    "Data",
    "DecompositionWarning",
    "Delayed",
    "DelayedCollectives",
    "FiniteWatch",
    "Function",
    "FunctionStats",
    "InputTypeError",
    "InputValueError",
    "NestedCall",
    "NotExact",
    "NotFinite",
    "NotForked",
    "NotSharedVariable",
    "OpError",
    "PerformanceWarning",
    "ProofWarning",
    "ReplicaWarning",
    "ReplicasDiffer",
    "Report",
    "RowSource",
    "Runtime",
    "SharedMemoryFull",
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
    "brief_traceback",
    "check_outputs",
    "flat_updates",
    "whole",
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
    return sorted({*__all__, *_MODULES})
