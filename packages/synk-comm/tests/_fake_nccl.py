"""An NCCL between the threads of one process: the functions of ``nccl.bindings.nccl``, faked.

A call enqueues its work on a stream and returns. A collective happens when all ranks' streams have
come to it, a send when the receiver's stream has come to the receive. The calls of a group begin
together, and what follows on the stream begins when all have ended. Nothing is compared: ranks that
give different collectives wait for ever, other counts, dtypes or ops give garbage, and both are
noted in ``mistakes``.
"""

from __future__ import annotations

import ctypes
import functools
import threading
import time
from typing import Any, Callable, NamedTuple

import numpy as np
from _fake_gpu import FakeGpus

from synk_comm._backends.nccl.communicator import nccl
from synk_comm._core.ops import Array
from synk_comm.cuda import CudaError
from synk_comm.testing import in_threads, thread_group

SUCCESS, CUDA_ERROR, INTERNAL_ERROR = 0, 1, 3
INVALID_ARGUMENT, INVALID_USAGE, REMOTE_ERROR = 4, 5, 6
_GARBAGE, _PATIENCE_S = 0xEE, 3.0
DTYPES = ["i1", "u1", "i4", "u4", "i8", "u8", "f2", "f4", "f8", "bfloat16"]
_UFUNCS: list[Callable[..., Any]] = [np.add, np.multiply, np.maximum, np.minimum, np.add]
_AVG = 4
FIRST_OWN_OP = 5


def open_group(size: int, fake: FakeNccl | None = None, **options: Any) -> tuple[FakeNccl, Any]:
    """Return the fake and its communicators, in rank order, for threads of this process."""
    fake = fake or FakeNccl(size)
    options = {"driver": fake.gpus, "binding": fake, **options}
    hosts = thread_group(size, timeout_s=20)
    return fake, in_threads(hosts, lambda host: nccl(host, **options))  # type: ignore[arg-type]


class FakeNcclError(Exception):
    """What the binding raises; ``NCCLError`` there."""

    def __init__(self, status: int, text: str = "") -> None:
        super().__init__(f"{text or 'error'} ({status})")
        self.status = status


class Op(NamedTuple):
    name: str
    source: int = 0
    target: int = 0
    elements: int = 0
    dtype: int = 0
    op: int = 0
    root: int = -1


_ARGUMENTS = {
    "all_reduce": "source target elements dtype op",
    "reduce": "source target elements dtype op root",
    "reduce_scatter": "source target elements dtype op",
    "broadcast": "source target elements dtype root",
    "all_gather": "source target elements dtype",
    "send": "source elements dtype root",
    "recv": "target elements dtype root",
}
"""Of each call; ``elements`` are those sent to be gathered, and received of what is scattered."""


class _Config:
    """What a communicator is made with."""

    def __init__(self, made: dict[int, _Config]) -> None:
        self.blocking = 1
        self.ptr = id(self)
        made[self.ptr] = self


class _Comm:
    def __init__(self, clique: _Clique, rank: int, device: int) -> None:
        self.clique, self.rank, self.device = clique, rank, device
        self.collectives: list[_Posted] = []
        self.messages: dict[tuple[str, int], list[_Posted]] = {}
        self.scalars: dict[int, Any] = {}
        self.error = SUCCESS
        self.pending = 0
        self.over = False


class _Clique:
    def __init__(self, size: int) -> None:
        self.size = size
        self.comms: dict[int, _Comm] = {}


class _Posted:
    """An op, from its call until it has been carried out."""

    def __init__(self, comm: _Comm, op: Op) -> None:
        self.comm, self.op = comm, op
        self.begun = self.done = False


class FakeNccl:
    """The binding, to be shared by all ranks of a test.

    Attributes:
        gpus: the devices; give it as ``driver``.
        calls: (rank, Op) of every call on arrays, in the order of their coming.
        mistakes: what NCCL would not have told.
        deaf: ranks whose start does not end, as if a peer had died meanwhile.
        stuck: ranks whose next call does not return before it is aborted.
    """

    NCCLError = FakeNcclError

    def __init__(self, devices: int) -> None:
        self.gpus = FakeGpus(devices)
        self.calls: list[tuple[int, Op]] = []
        self.mistakes: list[str] = []
        self.deaf: set[int] = set()
        self.stuck: set[int] = set()
        self.aborted: list[int] = []
        self.destroyed: list[int] = []
        self._cliques: dict[bytes, _Clique] = {}
        self._ids = 0
        self._configs: dict[int, _Config] = {}
        self.Config = functools.partial(_Config, self._configs)
        self._group = threading.local()
        self._lock = self.gpus.changed

    def get_version(self) -> int:
        return 22800

    def get_unique_id(self) -> bytes:
        with self._lock:
            self._ids += 1
            return self._ids.to_bytes(128, "little")

    def comm_init_rank_config(self, nranks: int, comm_id: bytearray, rank: int, config: int) -> Any:
        if not self._configs.pop(config).blocking:
            raise FakeNcclError(INVALID_ARGUMENT, "this fake is blocking")
        if not isinstance(comm_id, bytearray) or len(comm_id) != 128:
            raise FakeNcclError(INVALID_ARGUMENT, "an id is 128 writeable bytes")
        deadline = time.monotonic() + _PATIENCE_S
        with self._lock:
            clique = self._cliques.setdefault(bytes(comm_id), _Clique(nranks))
            clique.comms[rank] = comm = _Comm(clique, rank, self.gpus.current_device() or 0)
            self._lock.notify_all()
            while len(clique.comms) < nranks or rank in self.deaf:
                self._lock.wait(0.05)
                if time.monotonic() > deadline:
                    raise FakeNcclError(REMOTE_ERROR, "nobody comes")
            if len({one.device for one in clique.comms.values()}) < nranks:
                raise FakeNcclError(INVALID_USAGE, "two ranks on one device")
        return comm

    def comm_get_async_error(self, comm: _Comm) -> int:
        return comm.error

    def get_error_string(self, result: int) -> str:
        return {INVALID_USAGE: "invalid usage", REMOTE_ERROR: "remote error"}.get(result, "error")

    def get_last_error(self, comm: _Comm) -> str:
        return f"the last error of rank {comm.rank}"

    def fail(self, rank: int, status: int) -> None:
        """Let a rank's communicators report an error from now on."""
        with self._lock:
            for clique in self._cliques.values():
                if rank in clique.comms:
                    clique.comms[rank].error = status

    def comm_abort(self, comm: _Comm) -> None:
        with self._lock:
            comm.over = True
            self.aborted.append(comm.rank)
            self.gpus.progress()

    def comm_destroy(self, comm: _Comm) -> None:
        deadline = time.monotonic() + 20
        with self._lock:
            while comm.pending and not comm.over and time.monotonic() < deadline:
                self._lock.wait(0.1)
            comm.over = True
            self.destroyed.append(comm.rank)

    def red_op_create_pre_mul_sum(
        self, scalar: int, datatype: int, residence: int, comm: _Comm
    ) -> int:
        if residence != 1 or not 6 <= datatype <= 9:
            raise FakeNcclError(INVALID_ARGUMENT, "the scalar must be a float on the host")
        with self._lock:
            number = FIRST_OWN_OP + len(comm.scalars)
            comm.scalars[number] = read_scalar(scalar, datatype)
            return number

    def red_op_destroy(self, op: int, comm: _Comm) -> None:
        assert op in comm.scalars

    def group_start(self) -> None:
        self._group.depth = getattr(self._group, "depth", 0) + 1

    def group_end(self) -> None:
        depth = getattr(self._group, "depth", 0)
        if not depth:
            raise FakeNcclError(INVALID_USAGE, "not in a group")
        self._group.depth = depth - 1
        if depth == 1:
            self._begin(self._group.__dict__.pop("posted", []))

    def __getattr__(self, name: str) -> Callable[..., None]:
        """Return a call of NCCL: its arguments, then the communicator and the stream."""
        fields = _ARGUMENTS.get(name)
        if fields is None:
            raise AttributeError(name)
        return lambda *given: self._give(*given[-2:], Op(name, **dict(zip(fields.split(), given))))

    def _give(self, comm: _Comm, stream: int, op: Op) -> None:
        if comm.over:
            raise FakeNcclError(INVALID_USAGE, "the communicator is over")
        deadline = time.monotonic() + 10 * _PATIENCE_S
        while comm.rank in self.stuck and not comm.over and time.monotonic() < deadline:
            time.sleep(0.005)
        if comm.over:
            raise FakeNcclError(INTERNAL_ERROR, "aborted")
        rooted = op.name in ("reduce", "broadcast", "send", "recv")
        if rooted and not 0 <= op.root < comm.clique.size:
            raise FakeNcclError(INVALID_ARGUMENT, f"root {op.root}")
        if not 0 <= op.dtype < len(DTYPES) or op.elements < 0:
            raise FakeNcclError(INVALID_ARGUMENT, f"dtype {op.dtype}, count {op.elements}")
        if op.op >= FIRST_OWN_OP and op.op not in comm.scalars:
            raise FakeNcclError(INVALID_ARGUMENT, f"op {op.op}")
        with self._lock:
            self.calls.append((comm.rank, op))
            posted = _Posted(comm, op)
            if op.name in ("send", "recv"):
                comm.messages.setdefault((op.name, op.root), []).append(posted)
            else:
                comm.collectives.append(posted)
        entry = (posted, stream)
        if getattr(self._group, "depth", 0):
            self._group.__dict__.setdefault("posted", []).append(entry)
        else:
            self._begin([entry])

    def _begin(self, entries: list[tuple[_Posted, int]]) -> None:
        if not entries:
            return
        ours = [posted for posted, _ in entries]
        comm, stream = ours[0].comm, entries[0][1]
        if any(other != stream for _, other in entries):
            raise FakeNcclError(INVALID_USAGE, "this fake takes one stream in a group")

        def step() -> bool:
            for posted in ours:
                posted.begun = True
            for posted in ours:
                if not posted.done and not comm.over:
                    self._try(posted)
            if comm.over or all(posted.done for posted in ours):
                comm.pending -= 1
                return True
            return False

        with self._lock:
            comm.pending += 1
        self.gpus.enqueue(comm.device, stream, step)

    def _try(self, posted: _Posted) -> None:
        comm, op = posted.comm, posted.op
        if op.name in ("send", "recv"):
            theirs = self._partner(posted)
            if theirs is not None:
                pair = (posted, theirs) if op.name == "send" else (theirs, posted)
                self._carry_out(list(pair), self._message)
            return
        number = comm.collectives.index(posted)
        comms = [comm.clique.comms[rank] for rank in range(comm.clique.size)]
        if any(len(one.collectives) <= number for one in comms):
            return
        ops = [one.collectives[number] for one in comms]
        if len({(one.op.name, one.op.root) for one in ops}) > 1:
            note = f"hang: {[one.op.name for one in ops]}"
            if note not in self.mistakes:
                self.mistakes.append(note)
            return
        if all(one.begun and not one.comm.over for one in ops):
            self._carry_out(ops, getattr(self, f"_{op.name}"))

    def _partner(self, posted: _Posted) -> _Posted | None:
        comm, op = posted.comm, posted.op
        peer = comm.clique.comms.get(op.root)
        if peer is None or peer.over:
            return None
        name = "recv" if op.name == "send" else "send"
        number = comm.messages[(op.name, op.root)].index(posted)
        theirs = peer.messages.get((name, comm.rank), [])
        return theirs[number] if len(theirs) > number and theirs[number].begun else None

    def _carry_out(self, ops: list[_Posted], work: Callable[[list[_Posted]], None]) -> None:
        for one in ops:
            one.done = True
        plain = {(one.op.elements, one.op.dtype, min(one.op.op, FIRST_OWN_OP)) for one in ops}
        try:
            if len(plain) > 1:
                self.mistakes.append(f"garbage: {sorted(plain)}")
                for one in ops:
                    if one.op.target:
                        self._bytes(one, one.op.target, one.op.elements)[:] = _GARBAGE
            elif ops[0].op.elements:
                work(ops)
        except CudaError as exc:
            self.mistakes.append(str(exc))
            for one in ops:
                one.comm.error = CUDA_ERROR

    def _bytes(self, one: _Posted, pointer: int, count: int) -> Array:
        return self.gpus.view(pointer, count * itemsize(one.op.dtype), one.comm.device)

    def _message(self, ops: list[_Posted]) -> None:
        sent, received = ops
        target = self._bytes(received, received.op.target, received.op.elements)
        target[:] = self._bytes(sent, sent.op.source, sent.op.elements)

    def _broadcast(self, ops: list[_Posted]) -> None:
        root = ops[ops[0].op.root]
        values = self._bytes(root, root.op.source, root.op.elements).copy()
        for one in ops:
            self._bytes(one, one.op.target, one.op.elements)[:] = values

    def _all_gather(self, ops: list[_Posted]) -> None:
        values = np.concatenate([self._bytes(one, one.op.source, one.op.elements) for one in ops])
        for one in ops:
            self._bytes(one, one.op.target, one.op.elements * len(ops))[:] = values

    def _all_reduce(self, ops: list[_Posted]) -> None:
        values = self._combined(ops, ops[0].op.elements)
        for one in ops:
            self._bytes(one, one.op.target, one.op.elements)[:] = values

    def _reduce(self, ops: list[_Posted]) -> None:
        root = ops[ops[0].op.root]
        self._bytes(root, root.op.target, root.op.elements)[:] = self._combined(
            ops, root.op.elements
        )

    def _reduce_scatter(self, ops: list[_Posted]) -> None:
        values = self._combined(ops, ops[0].op.elements * len(ops))
        for one, block in zip(ops, np.split(values, len(ops))):
            self._bytes(one, one.op.target, one.op.elements)[:] = block

    def _combined(self, ops: list[_Posted], count: int) -> Array:
        """Return the reduced operands, as bytes; averages and own ops multiply first."""
        operands = [self._bytes(one, one.op.source, count) for one in ops]
        factors = [one.comm.scalars.get(one.op.op) for one in ops]
        return combined(operands, ops[0].op.dtype, ops[0].op.op, factors)


def itemsize(dtype: int) -> int:
    return 2 if DTYPES[dtype] == "bfloat16" else np.dtype(DTYPES[dtype]).itemsize


def read_scalar(address: int, dtype: int) -> Any:
    return _decoded(
        np.frombuffer(ctypes.string_at(address, itemsize(dtype)), np.uint8), DTYPES[dtype]
    )[0]


def combined(operands: list[Array], dtype: int, op: int, factors: list[Any]) -> Array:
    """Reduce operands given as bytes; averages and own ops multiply first."""
    kind = DTYPES[dtype]
    ufunc = _UFUNCS[min(op, _AVG)]
    total: Any = None
    with np.errstate(all="ignore"):
        for operand, factor in zip(operands, factors):
            values = _decoded(operand, kind)
            if op >= FIRST_OWN_OP:
                values = values * values.dtype.type(factor)
            elif op == _AVG:
                values = values * values.dtype.type(1.0 / len(operands))
            values = _rounded(values, kind)
            total = values if total is None else _rounded(ufunc(total, values), kind)
    return _encoded(total, kind)


def _decoded(memory: Array, kind: str) -> Array:
    if kind != "bfloat16":
        return memory.copy().view(kind)
    return (memory.copy().view(np.uint16).astype(np.uint32) << np.uint32(16)).view(np.float32)


def _rounded(values: Array, kind: str) -> Array:
    return _decoded(_encoded(values, kind), kind)


def _encoded(values: Array, kind: str) -> Array:
    if kind != "bfloat16":
        return np.ascontiguousarray(values).view(np.uint8)
    bits = np.ascontiguousarray(values, np.float32).view(np.uint32).astype(np.uint64)
    bits = (bits + 0x7FFF + (bits >> np.uint64(16) & np.uint64(1))) >> np.uint64(16)
    return bits.astype(np.uint16).view(np.uint8)
