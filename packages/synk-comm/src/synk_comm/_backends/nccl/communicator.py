"""Collectives on device arrays through NCCL, beside a communicator for everything else.

``NcclCommunicator`` wraps a *host* communicator of the same ranks, which keeps arrays in host
memory, objects, barriers and declines. It also compares the ranks' calls first: where they differ,
NCCL would hang, or combine the wrong elements.

For device arrays this holds beyond the contract of ``abc.py``, or instead of it:

* **Streams.** A call enqueues its work on a CUDA stream and returns. It is the stream given as
  ``stream=``, else that of the arrays (CuPy's name it), else the default stream. PyTorch's tensors
  name none: under ``torch.cuda.stream(s)`` give ``stream=s.cuda_stream``.
* **Errors.** A call raises those of the contract, and those that come while it is inside NCCL, as
  the first call is until all ranks are connected. If a peer dies later, a plain wait for the stream
  lasts for ever; ``synchronize()`` notices it and stops NCCL. Any failure ends the group; then the
  contents of outputs are undefined.
* **Arrays** are contiguous in C order, on this communicator's device, one device for each rank.
* **A rank that gives nothing** passes a device array as ``out=``, also if that would be ignored. A
  call with neither is the host communicator's, and a mismatch.
* **Dtypes.** Everything without objects can be moved. NCCL combines integers of 8, 32 and 64
  bits, float16, bfloat16, float32, float64, complex numbers by sum and avg, booleans by min and
  max. NaN may be lost by min and max.
* **Rounding.** All ranks get the same bits, but the order of the operands is NCCL's, and float16
  is rounded at each step. In a weighted average each rank's array is multiplied by
  ``weight / sum(weights)``, rounded to the dtype of the array, before it is added.
* ``send`` returns when the receiver has entered its ``recv``, whatever the size; a message to
  the own rank is a ValueError, and ``recv`` of a device array needs ``out``.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator, Sequence
from typing import Any, Callable

import numpy as np

from synk_comm._backends.nccl.arrays import is_device_array
from synk_comm._collectives.communicator import RoundCommunicator
from synk_comm._collectives.splitting import in_ranks_of_the_old
from synk_comm._core.ops import ReduceOp
from synk_comm._core.table import TABLE, Arguments
from synk_comm.abc import Communicator, Request
from synk_comm.exceptions import CommError, MismatchError

from . import moves, reduce
from .link import Link, MissingLibrary, NcclError, NcclSettings, load_binding
from .reduce import PartitionedReduction, PreparedReduction
from .steps import DeviceSteps

__all__ = ["MissingLibrary", "NcclCommunicator", "NcclError", "nccl", "why_no_nccl"]

_REPLY_TAG = 1 << 40
"""Added to the tag of a message for the receiver's answer; no other tag is as large."""

_ON_DEVICES: dict[tuple[str, str], Callable[..., Any]] = {
    ("whole", "fold"): reduce.reduce,
    ("parts", "fold"): reduce.reduce_scatter,
    ("whole", "fill"): moves.broadcast,
    ("whole", "rows"): moves.collect,
    ("parts", "rows"): moves.deal,
    ("parts", "one"): moves.deal,
}
"""By ``sends`` and ``makes`` of the row."""


class NcclCommunicator(Communicator):
    """A host communicator that takes device arrays too, through NCCL; made by ``nccl``.

    Attributes, besides those of every communicator:
        device: the ordinal of the device whose arrays it takes.
    """

    def __init__(self, host: RoundCommunicator, settings: NcclSettings, timeout_s: float) -> None:
        try:
            self._link = link = Link(host, settings, timeout_s)
        except BaseException:
            host.close()
            raise
        self.rank = host.rank
        self.size = host.size
        self.backend = "nccl"
        self.why = settings.why
        self.ordered_bytes = host.ordered_bytes
        self.device = link.device
        self._host = host
        self._settings = settings
        self._steps = DeviceSteps(host, link, settings.stream)

    def __repr__(self) -> str:
        return (
            f"<Communicator rank {self.rank} of {self.size}, nccl on device {self.device} "
            f"beside {self._host.backend}, {self._steps.guard.state}>"
        )

    def _call(
        self,
        kind: str,
        x: Any,
        out: Any,
        timeout_s: float | None,
        op: str | ReduceOp = "sum",
        root: int = 0,
        weight: float | None = None,
    ) -> Any:
        steps = self._steps
        if kind == "all_reduce":
            known = steps.repeated.get((id(x), id(out)))
            if known is not None and known.fits(x, out, op, weight):
                known.call.make(steps.deadline(timeout_s))
                return out
        if not on_device(x, out):
            return self._host._call(kind, x, out, timeout_s, op, root, weight)
        row, asked = TABLE[kind], Arguments(x, out, op, root, weight)
        return _ON_DEVICES[row.sends, row.makes](steps, row, asked, steps.deadline(timeout_s))

    def _message(
        self, sending: bool, array: Any, peer: int, tag: int, timeout_s: float | None
    ) -> Any:
        if not on_device(array):
            return self._host._message(sending, array, peer, tag, timeout_s)
        steps, host, link = self._steps, self._host, self._link
        deadline = steps.deadline(timeout_s)
        peer = steps.check_rank(peer, "dest" if sending else "source")
        if sending and peer == self.rank:
            raise ValueError("a device array cannot be sent to the own rank; make a copy of it")
        here = steps.one(array, "x" if sending else "out", written=not sending)
        stream, reply = steps.stream_for([here]), _REPLY_TAG + tag
        if sending:
            host.send_object(here.kind, peer, tag=tag, timeout_s=_left_s(deadline))
            with steps.guard:
                if host.recv_object(peer, tag=reply, timeout_s=_left_s(deadline)):
                    link.run(moves.exchange([(peer, here)], []), stream, deadline)
            return None
        dtype, shape = host.recv_object(peer, tag=tag, timeout_s=_left_s(deadline))
        fits = (dtype, shape) == here.kind
        with steps.guard:
            host.send_object(fits, peer, tag=reply, timeout_s=_left_s(deadline))
            if not fits:
                raise MismatchError(
                    f"rank {peer} sent a device array of {dtype} {shape}, but out is for "
                    f"{here.dtype} {here.shape}; the message is lost"
                )
            link.run(moves.exchange([], [(peer, here)]), stream, deadline)
        return array

    def _begin(self, kind: str, given: Arguments) -> Request:
        for array in (given.x, given.out):
            _refuse_device(array, f"i{kind}", kind)
        return self._host._begin(kind, given)

    def _begin_message(self, sending: bool, array: Any, peer: int, tag: int) -> Request:
        _refuse_device(array, *(("isend", "send") if sending else ("irecv", "recv")))
        return self._host._begin_message(sending, array, peer, tag)

    def partitioned_all_reduce(
        self,
        out: Any,
        op: str | ReduceOp = "sum",
        *,
        bounds: Sequence[tuple[int, int]],
        weight: float | None = None,
        timeout_s: float | None = None,
    ) -> PartitionedReduction:
        """Begin an all_reduce of a device vector whose parts are computed one after the other.

        A collective: it compares the ranks' calls, as ``all_reduce`` does. Each rank then calls
        ``ready`` of the result for each part, and ``wait`` at the end, also after an error; no
        other call on device arrays may come before that. The parts are reduced on a stream of their
        own.

        Args:
            out: a device vector for the reduced parts; the parts may lie in it, too.
            op: as in ``all_reduce``.
            bounds: begin and end of each part, in elements, in the order of their computation; the
                same on all ranks.
            weight: of this rank in an average, greater than 0.
            timeout_s: of the comparison, and of each call of NCCL.

        Raises:
            MismatchError: the ranks' parts or ops differ.
            TypeError, ValueError: bad arguments, such as parts that overlap.
            All errors of ``all_reduce``.
        """
        op = ReduceOp.parse(op)
        return PartitionedReduction(self._steps, out, op, bounds, weight, timeout_s)

    def prepared_all_reduce(
        self, ops: Sequence[str | ReduceOp], kinds: Sequence[tuple[str, tuple[int, ...]]]
    ) -> PreparedReduction:
        """Prepare an all_reduce that another library makes amid its own work, such as a program of
        XLA's that calls Python.

        It is no collective, and compares nothing: all ranks must have agreed on the calls that
        they make, and on their order, or they wait for ever, or combine the wrong elements.

        Args:
            ops: of each array "sum", "min", "max" or "prod".
            kinds: dtype (as ``numpy.dtype.str``) and shape of each array.

        Raises:
            TypeError, ValueError: NCCL cannot reduce such arrays; another op.
        """
        return PreparedReduction(
            self._link, list(map(ReduceOp.parse, ops)), kinds, self._host.timeout_s
        )

    @contextlib.contextmanager
    def awaiting_work(self, timeout_s: float | None = None) -> Iterator[None]:
        """Use it as a block in which you wait for work with prepared reductions.

        The wait ends if a peer dies, or at the timeout: that stops NCCL, and results are undefined.

        Raises:
            PeerLost, AbortedError, CommTimeout, NcclError: at the end of the block, about all work
                so far.
        """
        deadline = self._steps.deadline(timeout_s)
        interrupt: BaseException | None = None
        with self._steps.guard, self._link.await_work(deadline):
            try:
                yield
            except CommError:
                raise
            except BaseException as exc:  # noqa: BLE001 - raised below, outside of the guard
                interrupt = exc
        if interrupt is not None:
            raise interrupt

    def synchronize(self, timeout_s: float | None = None, *, event: int | None = None) -> None:
        """Wait until the GPU has done all that this communicator's calls have enqueued.

        Unlike a plain wait for the stream this ends if a peer dies or aborts, or at the timeout:
        that stops NCCL and ends the group. An interrupt, such as Ctrl-C, ends the wait alone.

        Args:
            event: a CUDA event of this device (``synk_comm.cuda.Driver.event``), instead.

        Raises:
            PeerLost, AbortedError, CommTimeout, or NcclError for an error of NCCL's own.
        """
        deadline = self._steps.deadline(timeout_s)
        interrupt: BaseException | None = None
        with self._steps.guard:
            try:
                self._link.synchronize(deadline, event)
            except CommError:
                raise
            except BaseException as exc:  # noqa: BLE001 - raised below, outside of the guard
                interrupt = exc
        if interrupt is not None:
            raise interrupt

    def split(
        self, color: int | None, key: int = 0, *, timeout_s: float | None = None
    ) -> Communicator | None:
        deadline = self._steps.deadline(timeout_s)
        host = self._host.split(color, key, timeout_s=timeout_s)
        if host is None:
            return None
        settings = self._settings._replace(device=self.device)
        try:
            return NcclCommunicator(host, settings, _left_s(deadline))
        except CommError as exc:
            raise in_ranks_of_the_old(exc, host.origin) from exc.__cause__

    def decline(self, reason: str, *, timeout_s: float | None = None) -> dict[int, str]:
        return self._host.decline(reason, timeout_s=timeout_s)

    def raised(self, error: BaseException) -> bool:
        return self._host.raised(error)

    def ended(self) -> CommError | None:
        """Return a fresh error if the communicator cannot be used any more."""
        return self._steps.guard.ended()

    def abort(self, reason: str) -> None:
        self._steps.guard.abort(reason)

    def close(self) -> None:
        """Leave the group; NCCL gets two seconds at most to end in order.

        Work that is still enqueued on a stream may be stopped: ``synchronize()`` first.
        """
        self._steps.guard.close()


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


def _left_s(deadline: float) -> float:
    return max(deadline - time.monotonic(), 0.001)


def nccl(
    comm: Communicator,
    *,
    stream: int | None = None,
    device: int | None = None,
    binding: Any = None,
    driver: Any = None,
    timeout_s: float | None = None,
) -> NcclCommunicator:
    """Make a communicator that takes device arrays too, from one that does not. A collective.

    Args:
        comm: of back-end shm, zmq, mpi or local; the result owns it, and a failure closes it.
        stream: the CUDA stream to work on, as a number (``torch.cuda.Stream.cuda_stream``,
            ``cupy.cuda.Stream.ptr``); None takes that of the arrays, call by call. The same
            stream for all calls is safest: NCCL runs one after the other.
        device: ordinal of the device to work on; None takes that of this thread's current
            CUDA context, else deals the devices of each machine to its ranks in turn.
        binding: a stand-in for ``nccl.bindings.nccl``, for tests.
        driver: a stand-in for ``synk_comm.cuda.Driver``, for tests.
        timeout_s: bound of the start; None takes that of ``comm``.

    If the start fails (a timeout, a dead peer), a thread of NCCL may stay until the process ends.

    Raises:
        MissingLibrary: nccl4py or NCCL is not installed here; the other ranks raise JoinError.
        CudaError: no CUDA here; the other ranks raise JoinError.
        JoinError: NCCL did not start, or two ranks would use one device.
        CommTimeout, PeerLost, AbortedError: as from every collective.
    """
    if not isinstance(comm, RoundCommunicator):
        raise TypeError(
            f"expected a communicator made by this package, got {type(comm).__name__}; "
            "open one with back-end shm, zmq or mpi first"
        )

    why = f"nccl over {comm.why or comm.backend}"
    limit = comm.timeout_s if timeout_s is None else timeout_s
    return NcclCommunicator(comm, NcclSettings(stream, device, binding, driver, why), limit)


def why_no_nccl() -> str:
    """Return why NCCL cannot be used here; "" if nccl4py and NCCL itself are there."""
    try:
        load_binding()
    except MissingLibrary as exc:
        return str(exc)
    return ""
