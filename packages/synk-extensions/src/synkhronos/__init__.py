"""Run Theano or PyTensor functions on all cores or GPUs of one or more machines.

::

    import synkhronos as synk

    synk.fork()                                   # start the workers
    f = synk.function([x], outputs=z)             # instead of theano.function
    synk.distribute()                             # replicate functions and shared variables
    f(x_data)                                     # computed by all ranks, reduced to one result
"""

from __future__ import annotations

import sys

if sys.version_info < (3, 12):
    import synk_theano as _  # noqa: F401 - repairs Theano before anything imports it

# Functions, their inputs, and the workers that compute them.
from synk_core import Data, Function

from ._api import (
    check,
    close,
    data,
    distribute,
    fork,
    function,
    row_share,
    seed,
    stats,
    step,
    timeline,
    watch_finite,
)

# Collectives over shared variables.
from ._collective_api import (
    all_gather,
    all_reduce,
    broadcast,
    delayed,
    gather,
    get_lengths,
    get_shapes,
    get_value,
    reduce,
    scatter,
    set_value,
)

# Display.
from ._progress import progress

# Errors.
from .exceptions import SynkError, WorkerDied, WorkerFailed

__version__ = "2.0.0"

__all__ = [
    "Data",
    "Function",
    "SynkError",
    "WorkerDied",
    "WorkerFailed",
    "all_gather",
    "all_reduce",
    "broadcast",
    "check",
    "close",
    "data",
    "delayed",
    "distribute",
    "fork",
    "function",
    "gather",
    "get_lengths",
    "get_shapes",
    "get_value",
    "progress",
    "reduce",
    "row_share",
    "scatter",
    "seed",
    "set_value",
    "stats",
    "step",
    "timeline",
    "watch_finite",
]


def __dir__() -> list[str]:
    return sorted([*__all__, "exceptions", "extensions", "in_graph"])
