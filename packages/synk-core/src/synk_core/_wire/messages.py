"""All messages between processes.

The master gives orders, which all ranks perform, the master too. An order is a list of *acts* by
number: an act travels once, ahead of its first use (`Extras`). Workers answer only at their start
(`Ready`) and when they fail (`Failure`).
"""

from __future__ import annotations

import signal
from dataclasses import dataclass, field
from typing import Any, Callable, Dict, List, Mapping, NamedTuple, Optional, Tuple, Union

import numpy as np

from synk_core._plan.rows import Bounds
from synk_shm import Handle

from .settings import Settings

LEFT_TO_MASTER = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
"""Signals that workers ignore: they end with the master."""


@dataclass(frozen=True)
class Form:
    """One compiled form of a function; forms other than the plain one are built when needed.

    Attributes:
        accumulate: update expressions are outputs, to be accumulated over slices.
        select: how rows of sliceable shared variables are selected: None (all of them),
            "range" (two more inputs: start, stop) or "index" (one more input: int64 vector).
        rowless: takes the broadcast inputs only, and makes the updates that no row goes into.
    """

    accumulate: bool = False
    select: Optional[str] = None
    rowless: bool = False


PLAIN = Form()
ROWLESS = Form(rowless=True)


@dataclass(frozen=True)
class Recipe:
    """The description of a function beside its compiled forms; variables by number.

    Attributes:
        replicated: updated variables, each with its op over slices, that in-graph reductions
            make equal on all ranks.
    """

    function_id: int
    name: str
    output_ops: Tuple[Optional[str], ...]
    update_ops: Tuple[str, ...]
    updated: Tuple[int, ...]
    sliceable: Tuple[int, ...]
    row_shares: Tuple[int, ...]
    replicated: Tuple[Tuple[int, str], ...] = ()


class ArrayRef(NamedTuple):
    """The address of an array; `key` is that of its `Data`."""

    key: int
    handle: Handle


@dataclass(frozen=True)
class Rows:
    """The rows of the scattered arrays that each rank takes.

    ``bounds[rank]`` is a range of the selection. Row i of the selection is row ``index[i]`` of
    the data. Without an index it follows from `step` and the order's origin, the lowest row of the
    selection, which can change from call to call.
    """

    bounds: Tuple[Bounds, ...]
    step: int = 1
    index: Optional[ArrayRef] = None

    @property
    def counts(self) -> Tuple[int, ...]:
        return tuple(stop - start for start, stop in self.bounds)

    def span(self, start: int, stop: int, origin: int, offset: int = 0) -> slice:
        """Return rows ``start:stop`` of the selection, if there is no index, as rows of an array
        whose row 0 is row `offset` of the data."""
        if start == stop:
            return slice(0, 0)  # the array may end before their first row
        if self.step < 0:  # the selection begins with its highest row
            origin -= self.step * (max(stop for _, stop in self.bounds) - 1)
        begin = origin - offset + start * self.step
        end = begin + (stop - start) * self.step
        return slice(begin, None if end < 0 else end, self.step)


@dataclass(frozen=True)
class ScatteredInput:
    """A scattered array.

    Attributes:
        minibatch: it holds just the rows of the batch; unless `selected`, its row 0 is the order's
            origin.
        selected: it holds just the selected rows, in the order of the selection.
    """

    array: ArrayRef
    minibatch: bool = False
    selected: bool = False
    axis: int = 0


@dataclass(frozen=True)
class StagedSelector:
    """`batch_s` for one rank, which resolves it: a vector of booleans, or int64 of row numbers, or
    of start, stop and step of a slice."""

    array: ArrayRef
    is_slice: bool


DISTRIBUTE = "distribute()"
"""Name of the act of distribution, in figures and errors."""


@dataclass(frozen=True)
class Distribute:
    """Take over new shared variables, recipes and compiled forms.

    Attributes:
        payload: pickles and their buffers, one uint8 array.
        variables: (start, stop) of the variables' pickle in it, then of each of its buffers.
        functions: the same for recipes and compiled forms, which refer to the variables.
        broadcast: numbers of the variables whose values come from device to device.
        path, folder: the master's ``sys.path`` and current folder ("" if removed).
    """

    payload: ArrayRef
    variables: Tuple[Bounds, ...]
    functions: Tuple[Bounds, ...]
    broadcast: Tuple[int, ...]
    path: Tuple[str, ...]
    folder: str


@dataclass(frozen=True)
class Call:
    """Compute a function; see `_rank.call.PreparedCall`.

    Attributes:
        outputs: positions of the outputs that are wanted; None for all of them.
        selectors: `batch_s` by rank, or () for all rows everywhere.
        variant: its `prepare(here, call)` returns, once, a function that performs the call in
            another way; if that fails, all is undone. None for an ordinary call.
    """

    function_id: int
    form: Form
    rows: Optional[Rows]
    scattered: Tuple[ScatteredInput, ...]
    broadcast: Tuple[ArrayRef, ...]
    outputs: Optional[Tuple[int, ...]]
    num_slices: int
    selectors: Tuple[StagedSelector, ...]
    variant: Optional[Any] = None

    def shares(self, size: int) -> Tuple[Tuple[Bounds, ...], Tuple[int, ...]]:
        """Return the range of the selection that each rank takes, and how many rows it stands for:
        one, if there is nothing to select."""
        if self.rows is None:
            return ((0, 0),) * size, (1,) * size
        return self.rows.bounds, self.rows.counts

    def arrays(self) -> List[ArrayRef]:
        """Return all arrays that the call refers to."""
        refs = [item.array for item in self.scattered]
        refs += [item.array for item in self.selectors]
        refs += self.broadcast
        if self.rows is not None and self.rows.index is not None:
            refs.append(self.rows.index)
        return refs


@dataclass(frozen=True)
class Prefetch:
    """Take the rows of a later call, and start to copy them to the device; `call` is the number of
    that act, 0 if there is none."""

    call: int

    @property
    def key(self) -> Tuple[str, int]:
        """The key of the act: there is one for each call."""
        return "prefetch", self.call


@dataclass(frozen=True)
class Collective:
    """A collective over shared variables; `kind` names the function in `_rank.collectives`."""

    kind: str
    variables: Tuple[int, ...]
    arguments: Dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Own:
    """An act of a feature: each rank calls the function with its workplace and the argument."""

    perform: Callable[[Any, Any], Any]
    argument: Any = None


@dataclass(frozen=True)
class Stop:
    """End the worker."""


Act = Union[Distribute, Call, Prefetch, Collective, Own, Stop]


class Step(NamedTuple):
    """One act of an order, and its lowest row (0 if it has none)."""

    number: int
    origin: int = 0


class Shipment(NamedTuple):
    """Rows of an array that the master sends to a host, for its copy.

    Attributes:
        node: None for all hosts but the master's.
        rows: a range, or an int64 vector of row numbers.
        data: the rows, if they are few; None if they follow the order.
    """

    node: Optional[int]
    key: int
    row_nbytes: int
    rows: Union[slice, np.ndarray]
    data: Optional[bytes] = None


@dataclass(frozen=True)
class Extras:
    """The part of an order that is sent only if there is something new.

    Attributes:
        acts: new acts, by number.
        forget_acts, forget_functions, forget_variables: numbers that are not used any more.
        forget_arrays: keys of arrays that are gone, or have moved.
        steps: the order's steps, if they are too many for its line.
        mirrors: bytes of the arrays that each other host has to make a copy of, by key.
        shipments: rows that other hosts lack.
    """

    acts: Dict[int, Act]
    forget_acts: Tuple[int, ...] = ()
    forget_arrays: Tuple[int, ...] = ()
    forget_functions: Tuple[int, ...] = ()
    forget_variables: Tuple[int, ...] = ()
    steps: Optional[List[Step]] = None
    mirrors: Mapping[int, int] = field(default_factory=dict)
    shipments: Tuple[Shipment, ...] = ()


class Order(NamedTuple):
    """The acts that all ranks perform next."""

    serial: int
    steps: List[Step]
    extras: Optional[Extras] = None


@dataclass(frozen=True)
class Hello:
    """The first message to a worker.

    Attributes:
        ticket: for `synk_comm.join`.
        directory: the master's current folder.
        times, flight: shared arrays; see `_rank.workplace` and `_wire.flight`.
        adapter: the module of the master's graph engine; see `engine.load`.
        contexts: of the devices to compute on; see `device.Contexts`.
        authkey: the master's, of multiprocessing: shared memory identifies a family by it.
        threads: for computing and reading rows; 0 for this rank's share of the machine's cores.
        tag: of MPI's messages to and from the rank, if a launcher has started it; else 0.
        environment: variables for such a rank, which it sets before it imports the engine.
    """

    rank: int
    size: int
    master: int
    settings: Settings
    ticket: str
    sys_path: Tuple[str, ...]
    directory: str
    adapter: str
    options: Dict[str, Any]
    times: ArrayRef
    flight: ArrayRef
    contexts: Mapping[Optional[str], str]
    authkey: bytes
    threads: int = 0
    tag: int = 0
    environment: Mapping[str, str] = field(default_factory=dict)


JOIN = b"join"
"""The second message: join the other ranks. Later ones go to ranks of other hosts alone: the number
of an order that the master gives up while they compute."""


class Ready(NamedTuple):
    """A worker's first message, with the descriptor of a file of stacks that it has made itself."""

    stacks_fd: int = -1


@dataclass(frozen=True)
class Failure:
    """A worker's report of its failure.

    Attributes:
        serial: of the order; 0 for a failure at the start.
        doing: the act, in words.
        frames: those of the traceback that are not this library's.
        error: the pickled exception, or None if it cannot be pickled.
        when: in seconds of the master's `time.perf_counter`.
    """

    serial: int
    rank: int
    doing: str
    traceback: str
    frames: str
    error: Optional[bytes]
    when: float
