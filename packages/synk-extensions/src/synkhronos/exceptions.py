"""All errors of this package: each derives from `SynkError` and from a built-in class."""

# ruff: noqa: I001, PLC0414 - by these aliases type checkers know that the names are public
from __future__ import annotations

from synk_comm import CommError as CommError
from synk_comm import CommTimeout as CommTimeout
from synk_comm import MismatchError as MismatchError
from synk_core.exceptions import (
    AlreadyForked as AlreadyForked,
    BatchError as BatchError,
    Closed as Closed,
    DecompositionWarning as DecompositionWarning,
    InputTypeError as InputTypeError,
    InputValueError as InputValueError,
    NestedCall as NestedCall,
    NotExact as NotExact,
    NotFinite as NotFinite,
    NotForked as NotForked,
    NotSharedVariable as NotSharedVariable,
    OpError as OpError,
    PerformanceWarning as PerformanceWarning,
    ProofWarning as ProofWarning,
    ReplicasDiffer as ReplicasDiffer,
    ReplicaWarning as ReplicaWarning,
    SharedMemoryFull as SharedMemoryFull,
    SpecError as SpecError,
    StallWarning as StallWarning,
    StartError as StartError,
    SynkError as SynkError,
    VerifyError as VerifyError,
    WorkerDied as WorkerDied,
    WorkerFailed as WorkerFailed,
    WorkerStalled as WorkerStalled,
)
