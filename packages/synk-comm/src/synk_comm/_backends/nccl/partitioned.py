"""An all_reduce of a device vector whose parts come about one after the other.

Each part is reduced on a stream of its own as soon as it is there, while the device computes the
next ones. MPI calls such communication partitioned.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from typing import Any, Callable, NamedTuple

from synk_comm._backends.nccl.arrays import DeviceArray
from synk_comm._core.guard import Guard

from .link import Link


class Aside(NamedTuple):
    """Where parts are reduced.

    Attributes:
        main: the stream on which they come about.
        stream: the one on which they are reduced.
        event: by which each of the two waits for the other.
    """

    main: int
    stream: int
    event: int


class Part(NamedTuple):
    """A part of the vector.

    Attributes:
        result: where it is to lie.
        reduce: has it reduced, given the address to read it from.
    """

    result: DeviceArray
    reduce: Callable[[int], None]


class PartitionedReduction:
    """An all_reduce that all ranks have begun; see ``NcclCommunicator.partitioned_all_reduce``.

    Args:
        guard: of the communicator: what fails here ends it.
        find: returns where an array lies.
        parts: in the order in which they come about.
        stack: closed when no more parts come.
    """

    def __init__(
        self,
        guard: Guard,
        link: Link,
        aside: Aside,
        find: Callable[[Any], DeviceArray],
        parts: Sequence[Part],
        stack: contextlib.ExitStack,
    ) -> None:
        self._guard = guard
        self._link = link
        self._aside = aside
        self._find = find
        self._parts = parts
        self._stack = stack
        self._given = 0
        self._read: list[Any] = []

    def ready(self, x: Any = None) -> None:
        """Have the next part reduced. Returns at once.

        The work that the main stream has been given so far computes it.

        Args:
            x: the part, which must not change before ``wait``; None if it lies where its result is
                to lie.
        """
        result, reduce = self._parts[self._given]
        source = result
        if x is not None:
            source = self._find(x)
            check_like([source], [result])
            self._read.append(x)
        driver, (main, stream, event) = self._link.driver, self._aside
        with self._guard, driver.entered(self._link.device):
            driver.record(event, main)
            driver.wait_for(stream, event)
            self._given += 1
            reduce(source.pointer)

    def wait(self) -> None:
        """Have the parts that are left reduced, and the main stream wait for all. Returns at once.

        A rank that fails to compute its parts must call this, too: the others' devices would wait
        for it for ever. The result is meaningless then, on all ranks.
        """
        while self._given < len(self._parts):
            self.ready()
        driver, (main, stream, event) = self._link.driver, self._aside
        with self._guard, driver.entered(self._link.device):
            driver.record(event, stream)
            driver.wait_for(main, event)
        self._stack.close()
        self._read.clear()


def check_like(given: Sequence[DeviceArray], outs: Sequence[DeviceArray]) -> None:
    """Raise ValueError unless each out can receive the result for the array given."""
    if len(given) != len(outs):
        raise ValueError(f"out must be a list like x, of {len(given)} arrays, got {len(outs)}")
    for x, out in zip(given, outs):
        if x.kind != out.kind:
            raise ValueError(
                f"out must be like x, {x.dtype} {x.shape}, got {out.dtype} {out.shape}"
            )
