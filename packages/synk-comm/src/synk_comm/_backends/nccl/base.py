"""The parts that all calls on device arrays share, and calls of the host communicator alone."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any, Callable, NamedTuple

import numpy as np

from synk_comm._backends.nccl.arrays import (
    DeviceArray,
    check_usable,
    is_device_array,
    maker,
    resolve,
)
from synk_comm._collectives.communicator import RoundCommunicator
from synk_comm._core.guard import Guard
from synk_comm._core.table import Arguments
from synk_comm.abc import Communicator, Request
from synk_comm.cuda import Driver
from synk_comm.exceptions import CommError

from .link import Link

_STOP_S = 1.0
"""Seconds that a failed call waits for NCCL's kernels to stop."""


class NcclSettings(NamedTuple):
    """Settings of a communicator, which its splits inherit."""

    stream: int | None
    device: int | None
    load: Callable[[], tuple[Any, Driver]]
    why: str


class HostAndNccl:
    """What ends with a communicator on devices: its host communicator, and NCCL."""

    def __init__(self, host: RoundCommunicator, link: Link) -> None:
        self.rank = host.rank
        self._host = host
        self._link = link

    def failure(self) -> CommError | None:
        """Return what ended the host communicator."""
        return self._host.ended()

    def abort(self, reason: str) -> None:
        """End both; wait at most a second for NCCL's kernels to stop."""
        self._host.abort(reason)
        self._link.abort(_STOP_S)

    def lose(self, rank: int) -> None:
        """Do nothing: ``abort`` informs all ranks."""

    def drop(self) -> None:
        """Leave the host communicator; a forked child must not touch NCCL."""
        self._host.close()

    def close(self) -> None:
        """Leave both; NCCL only ends in order if all is well and done."""
        is_done = self.failure() is None and self._link.is_idle_within(_STOP_S)
        try:
            self._host.close()
        finally:
            if is_done:
                self._link.close()
            else:
                self._link.abort(_STOP_S)


class _DeviceGuard(Guard):
    """Entry to a call on device arrays; whatever leaves one half-way ends both."""

    def _end(self, exc: BaseException) -> None:
        super()._end(exc)
        self._fabric.abort(f"{type(exc).__name__}: {exc}")


class NcclBase(Communicator):
    """One rank's host communicator and NCCL link, without the collectives on device arrays."""

    def __init__(self, host: RoundCommunicator, link: Link, settings: NcclSettings) -> None:
        self.rank = host.rank
        self.size = host.size
        self.backend = "nccl"
        self.why = settings.why
        self.ordered_bytes = host.ordered_bytes
        self.device = link.device
        self._host = host
        self._steps = host._steps
        self._link = link
        self._settings = settings
        self._device_guard = _DeviceGuard(HostAndNccl(host, link))
        self._device_guard.token = host._guard.token  # one group, whose errors both let out
        self._asides: dict[int, tuple[int, int]] = {}

    def __repr__(self) -> str:
        return (
            f"<Communicator rank {self.rank} of {self.size}, nccl on device {self.device} "
            f"beside {self._host.backend}, {self._device_guard.state}>"
        )

    # -- the end --------------------------------------------------------------------------

    def ended(self) -> CommError | None:
        """Return a fresh error if the communicator cannot be used any more."""
        return self._device_guard.ended()

    def abort(self, reason: str) -> None:
        self._device_guard.abort(reason)

    def close(self) -> None:
        """Leave the group; NCCL gets two seconds at most to end in order.

        What is still enqueued on a stream then may be stopped: ``synchronize()`` first.
        """
        self._device_guard.close()

    def synchronize(self, timeout_s: float | None = None, *, event: int | None = None) -> None:
        """Wait until the GPU has done all that this communicator's calls have enqueued.

        Args:
            event: a CUDA event of this device (``synk_comm.cuda.Driver.event``): wait for that
                instead.

        Unlike a plain wait for the stream this ends if a peer dies or gives up, or when the time
        is over: NCCL is stopped then, and the group has ended. No collective: an interrupt, such
        as Ctrl-C, ends the wait and nothing else.

        Raises:
            PeerLost, AbortedError, CommTimeout, or NcclError for what NCCL reports itself.
        """
        deadline = self._steps.deadline(timeout_s)
        interrupt: BaseException | None = None
        with self._device_guard:
            try:
                self._link.synchronize(deadline, event)
            except CommError:
                raise
            except BaseException as exc:  # noqa: BLE001 - raised below, outside of the guard
                interrupt = exc
        if interrupt is not None:
            raise interrupt

    # -- arguments ------------------------------------------------------------------------

    def _one(self, x: Any, name: str, *, written: bool = False) -> DeviceArray:
        array = resolve(x, self._link.driver.device_of, self._settings.stream)
        return check_usable(array, name, self.device, written=written)

    def _several(self, x: Any, name: str, *, written: bool = False) -> list[DeviceArray]:
        """Resolve an array, or a list of them."""
        if isinstance(x, (list, tuple)):
            return [
                self._one(array, f"{name}[{number}]", written=written)
                for number, array in enumerate(x)
            ]
        return [self._one(x, name, written=written)]

    def _per_rank(self, xs: Any, name: str, *, written: bool = False) -> list[DeviceArray]:
        """Resolve one array for each rank: a list, or what lies along a first axis."""
        if isinstance(xs, (list, tuple)):
            arrays = self._several(xs, name, written=written)
        else:
            whole = self._one(xs, name, written=written)
            if not whole.shape:
                raise ValueError(f"{name} needs a first axis of length {self.size}, got shape ()")
            arrays = whole.rows() if whole.shape[0] == self.size else []
            if not arrays:
                got = f"an array of shape {whole.shape}"
                raise ValueError(f"{name} must have a first axis of length {self.size}, got {got}")
        if len(arrays) != self.size:
            raise ValueError(f"{name} must be a list of {self.size} arrays, got {len(arrays)}")
        return arrays

    def _stream_for(self, arrays: Sequence[DeviceArray]) -> int:
        """Return the stream that a call works on."""
        if self._settings.stream is not None:
            return self._settings.stream
        if len(arrays) == 1 and arrays[0].stream is not None:
            return arrays[0].stream
        named = {array.stream for array in arrays if array.stream is not None}
        if 1 in named:  # another name of the default stream
            named = (named - {1}) | {0}
        if len(named) > 1:
            raise ValueError(
                f"the arrays of this call come about on different CUDA streams {sorted(named)}; "
                "let one wait for the other, and name it when the communicator is made: stream="
            )
        return named.pop() if named else 0

    def _made(self, like: Any, shape: tuple[int, ...], dtype: str) -> tuple[Any, DeviceArray]:
        """Make an array for a result; return it, and where it lies."""
        made = maker(like)(shape, dtype)
        return made, self._one(made, "the result", written=True)

    @contextlib.contextmanager
    def _scratch(self, nbytes: int, stream: int) -> Iterator[int]:
        """Lend device memory for one call."""
        driver = self._link.driver
        with driver.entered(self.device):
            pointer = driver.allocate_on(stream, nbytes)
            try:
                yield pointer
            finally:
                driver.free_on(stream, pointer)

    def _aside(self, main: int) -> tuple[int, int]:
        """Return a stream for work beside another one, and the event by which they wait."""
        if main not in self._asides:
            driver = self._link.driver
            with driver.entered(self.device):
                self._asides[main] = driver.stream(), driver.event()
        return self._asides[main]

    # -- calls of the host communicator alone ---------------------------------------------

    def _begin(self, kind: str, given: Arguments) -> Request:
        for array in (given.x, given.out):
            _refuse_device(array, f"i{kind}", kind)
        return self._host._begin(kind, given)

    def _begin_message(self, sending: bool, array: Any, peer: int, tag: int) -> Request:
        _refuse_device(array, *(("isend", "send") if sending else ("irecv", "recv")))
        return self._host._begin_message(sending, array, peer, tag)

    def decline(self, reason: str, *, timeout_s: float | None = None) -> dict[int, str]:
        return self._host.decline(reason, timeout_s=timeout_s)

    def raised(self, error: BaseException) -> bool:
        return self._host.raised(error)


def on_device(*arguments: Any) -> bool:
    """Return whether a call is about device arrays: by the first argument that is not None."""
    for argument in arguments:
        if isinstance(argument, (list, tuple)):
            first = next((x for x in argument if x is not None), None)
            if first is not None:
                return is_device_array(first)
        elif argument is not None:
            return not isinstance(argument, np.ndarray) and is_device_array(argument)
    return False


def _refuse_device(x: Any, call: str, instead: str) -> None:
    if on_device(x):
        raise TypeError(
            f"{call} takes arrays in host memory; of a device array use {instead}(), which "
            "returns while the GPU is at work"
        )
