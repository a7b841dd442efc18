"""Data-parallel Theano functions: one master, many ranks, exact results.

`Runtime` starts worker processes; `Runtime.function` builds functions that all ranks compute
together; `Runtime.collectives` works on Theano shared variables. The package `synkhronos` offers
the same with one default runtime.
"""

from __future__ import annotations

# Before Theano is imported: it makes Theano 1.0.5 work on today's Python and NumPy.
from synk_theano_compat import _hook as _compat_hook

_compat_hook.install()

# The objects users meet.
from ._check import Verdict, Verdicts  # noqa: E402
from ._data import Data  # noqa: E402
from ._delayed import Delayed  # noqa: E402
from ._function import Function  # noqa: E402
from ._lint import Finding, Findings  # noqa: E402
from ._runtime import Runtime  # noqa: E402
from ._sentinels._api import FiniteWatch  # noqa: E402
from ._sentinels._drift import ReplicaDifference, ReplicaWatch  # noqa: E402
from ._shared_api import Collectives, DelayedCollectives  # noqa: E402
from ._stats import FunctionStats, Stats  # noqa: E402
from ._timeline import Timeline  # noqa: E402
from ._verify import Report  # noqa: E402
from .exceptions import (  # noqa: E402
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

__version__ = "0.1.0"

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
