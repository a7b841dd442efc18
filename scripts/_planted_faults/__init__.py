"""The table of faults: ten or more for each package, each a bug that somebody might well introduce.

About half show only in some corner (three ranks, another byte order, after a kill).
"""

from __future__ import annotations

from ._comm import COMM
from ._core import CORE
from ._extensions import EXTENSIONS
from ._fault import KINDS, Fault
from ._latest import LATEST
from ._shm import SHM

__all__ = ["FAULTS", "KINDS", "Fault"]

FAULTS: tuple[Fault, ...] = (*SHM, *COMM, *CORE, *EXTENSIONS, *LATEST)
