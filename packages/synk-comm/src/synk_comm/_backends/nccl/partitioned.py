"""An all_reduce of a device vector whose parts come about one after the other.

Each part is reduced on a stream of its own as soon as it is there, while the device computes the
next ones. MPI calls such communication partitioned.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from typing import Any, Callable, NamedTuple

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
        offset: of its first byte.
        reduce: has it reduced, given the addresses to read from and to write to.
    """

    offset: int
    reduce: Callable[[int, int], None]


class PartitionedReduction:
    """An all_reduce that all ranks have begun; see ``NcclCommunicator.partitioned_all_reduce``.

    Args:
        guard: of the communicator: what fails here ends it.
        address: returns where a vector like the result lies.
        result: where that one lies.
        stack: closed when no more parts come.
    """

    def __init__(
        self,
        guard: Guard,
        link: Link,
        aside: Aside,
        address: Callable[[Any], int],
        result: int,
        parts: Sequence[Part],
        stack: contextlib.ExitStack,
    ) -> None:
        self._guard = guard
        self._link = link
        self._aside = aside
        self._address = address
        self._result = result
        self._parts = parts
        self._stack = stack
        self._given = 0
        self._source = (None, result)

    def ready(self, count: int, x: Any = None) -> None:
        """Have the first ``count`` parts reduced, as far as they are not yet. Returns at once.

        The work that the main stream has been given so far computes them.

        Args:
            x: a vector like the result, in which the new parts lie; it must not change before
                ``wait``. None if they are in the result already.
        """
        if count <= self._given:
            return
        if x is not self._source[0]:
            self._source = (x, self._result if x is None else self._address(x))
        driver, (main, stream, event) = self._link.driver, self._aside
        with self._guard, driver.entered(self._link.device):
            driver.record(event, main)
            driver.wait_for(stream, event)
            # One by one, not as a group of NCCL's: other ranks may have other parts ready together.
            while self._given < count:
                offset, reduce = self._parts[self._given]
                self._given += 1
                reduce(self._source[1] + offset, self._result + offset)

    def wait(self, x: Any = None) -> None:
        """Have the remaining parts reduced, and the main stream wait for all. Returns at once.

        A rank that fails to compute its parts must call this, too: the others' devices would wait
        for it for ever. The result is meaningless then, on all ranks.

        Args:
            x: as in ``ready``.
        """
        self.ready(len(self._parts), x)
        driver, (main, stream, event) = self._link.driver, self._aside
        with self._guard, driver.entered(self._link.device):
            driver.record(event, stream)
            driver.wait_for(main, event)
        self._stack.close()
