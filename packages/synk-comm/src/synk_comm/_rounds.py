"""All collectives, built on rounds: one implementation for every backend.

The path of one call:

1. Arguments are checked, here alone; nothing has been said yet.
2. The head (what is called, with which dtype and shape) and the first chunk of data are posted
   in one round. When it is over, every rank sees all heads, so all come to the same verdict:
   go on, ``MismatchError``, or ``PeerDeclined``.
3. Data longer than a slot follow in further rounds; their number follows from the heads.
4. Each rank reads what it needs from its peers' slots after each round.
"""

from __future__ import annotations

import operator
import pickle
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from . import _call
from ._call import Call
from ._fabric import Fabric
from ._ops import Array, ReduceOp, check_reducible, check_weight, combine, scaled
from ._steps import Steps, contiguous, flat_bytes
from .abc import Communicator

_BARRIER = Call("barrier")


class RoundCommunicator(Steps, Communicator):
    """A communicator over any fabric; made by ``join``, ``connect`` and ``local_group``."""

    def __init__(self, fabric: Fabric, timeout_s: float) -> None:
        super().__init__(fabric, timeout_s)
        self.backend = fabric.backend

    def __repr__(self) -> str:
        return (
            f"<Communicator rank {self.rank} of {self.size}, {self.backend}, {self._guard.state}>"
        )

    # -- synchronisation ------------------------------------------------------------------

    def barrier(self, *, timeout_s: float | None = None) -> None:
        deadline = self._deadline(timeout_s)
        with self._guard:
            self._open(_BARRIER, _call.encode(_BARRIER), 0, deadline)

    def decline(self, reason: str, *, timeout_s: float | None = None) -> dict[int, str]:
        head = _call.encode_decline(str(reason))
        deadline = self._deadline(timeout_s)
        with self._guard:
            self._fabric.sync(head, 0, deadline)
            reasons = _call.declined([_call.decode(said) for said in self._fabric.heads()])
        del reasons[self.rank]
        return reasons

    def abort(self, reason: str) -> None:
        self._guard.abort(reason)

    def close(self) -> None:
        self._guard.close()

    # -- reductions -----------------------------------------------------------------------

    def reduce(
        self,
        x: ArrayLike | None,
        op: str | ReduceOp = "sum",
        root: int = 0,
        *,
        weight: float | None = None,
        out: Array | None = None,
        timeout_s: float | None = None,
    ) -> Array | None:
        root = self._check_root(root)
        if self.rank != root:
            out = None
        return self._reduce("reduce", x, op, root, weight, out, timeout_s)

    def all_reduce(
        self,
        x: ArrayLike | None,
        op: str | ReduceOp = "sum",
        *,
        weight: float | None = None,
        out: Array | None = None,
        timeout_s: float | None = None,
    ) -> Array:
        result = self._reduce("all_reduce", x, op, None, weight, out, timeout_s)
        assert result is not None  # noqa: S101 - every rank is a receiver
        return result

    def _reduce(
        self,
        kind: str,
        x: ArrayLike | None,
        op: str | ReduceOp,
        root: int | None,
        weight: float | None,
        out: Array | None,
        timeout_s: float | None,
    ) -> Array | None:
        op = ReduceOp.parse(op)
        weight = check_weight(weight, op)
        given = None if x is None else np.asarray(x)
        like = given
        if out is not None:
            _check_out(out, given)
            like = out
        if like is not None:
            check_reducible(like.dtype, op)
        call = _call.bring(kind, like, root, op=op.value, weight=0.0 if given is None else weight)
        head = _call.encode(call)
        source = None if given is None or not call.weight else contiguous(given)
        receives = root is None or root == self.rank
        result = _result_like(like, out, source) if receives and like is not None else None
        deadline = self._deadline(timeout_s)

        # The own array is quicker to read than the own slot, but if the result overwrites it,
        # it is only good for the first step.
        in_place = source is not None and result is out and np.may_share_memory(source, result)
        mine = None if source is None else flat_bytes(source)

        with self._guard:
            posted = self._fill(mine, 0)
            calls = self._open(call, head, posted, deadline, root)
            example = call if call.dtype else next(c for c in calls if c.dtype)
            dtype, shape = _call.text_dtype(example.dtype), example.shapes[0]
            if receives and result is None:
                result = np.empty(shape, dtype)
            ranks = [rank for rank, theirs in enumerate(calls) if theirs.weight]
            weights = [calls[rank].weight for rank in ranks]
            factors = None if min(weights) == max(weights) else scaled(weights)
            direct = not in_place or (factors is None and self.rank in ranks[:2])
            target = None if result is None else flat_bytes(result)
            nbytes = _call.nbytes(example)
            start = 0
            while True:
                stop = min(start + self._fabric.chunk_bytes, nbytes)
                if target is not None:
                    chunks = [
                        mine[start:stop]
                        if mine is not None and direct and rank == self.rank
                        else self._fabric.read(rank, 0, stop - start)
                        for rank in ranks
                    ]
                    operands = [chunk.view(dtype) for chunk in chunks]
                    combine(op, operands, target[start:stop].view(dtype), factors)
                start = stop
                if start >= nbytes:
                    break
                posted = self._fill(mine, start)
                self._fabric.sync(None, posted, deadline, to=root)

        if out is not None and result is not None and result is not out:
            np.copyto(out, result)
            return out
        return result

    # -- movement of arrays ---------------------------------------------------------------

    def broadcast(self, x: Array, root: int = 0, *, timeout_s: float | None = None) -> Array:
        root = self._check_root(root)
        if not isinstance(x, np.ndarray):
            raise TypeError(
                f"broadcast works in place: expected an ndarray, got {type(x).__name__}"
            )
        if self.rank != root and not x.flags.writeable:
            raise ValueError("broadcast works in place: x must be writeable on ranks but the root")
        call = _call.bring("broadcast", x, root)
        target = contiguous(x)
        self._spread(call, target if self.rank == root else None, target, timeout_s)
        if self.rank != root and target is not x:
            np.copyto(x, target)
        return x

    def gather(
        self, x: ArrayLike | None, root: int = 0, *, timeout_s: float | None = None
    ) -> list[Array | None] | None:
        root = self._check_root(root)
        given = None if x is None else np.asarray(x)
        gathered = self._collect(_call.bring("gather", given, root), given, timeout_s)
        return gathered if self.rank == root else None

    def all_gather(
        self, x: ArrayLike | None, *, timeout_s: float | None = None
    ) -> list[Array | None]:
        given = None if x is None else np.asarray(x)
        return self._collect(_call.bring("all_gather", given, None), given, timeout_s)

    def scatter(
        self,
        xs: Sequence[ArrayLike] | None,
        root: int = 0,
        *,
        timeout_s: float | None = None,
    ) -> Array:
        root = self._check_root(root)
        return self._deal("scatter", self._check_list("scatter", xs, root), root, timeout_s)

    # -- movement of objects --------------------------------------------------------------

    def broadcast_object(
        self, obj: Any = None, root: int = 0, *, timeout_s: float | None = None
    ) -> Any:
        root = self._check_root(root)
        source = _pickled(obj) if self.rank == root else None
        call = _call.bring("broadcast_object", source, root)
        received = self._spread(call, source, None, timeout_s)
        return obj if self.rank == root else _unpickled(received)

    def gather_object(
        self, obj: Any, root: int = 0, *, timeout_s: float | None = None
    ) -> list[Any] | None:
        root = self._check_root(root)
        source = _pickled(obj)
        gathered = self._collect(_call.bring("gather_object", source, root), source, timeout_s)
        return _all_unpickled(gathered) if self.rank == root else None

    def all_gather_object(self, obj: Any, *, timeout_s: float | None = None) -> list[Any]:
        source = _pickled(obj)
        call = _call.bring("all_gather_object", source, None)
        return _all_unpickled(self._collect(call, source, timeout_s))

    def scatter_object(
        self,
        objs: Sequence[Any] | None = None,
        root: int = 0,
        *,
        timeout_s: float | None = None,
    ) -> Any:
        root = self._check_root(root)
        listed = self._check_list("scatter_object", objs, root)
        sources = None if listed is None else [_pickled(obj) for obj in listed]
        return _unpickled(self._deal("scatter_object", sources, root, timeout_s))

    def _check_root(self, root: int) -> int:
        number = operator.index(root)
        if not 0 <= number < self.size:
            raise ValueError(f"root must be a rank, 0 to {self.size - 1}, got {root!r}")
        return number

    def _check_list(self, kind: str, xs: Sequence[Any] | None, root: int) -> Sequence[Any] | None:
        if self.rank != root:
            if xs is not None:
                raise ValueError(f"only the root, rank {root}, gives a list to {kind}")
            return None
        if xs is None or len(xs) != self.size:
            got = "None" if xs is None else f"a list of {len(xs)}"
            raise ValueError(f"the root of {kind} gives a list of {self.size}, got {got}")
        return xs


def _address(x: Array) -> int:
    return int(x.__array_interface__["data"][0])


def _check_out(out: Array, x: Array | None) -> None:
    if not isinstance(out, np.ndarray):
        raise TypeError(f"out must be an ndarray, got {type(out).__name__}")
    if not out.flags.writeable:
        raise ValueError("out must be writeable")
    if x is not None and (out.dtype != x.dtype or out.shape != x.shape):
        raise ValueError(f"out must be like x, {x.dtype} {x.shape}, got {out.dtype} {out.shape}")


def _result_like(like: Array, out: Array | None, source: Array | None) -> Array:
    """Return C-ordered memory for the result: ``out`` if it can be written while x is read."""
    if out is not None and out.flags.c_contiguous:
        if source is None or out is source or not np.may_share_memory(out, source):
            return out
        if _address(out) == _address(source):
            return out
    return np.empty(like.shape, like.dtype)


def _pickled(obj: Any) -> Array:
    return np.frombuffer(pickle.dumps(obj), np.uint8)


def _unpickled(data: Array) -> Any:
    # Members of a group trust each other: see ``Communicator.broadcast_object``.
    return pickle.loads(data.data)  # noqa: S301


def _all_unpickled(pickles: Sequence[Array | None]) -> list[Any]:
    return [_unpickled(data) for data in pickles if data is not None]
