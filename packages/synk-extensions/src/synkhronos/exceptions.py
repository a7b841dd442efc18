"""Every error of this package: one base, `SynkError`; each is also a built-in kind."""

from __future__ import annotations

from synk_comm import CommError, CommTimeout, MismatchError
from synk_theano.exceptions import (
    AlreadyForked,
    BatchError,
    Closed,
    DecompositionWarning,
    InputTypeError,
    InputValueError,
    LintWarning,
    NestedCall,
    NotForked,
    NotSharedVariable,
    OpError,
    SpecError,
    StartError,
    SynkError,
    VerifyError,
    WorkerDied,
    WorkerFailed,
)

__all__ = [
    "AlreadyForked",
    "BatchError",
    "Closed",
    "CommError",
    "CommTimeout",
    "DecompositionWarning",
    "InputTypeError",
    "InputValueError",
    "LintWarning",
    "MismatchError",
    "NestedCall",
    "NotForked",
    "NotSharedVariable",
    "OpError",
    "SpecError",
    "StartError",
    "SynkError",
    "VerifyError",
    "WorkerDied",
    "WorkerFailed",
]
