"""One rank: what it owns, and how it performs a command. The same in master and workers.

The rule that keeps ranks in step: a command is any number of collectives and one barrier at its
end. A rank that fails declines its next collective; its peers leave the command there. After
the barrier nothing of the command can fail any more, so all ranks agree on how it ended.
"""

from __future__ import annotations

import contextlib
import copy
from typing import Any, Callable, Dict, Iterable, List, Optional, Sequence

import numpy as np

import synk_comm
import synk_shm
from synk_theano_compat import locks

from . import _collectives, _random_streams, _share
from ._messages import ArrayRef, Call, Collective, Command, Distribute, Envelope
from ._pickling import loads
from ._plan import Bounds
from ._shared_vars import VariableRegistry

REASON_LIMIT = 1000
"""Characters of a reason that travels to the peers; the traceback goes another way."""


class ArrayCache:
    """Arrays that this rank has mapped, by slot; a slot is mapped anew when its handle changes."""

    def __init__(self) -> None:
        self._slots: Dict[int, Any] = {}

    def get(self, ref: ArrayRef) -> np.ndarray:
        held = self._slots.get(ref.key)
        if held is None or held[0] != ref.handle:
            held = self._slots[ref.key] = (ref.handle, synk_shm.attach(ref.handle))
        array: np.ndarray = held[1]
        return array

    def forget(self, keys: Iterable[int]) -> None:
        for key in keys:
            self._slots.pop(key, None)

    def clear(self) -> None:
        self._slots.clear()


class Rank:
    """A rank's communicator, shared variables, functions and mapped arrays.

    Attributes:
        in_step: False while a command is under way, and after a failure that leaves it unknown
            how far the other ranks are: then the group is of no more use.
        also_declined: the other ranks that failed in the command in which this one failed.
    """

    def __init__(self, rank: int, size: int, master: int) -> None:
        self.rank = rank
        self.size = size
        self.master = master
        self.registry = VariableRegistry()
        self.functions: Dict[int, _share.LoadedFunction] = {}
        self.arrays = ArrayCache()
        self.in_step = True
        self.also_declined: Dict[int, str] = {}
        self._comm: Optional[synk_comm.Communicator] = None

    @property
    def is_master(self) -> bool:
        return self.rank == self.master

    @property
    def comm(self) -> synk_comm.Communicator:
        if self._comm is None:
            raise RuntimeError(f"rank {self.rank} has not joined the others yet")
        return self._comm

    def join(self, ticket: Optional[str], timeout_s: float, watch: Callable[[], None]) -> None:
        """Meet the other ranks. Blocks until all are there; alone, nothing is needed."""
        if ticket is None:
            (self._comm,) = synk_comm.local_group(1)
        else:
            self._comm = synk_comm.join(ticket, timeout_s=timeout_s, watch=watch)

    def perform(self, envelope: Envelope) -> Any:
        """Do this rank's part of a command. Blocks until all ranks have done theirs.

        Returns:
            On the master what the command asks for; None elsewhere.

        Raises:
            synk_comm.PeerDeclined: another rank failed; this one has left the command.
            Exception: this rank failed, and its peers have left the command.
        """
        # Pessimistic: whatever interrupts in between, the ranks may have lost each other.
        self.in_step = False
        self.also_declined = {}
        known = len(self.registry)
        ending = False
        try:
            self.arrays.forget(envelope.forget)
            result = self._do(envelope.command)
            ending = True
            self.comm.barrier()
            self.in_step = True
            return result
        except synk_comm.CommError as error:
            self._undo(envelope.command, known)
            self.in_step = isinstance(error, (synk_comm.PeerDeclined, synk_comm.MismatchError))
            raise
        except BaseException as error:
            self._undo(envelope.command, known)
            if not ending:
                self._decline(error)
            raise

    def _undo(self, command: Command, known: int) -> None:
        if isinstance(command, Distribute) and not self.is_master:
            self.registry.truncate(known)

    def _decline(self, error: BaseException) -> None:
        with contextlib.suppress(synk_comm.CommError):
            self.also_declined = self.comm.decline(
                f"{type(error).__name__}: {error}"[:REASON_LIMIT]
            )
            self.in_step = True

    def close(self) -> None:
        """Drop everything. Never blocks."""
        self.arrays.clear()
        self.functions.clear()
        self.registry.truncate(0)
        if self._comm is not None:
            self._comm.close()

    def _do(self, command: Command) -> Any:
        if isinstance(command, Call):
            return _share.compute(
                self.functions[command.function_id],
                command,
                self.arrays,
                self.registry,
                self.comm,
                self.master,
            )
        if isinstance(command, Collective):
            group = _collectives.Group(self.comm, self.master, self.registry, self.arrays)
            return _collectives.KINDS[command.kind](group, command.variables, **command.arguments)
        if isinstance(command, Distribute):
            return None if self.is_master else self._take_over(command)
        raise TypeError(f"rank {self.comm.rank} got {command!r}, which is no command to perform")

    def _take_over(self, command: Distribute) -> None:
        """Build what the master has sent."""
        # The master compiled it all: with what it has left in the cache, nothing is compiled here.
        locks.refresh_cache()
        payload = self.arrays.get(command.payload)
        for record in _load(payload, command.variables, self.registry):
            value = record.value
            if record.is_random:
                value = _random_streams.reseed(value, self.comm.rank)
            # A copy of its own: pickle keeps two variables with one array together.
            self.registry.adopt(record, copy.deepcopy(value))
        recipes, forms = _load(payload, command.functions, self.registry)
        for recipe in recipes:
            self.functions[recipe.function_id] = _share.LoadedFunction(recipe)
        for function_id, form, function in forms:
            self.functions[function_id].forms[form] = function


def _load(payload: np.ndarray, extents: Sequence[Bounds], registry: VariableRegistry) -> Any:
    # Copies, because arrays of the result lie in these buffers and outlive the payload.
    parts: List[np.ndarray] = [np.array(payload[start:stop]) for start, stop in extents]
    return loads(parts[0].tobytes(), registry, parts[1:])


def pack(*pickles: Any) -> Any:
    """Lay out pickles and their buffers: (parts, extents of each pickle, total bytes).

    Buffers start at multiples of 64 bytes, so that arrays in them are aligned.
    """
    parts: List[Any] = []
    extents: List[List[Bounds]] = []
    end = 0
    for data, buffers in pickles:
        places: List[Bounds] = []
        for part in (data, *buffers):
            start = -(-end // 64) * 64
            end = start + len(part)
            places.append((start, end))
            parts.append((start, end, part))
        extents.append(places)
    return parts, [tuple(places) for places in extents], end
