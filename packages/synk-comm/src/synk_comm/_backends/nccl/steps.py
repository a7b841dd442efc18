"""The common part of all calls on device arrays: their arguments, their streams, their making."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from typing import Any, Callable, Tuple

from synk_comm._backends.nccl.arrays import DeviceArray, maker, resolve
from synk_comm._collectives.communicator import RoundCommunicator
from synk_comm._core.calls import CollectiveCall, Shape
from synk_comm._core.guard import Guard

from .link import Link, NcclCalls

Finished = Tuple[NcclCalls, bool]
"""Calls of NCCL, and whether they are the same whenever the ranks' calls are."""
Finish = Callable[[Sequence[CollectiveCall], contextlib.ExitStack], Finished]
"""``finish(said, stack)`` gets the ranks' calls; the stack ends with the call."""


class _DeviceGuard(Guard):
    """Entry to a call on device arrays; an error half-way ends both communicators."""

    def _end(self, exc: BaseException) -> None:
        super()._end(exc)
        self._fabric.abort(f"{type(exc).__name__}: {exc}")


class DeviceSteps:
    """One rank's host communicator and NCCL link, and the guard of calls on device arrays."""

    def __init__(self, host: RoundCommunicator, link: Link, stream: int | None) -> None:
        self.rank = host.rank
        self.size = host.size
        self.host = host
        self.link = link
        self.check_rank = host._steps.check_rank
        self.check_only_root = host._steps.check_only_root
        self.deadline = host._steps.deadline
        self.guard = _DeviceGuard(link)
        self.guard.token = host._guard.token  # one group: both mark the errors that they let out
        self._stream = stream  # of all calls; None takes that of the arrays
        self._asides: dict[int, tuple[int, int]] = {}
        # all_reduces of pygpu arrays that were made before, by the arrays' addresses.
        self.repeated: dict[tuple[int, int], Any] = {}

    def one(self, x: Any, name: str, *, written: bool = False) -> DeviceArray:
        link = self.link
        return resolve(x, name, link.device, link.driver.device_of, self._stream, written=written)

    def several(self, x: Any, name: str, *, written: bool = False) -> list[DeviceArray]:
        """Resolve an array, or a list of them."""
        if isinstance(x, (list, tuple)):
            return [self.one(each, f"{name}[{n}]", written=written) for n, each in enumerate(x)]
        return [self.one(x, name, written=written)]

    def per_rank(self, xs: Any, name: str, *, written: bool = False) -> list[Any]:
        """Resolve one array for each rank: a list, or the arrays along a first axis.

        A list that is written may have None for ranks that send nothing.
        """
        if isinstance(xs, (list, tuple)):
            if len(xs) != self.size:
                raise ValueError(f"{name} must be a list of {self.size} arrays, got {len(xs)}")
            return [
                None if x is None and written else self.one(x, f"{name}[{rank}]", written=written)
                for rank, x in enumerate(xs)
            ]
        whole = self.one(xs, name, written=written)
        if whole.shape[:1] != (self.size,):
            got = f"an array of shape {whole.shape}"
            raise ValueError(f"{name} must have a first axis of length {self.size}, got {got}")
        return whole.rows()

    def stream_for(self, arrays: Sequence[DeviceArray | None]) -> int:
        """Return the stream that a call works on."""
        if self._stream is not None:
            return self._stream
        streams = [array.stream for array in arrays if array is not None]
        # The default stream is named 0 or 1.
        named = {0 if stream == 1 else stream for stream in streams if stream is not None}
        if len(named) > 1:
            raise ValueError(
                f"the arrays of this call come about on different CUDA streams {sorted(named)}; "
                "let one wait for the other, and name it when the communicator is made: stream="
            )
        return named.pop() if named else 0

    def aside(self, main: int) -> tuple[int, int]:
        """Return a stream for work beside another one, and the event by which they wait."""
        if main not in self._asides:
            driver = self.link.driver
            with driver.entered(self.link.device):
                self._asides[main] = driver.stream(), driver.event()
        return self._asides[main]

    def made(self, like: Any, shape: Shape) -> tuple[Any, DeviceArray]:
        """Make an array for a result; return it, and its place."""
        made = maker(like)(shape)
        return made, self.one(made, "the result", written=True)


class DeviceCall:
    """A call whose arguments have been checked, to be made once or more often."""

    def __init__(
        self, steps: DeviceSteps, call: CollectiveCall, stream: int, finish: Finish
    ) -> None:
        self._steps = steps
        self._call = call
        self._stream = stream
        self._finish = finish
        # The ranks' calls of the last time, and NCCL's.
        self._said: Sequence[CollectiveCall] = ()
        self._calls: NcclCalls = ()

    def make(self, deadline: float) -> Sequence[CollectiveCall]:
        """Compare the ranks' calls, then enqueue those of NCCL; return the ranks' calls."""
        steps, link = self._steps, self._steps.link
        with steps.guard:
            said = steps.host.agree(self._call, deadline)
            if said == self._said:
                link.run(self._calls, self._stream, deadline)
                return said
            with contextlib.ExitStack() as stack:
                if steps.size == 1:  # NCCL only copies then, by the current device's stream
                    stack.enter_context(link.driver.entered(link.device))
                calls, is_lasting = self._finish(said, stack)
                link.run(calls, self._stream, deadline)
        if is_lasting:
            self._said, self._calls = said, calls
        return said
