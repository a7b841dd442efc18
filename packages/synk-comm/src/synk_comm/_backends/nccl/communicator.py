"""Collectives on device arrays through NCCL, beside a communicator for everything else.

``NcclCommunicator`` is wrapped around a *host* communicator of the same ranks. Arrays in host
memory, objects, barriers and declines are the host communicator's. Device arrays go through NCCL,
but only after the host communicator has compared what all ranks are about to call: NCCL itself
would hang, or combine the wrong elements, where ranks differ.

What holds for device arrays, beyond the contract of ``abc.py`` and in places instead of it:

* **Streams.** A call enqueues its work on a CUDA stream and returns without waiting for it, as
  NCCL and all libraries of device arrays do. Results are there for what is enqueued on this
  stream later. It is the stream given as ``stream=``, else the one that the arrays name (CuPy's
  do), else the default stream: PyTorch's tensors name none, so under ``torch.cuda.stream(s)`` give
  ``stream=s.cuda_stream``.
* **Errors.** A mismatch, a bad argument, a peer that is missing when the call is entered, an
  abort: all are raised by the call, as the contract says; and so is what happens while the call
  is inside NCCL, as the first one is until all ranks are connected. A peer that dies later, while
  the GPU is at work, cannot be noticed by a call that has returned: the GPU then waits for it for
  ever, and so does a plain wait for the stream. ``synchronize()`` waits for the stream, notices,
  and stops NCCL. Any failure ends the group; then the contents of outputs are undefined.
* **Arrays** are contiguous in C order, on this communicator's device, one device for each rank.
* **A rank that gives nothing** passes ``out=``, which makes it a call about device arrays: any
  device array where ``out`` would be ignored. A call with neither array nor ``out`` is the host
  communicator's; it is reported as a mismatch if the other ranks gave device arrays.
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

import time
from typing import Any, Callable

from synk_comm._collectives.communicator import RoundCommunicator
from synk_comm._core.ops import ReduceOp
from synk_comm._core.table import TABLE, Arguments
from synk_comm.abc import Communicator
from synk_comm.cuda import Driver
from synk_comm.exceptions import CommError, MismatchError

from .base import NcclSettings, on_device
from .link import Link, NcclError
from .moves import NcclMoves
from .reduce import NcclReductions
from .start import MissingLibrary, load_binding

__all__ = ["MissingLibrary", "NcclCommunicator", "NcclError", "nccl", "why_no_nccl"]

_REPLY_TAG = 1 << 40
"""Added to the tag of a message for the receiver's answer, out of the way of all tags in use."""


class NcclCommunicator(NcclReductions, NcclMoves):
    """A host communicator that takes device arrays too, through NCCL; made by ``nccl``.

    Attributes, besides those of every communicator:
        device: the ordinal of the device whose arrays it takes.
    """

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
        if kind == "all_reduce":
            known = self._repeated.get((id(x), id(out)))
            if known is not None and known.fits(x, out, op, weight):
                self._reduce_again(known, self._steps.deadline(timeout_s))
                return out
        if not on_device(x, out):
            return self._host._call(kind, x, out, timeout_s, op, root, weight)
        row, asked = TABLE[kind], Arguments(x, out, op, root, weight)
        return _ON_DEVICES[row.sends, row.makes](self, row, asked, self._steps.deadline(timeout_s))

    def _message(
        self, sending: bool, array: Any, peer: int, tag: int, timeout_s: float | None
    ) -> Any:
        if not on_device(array):
            return self._host._message(sending, array, peer, tag, timeout_s)
        deadline = self._steps.deadline(timeout_s)
        peer = self._steps.check_rank(peer, "dest" if sending else "source")
        if sending and peer == self.rank:
            raise ValueError("a device array cannot be sent to the own rank; make a copy of it")
        here = self._one(array, "x" if sending else "out", written=not sending)
        stream, reply = self._stream_for([here]), _REPLY_TAG + tag
        if sending:
            said = ("device array", here.kind)
            self._host.send_object(said, peer, tag=tag, timeout_s=_left_s(deadline))
            with self._device_guard:
                if self._host.recv_object(peer, tag=reply, timeout_s=_left_s(deadline)):
                    self._link.run(self._exchange([(peer, here)], [], stream), stream, deadline)
            return None
        what, (dtype, shape) = self._host.recv_object(peer, tag=tag, timeout_s=_left_s(deadline))
        fits = (dtype, tuple(shape)) == here.kind
        with self._device_guard:
            self._host.send_object(fits, peer, tag=reply, timeout_s=_left_s(deadline))
            if not fits:
                raise MismatchError(
                    f"rank {peer} sent a {what} of {dtype} {shape}, but out is for "
                    f"{here.dtype} {here.shape}; the message is lost"
                )
            self._link.run(self._exchange([], [(peer, here)], stream), stream, deadline)
        return array

    # -- groups ---------------------------------------------------------------------------

    def split(
        self, color: int | None, key: int = 0, *, timeout_s: float | None = None
    ) -> Communicator | None:
        deadline = self._steps.deadline(timeout_s)
        host = self._host.split(color, key, timeout_s=timeout_s)
        if host is None:
            return None
        settings = self._settings._replace(device=self.device)
        try:
            return _wrap(host, settings, _left_s(deadline))
        except CommError as exc:
            raise host.in_parent_ranks(exc) from exc.__cause__


def _left_s(deadline: float) -> float:
    return max(deadline - time.monotonic(), 0.001)


_ON_DEVICES: dict[tuple[str, str], Callable[..., Any]] = {
    ("whole", "fold"): NcclCommunicator._reduce,
    ("parts", "fold"): NcclCommunicator._reduce_scatter,
    ("whole", "fill"): NcclCommunicator._broadcast,
    ("whole", "rows"): NcclCommunicator._collect,
    ("parts", "rows"): NcclCommunicator._deal,
    ("parts", "one"): NcclCommunicator._deal,
}
"""By ``sends`` and ``makes`` of the row."""


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

    If the start has to be given up (a timeout, a dead peer), a thread of NCCL may stay behind in
    this process until it ends.

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

    def load() -> tuple[Any, Driver]:
        return binding or load_binding(), driver or Driver()

    why = f"nccl over {getattr(comm, 'why', '') or comm.backend}"
    limit = comm.timeout_s if timeout_s is None else timeout_s
    return _wrap(comm, NcclSettings(stream, device, load, why), limit)


def why_no_nccl() -> str:
    """Return why NCCL cannot be used here; "" if nccl4py and NCCL itself are there."""
    try:
        load_binding()
    except MissingLibrary as exc:
        return str(exc)
    return ""


def _wrap(host: Any, settings: NcclSettings, timeout_s: float) -> NcclCommunicator:
    try:
        link = Link.connect(host, settings.load, settings.device, timeout_s, host.ended)
    except BaseException:
        host.close()
        raise
    return NcclCommunicator(host, link, settings)
