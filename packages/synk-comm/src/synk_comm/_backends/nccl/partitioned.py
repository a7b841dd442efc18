"""An all_reduce of a device vector whose parts come about one after the other.

Each part is reduced on a stream of its own as soon as it is there, while the device computes the
next ones. MPI calls such communication partitioned.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from typing import Any, NamedTuple

from .arrays import DeviceArray
from .base import NcclBase
from .terms import check_like


class Part(NamedTuple):
    """A part of the vector: its place, and how NCCL combines it."""

    result: DeviceArray
    elements: int
    type: int
    op: int


class PartitionedReduction:
    """An all_reduce that all ranks have begun; see ``NcclCommunicator.partitioned_all_reduce``.

    Args:
        comm: the communicator, which a failure here ends.
        main: the stream on which the parts come about.
        parts: in the order in which they come about.
        timeout_s: of each call of NCCL; None takes the communicator's.
        stack: closed when no more parts come.
    """

    def __init__(
        self,
        comm: NcclBase,
        main: int,
        parts: Sequence[Part],
        timeout_s: float | None,
        stack: contextlib.ExitStack,
    ) -> None:
        self._comm = comm
        self._main = main
        self._stream, self._event = comm._aside(main)
        self._parts = parts
        self._timeout_s = timeout_s
        self._stack = stack
        self._given = 0
        self._read: list[Any] = []

    def ready(self, x: Any = None) -> None:
        """Enqueue the reduction of the next part.

        The work that the main stream has been given so far computes it.

        Args:
            x: the part, which must not change before ``wait``; None if it lies where its result is
                to lie.
        """
        part = self._parts[self._given]
        source = part.result
        if x is not None:
            source = self._comm._one(x, "x")
            check_like([source], [part.result])
            self._read.append(x)
        link = self._comm._link
        with self._comm._device_guard, link.driver.entered(link.device):
            link.driver.record(self._event, self._main)
            link.driver.wait_for(self._stream, self._event)
            self._given += 1
            self._reduce(part, source.pointer)

    def _reduce(self, part: Part, source: int) -> None:
        link, stream, to = self._comm._link, self._stream, part.result.pointer
        if self._comm.size > 1:
            how = part.elements, part.type, part.op
            calls = [(link.binding.all_reduce, source, to, *how, link.handle, stream)]
        else:  # as in ``NcclReductions._copy``
            calls = []
            if source != to:
                link.driver.copy_on(stream, to, source, part.result.nbytes)
        link.run(calls, stream, self._comm._steps.deadline(self._timeout_s))

    def wait(self) -> None:
        """Enqueue the reduction of the parts that are left; the main stream waits for all.

        A rank that fails to compute its parts must call this, too: the others' devices would wait
        for it for ever. The result is meaningless then, on all ranks.
        """
        while self._given < len(self._parts):
            self.ready()
        link = self._comm._link
        with self._comm._device_guard, link.driver.entered(link.device):
            link.driver.record(self._event, self._stream)
            link.driver.wait_for(self._main, self._event)
        self._stack.close()
        self._read.clear()
