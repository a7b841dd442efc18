"""All that crosses a process: the whole protocol on one screen.

The master sends one Command to every worker and performs it itself; every rank performs it with
the same function. Workers answer only at their start (`Ready`) and when they fail (`Failure`):
on success, the collectives of the command and the barrier at its end are the answer.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Dict, Optional, Tuple, Union

from synk_shm import Handle

from ._plan import Bounds, Selector


@dataclass(frozen=True)
class Form:
    """One compiled form of a function; forms other than the plain one are built when needed.

    Attributes:
        accumulate: update expressions are outputs, to be accumulated over slices.
        select: how rows of sliceable shared variables are selected: None (all of them),
            "range" (two more inputs: start, stop) or "index" (one more input: int64 vector).
    """

    accumulate: bool = False
    select: Optional[str] = None


PLAIN = Form()


@dataclass(frozen=True)
class Recipe:
    """What a rank needs to know of a function besides its compiled forms.

    Shared variables are named by their number in the registry.
    """

    function_id: int
    name: str
    output_ops: Tuple[Optional[str], ...]
    update_ops: Tuple[str, ...]
    updated: Tuple[int, ...]
    sliceable: Tuple[int, ...]
    row_shares: Tuple[int, ...]


@dataclass(frozen=True)
class ArrayRef:
    """Where an array lies: `key` names the slot in which a rank keeps it mapped."""

    key: int
    handle: Handle


@dataclass(frozen=True)
class Rows:
    """Which rows of the scattered arrays each rank takes.

    ``bounds[rank]`` is a range of the selection; row i of the selection is row
    ``index[i]`` or ``start + i * step`` of the data.
    """

    bounds: Tuple[Bounds, ...]
    start: int = 0
    step: int = 1
    index: Optional[ArrayRef] = None

    @property
    def counts(self) -> Tuple[int, ...]:
        return tuple(stop - start for start, stop in self.bounds)


@dataclass(frozen=True)
class ScatteredInput:
    """A scattered array.

    Attributes:
        offset: the number of its row 0: more than 0 for a minibatch.
        selected: it holds just the selected rows, in the order of the selection.
    """

    array: ArrayRef
    offset: int = 0
    selected: bool = False


@dataclass(frozen=True)
class Join:
    """Meet the other ranks: from here on the communicator works."""


@dataclass(frozen=True)
class Distribute:
    """Take over new shared variables, recipes and compiled forms.

    Attributes:
        payload: pickles and their buffers, one uint8 array in shared memory.
        variables: (start, stop) of the variables' pickle in it, then of each of its buffers.
        functions: the same for recipes and compiled forms, which refer to the variables.
    """

    payload: ArrayRef
    variables: Tuple[Bounds, ...]
    functions: Tuple[Bounds, ...]


@dataclass(frozen=True)
class Call:
    """Compute a function; see `_share.compute`."""

    function_id: int
    form: Form
    rows: Optional[Rows]
    scattered: Tuple[ScatteredInput, ...]
    broadcast: Tuple[ArrayRef, ...]
    outputs: Optional[Tuple[int, ...]]
    num_slices: int
    # `batch_s` by rank: only that rank knows how many rows its variables have.
    selectors: Tuple[Selector, ...]


@dataclass(frozen=True)
class Collective:
    """A collective over shared variables; `kind` names the function in `_collectives`."""

    kind: str
    variables: Tuple[int, ...]
    arguments: Dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Stop:
    """Leave."""


Command = Union[Join, Distribute, Call, Collective, Stop]


@dataclass(frozen=True)
class Envelope:
    """A numbered command, and the slots of arrays whose mappings are no longer needed."""

    serial: int
    command: Command
    forget: Tuple[int, ...] = ()


@dataclass(frozen=True)
class Hello:
    """The first message to a worker: what it has to know before it can obey."""

    rank: int
    size: int
    master: int
    ticket: str
    timeout_s: float
    sys_path: Tuple[str, ...]
    directory: str
    theano_config: Dict[str, Any]
    profile_path: Optional[str]


@dataclass(frozen=True)
class Ready:
    """A worker's first message."""

    rank: int


@dataclass(frozen=True)
class Failure:
    """A worker could not do its part.

    Attributes:
        serial: of the command's envelope; 0 for a failure at the start.
        error: the pickled exception, or None if it cannot be pickled.
    """

    serial: int
    rank: int
    doing: str
    traceback: str
    error: Optional[bytes]
