"""The state of one rank that acts work on. The same in the master and in the workers."""

from __future__ import annotations

from collections import deque
from typing import Any, Callable, Deque, Dict, List, Optional, Tuple

import numpy as np

import synk_comm
from synk_comm.processes import threads_per_rank
from synk_core._graph.shared import VariableRegistry
from synk_core._wire.arrays import MOST_THREADS, ArrayCache
from synk_core._wire.flight import WORDS, Flight
from synk_core._wire.settings import Settings
from synk_core._wire.world import World
from synk_core.device import Device

from .functions import LoadedFunction
from .mirror import Mirror
from .undo import Journal

LOGGED = 1 << 13
"""Orders whose times ranks of other hosts keep, until the master asks for them."""

LoggedTimes = Tuple[int, List[float]]
"""The serial of an order, and the seconds that a rank computed in it, by act."""


class NotJoined:
    """In place of a communicator, until the ranks have joined."""

    def __getattr__(self, name: str) -> Any:
        raise RuntimeError(f"{name}: this rank has not joined the others yet")


class Workplace:
    """A rank's communicator, shared variables, functions and mapped arrays, which so many `threads`
    read; 0 for this rank's share of the machine's cores.

    Attributes:
        world: of a launcher's ranks, or None.
        mirror: copies of them on other hosts; None if there are none.
        clock_offset_s: seconds to add to this host's `time.perf_counter` to get the master's.
        journal: the values that variables had before the order under way.
        times: seconds of computing in the order under way, by act and rank; in the memory that
            the master's host shares.
        log: of the latest orders, serial and own seconds by act, on other hosts.
        serial: of the order under way.
        undone: serial of the last order that was undone, on all ranks; 0 for none.
        doing: the act under way, in words.
        reseeds: whether each worker seeds the states of random streams for itself.
        seed: for the states of random streams that arrive here; None keeps them as they are.
        check: runs an `Execution` of a call in place of the call; None while nothing is checked. In
            a list, like a variable's value, for the journal.
    """

    def __init__(
        self,
        rank: int,
        size: int,
        master: int,
        settings: Settings,
        device: Optional[Device] = None,
        flight: Optional[Flight] = None,
        threads: int = 0,
    ) -> None:
        self.rank = rank
        self.size = size
        self.master = master
        self.is_master = rank == master
        self.registry = VariableRegistry()
        self.functions: Dict[int, LoadedFunction] = {}
        self.acts: Dict[int, Any] = {}
        self.arrays = ArrayCache(min(threads or threads_per_rank(size), MOST_THREADS))
        self.mirror: Optional[Mirror] = None
        self.world: Optional[World] = None
        self.clock_offset_s = 0.0
        self.device: Device = device or Device()
        self.flight = flight or Flight(np.zeros(WORDS * size, np.int64), rank)
        self.journal = Journal(settings.atomic)
        self.times: Any = None
        self.log: Deque[LoggedTimes] = deque(maxlen=LOGGED)
        self.serial = 0
        self.undone = 0
        self.doing = ""
        self.reseeds = settings.reseeds
        self.seed = rank if settings.reseeds and not self.is_master else None
        self.check: List[Optional[Callable[[Any], List[Any]]]] = [None]
        self.comm: synk_comm.Communicator = NotJoined()  # type: ignore[assignment]

    def use(self, world: World) -> None:
        """Configure this rank for a launcher's world, whose hosts share no memory."""
        self.world, self.clock_offset_s = world, world.offset_s(self.rank)
        if len(world.hosts) > 1:
            host = world.members[self.rank].host
            self.mirror = Mirror(self.rank, self.master, world.nodes, host, self.arrays)
