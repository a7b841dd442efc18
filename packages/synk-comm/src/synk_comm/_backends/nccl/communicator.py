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
from typing import Any

from synk_comm._collectives.rounds import RoundCommunicator
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

    def send(self, x: Any, dest: int, *, tag: int = 0, timeout_s: float | None = None) -> None:
        """Send an array; see the contract. A device array waits for the receiver's ``recv``."""
        if not on_device(x):
            self._host.send(x, dest, tag=tag, timeout_s=timeout_s)
            return
        deadline = self._steps.deadline(timeout_s)
        dest = self._steps.check_rank(dest, "dest")
        if dest == self.rank:
            raise ValueError("a device array cannot be sent to the own rank; make a copy of it")
        array = self._one(x, "x")
        stream = self._stream_for([array])
        left = max(deadline - time.monotonic(), 0.001)
        self._host.send_object(("device array", array.kind), dest, tag=tag, timeout_s=left)
        with self._device_guard:
            left = max(deadline - time.monotonic(), 0.001)
            fits = self._host.recv_object(dest, tag=_REPLY_TAG + tag, timeout_s=left)
            if fits:
                self._link.run(self._exchange([(dest, array)], [], stream), stream, deadline)

    def recv(
        self, source: int, *, tag: int = 0, out: Any = None, timeout_s: float | None = None
    ) -> Any:
        """Receive an array; see the contract. A device array needs ``out``, one like it."""
        if not on_device(out):
            return self._host.recv(source, tag=tag, out=out, timeout_s=timeout_s)
        deadline = self._steps.deadline(timeout_s)
        source = self._steps.check_rank(source, "source")
        target = self._one(out, "out", written=True)
        stream = self._stream_for([target])
        left = max(deadline - time.monotonic(), 0.001)
        what, (dtype, shape) = self._host.recv_object(source, tag=tag, timeout_s=left)
        fits = (dtype, tuple(shape)) == target.kind
        with self._device_guard:
            left = max(deadline - time.monotonic(), 0.001)
            self._host.send_object(fits, source, tag=_REPLY_TAG + tag, timeout_s=left)
            if not fits:
                raise MismatchError(
                    f"rank {source} sent a {what} of {dtype} {shape}, but out is for "
                    f"{target.dtype} {target.shape}; the message is lost"
                )
            self._link.run(self._exchange([], [(source, target)], stream), stream, deadline)
        return out

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
            return _wrap(host, settings, max(deadline - time.monotonic(), 0.001))
        except CommError as exc:
            raise host.told_above(exc) from exc.__cause__


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
        binding: what has the functions of ``nccl.bindings.nccl``; for tests.
        driver: what has the methods of ``synk_comm.cuda.Driver``; for tests.
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
