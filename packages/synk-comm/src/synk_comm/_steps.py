"""The steps that collectives are made of: open a call, fill the slot, move bytes."""

from __future__ import annotations

from typing import Sequence

import numpy as np
from numpy.typing import ArrayLike

from . import _call
from ._call import Call
from ._fabric import Fabric
from ._guard import Guard, deadline_after
from ._ops import Array
from .exceptions import PeerDeclined


class Steps:
    """One rank's fabric, who may use it, and three ways in which bytes move through it."""

    rank: int
    size: int

    def __init__(self, fabric: Fabric, timeout_s: float) -> None:
        self.rank = fabric.rank
        self.size = fabric.size
        self._fabric = fabric
        self._guard = Guard(fabric)
        self._timeout_s = timeout_s

    def _open(
        self,
        call: Call,
        head: bytes,
        posted: int,
        deadline: float,
        to: int | None = None,
        part: int = 0,
    ) -> Sequence[Call]:
        """Run the first round; return all ranks' calls, which agree, or raise on all ranks."""
        fabric = self._fabric
        fabric.sync(head, posted, deadline, to=to, part=part)
        if call.weight and fabric.all_said(head):
            return [call] * self.size
        calls = [_call.decode(said) for said in fabric.heads()]
        reasons = _call.declined(calls)
        if reasons:
            lines = "".join(f"\n  rank {rank}: {reason}" for rank, reason in reasons.items())
            raise PeerDeclined(
                f"{call.kind} did not take place, declined by{lines}", reasons=reasons
            )
        _call.check_agreement(calls)
        return calls

    def _fill(self, source: Array | None, start: int) -> int:
        """Copy the next chunk of flat bytes into the own slot; return its length."""
        if source is None or start >= source.nbytes:
            return 0
        stop = min(start + self._fabric.chunk_bytes, source.nbytes)
        np.copyto(self._fabric.slot()[: stop - start], source[start:stop])
        return stop - start

    def _fill_parts(self, sources: Sequence[Array] | None, start: int, part: int) -> int:
        """Copy the next part for each rank into the own slot; return the length of all."""
        if sources is None:
            return 0
        slot = self._fabric.slot()
        for rank, source in enumerate(sources):
            stop = min(start + part, source.nbytes)
            if stop > start:
                offset = rank * part
                np.copyto(slot[offset : offset + stop - start], flat_bytes(source)[start:stop])
        return part * self.size

    def _deadline(self, timeout_s: float | None) -> float:
        return deadline_after(self._timeout_s if timeout_s is None else timeout_s)

    def _spread(
        self,
        call: Call,
        source: Array | None,
        target: Array | None,
        timeout_s: float | None,
    ) -> Array:
        """Move the root's ``source`` into every rank's ``target``; None is made to fit."""
        head = _call.encode(call)
        data = None if source is None else flat_bytes(source)
        deadline = self._deadline(timeout_s)
        with self._guard:
            posted = self._fill(data, 0)
            calls = self._open(call, head, posted, deadline)
            origin = calls[call.root]
            if target is None:
                target = np.empty(origin.shapes[0], _call.text_dtype(origin.dtype))
            nbytes = _call.nbytes(origin)
            start = 0
            while True:
                stop = min(start + self._fabric.chunk_bytes, nbytes)
                if source is None and stop > start:
                    chunk = self._fabric.read(call.root, 0, stop - start)
                    np.copyto(flat_bytes(target)[start:stop], chunk)
                start = stop
                if start >= nbytes:
                    break
                self._fabric.sync(None, self._fill(data, start), deadline)
        return target

    def _collect(
        self, call: Call, given: Array | None, timeout_s: float | None
    ) -> list[Array | None]:
        """Move every rank's array to the root, or to all if there is none."""
        root = None if call.root < 0 else call.root
        source = None if given is None else flat_bytes(contiguous(given))
        head = _call.encode(call)
        deadline = self._deadline(timeout_s)
        with self._guard:
            posted = self._fill(source, 0)
            calls = self._open(call, head, posted, deadline, root)
            targets: list[Array | None] = [None] * self.size
            if root is None or root == self.rank:
                for rank, theirs in enumerate(calls):
                    if theirs.dtype:
                        dtype = _call.text_dtype(theirs.dtype)
                        targets[rank] = np.empty(theirs.shapes[0], dtype)
            longest = max(_call.nbytes(theirs) for theirs in calls)
            start = 0
            while True:
                for rank, target in enumerate(targets):
                    if target is None or start >= target.nbytes:
                        continue
                    stop = min(start + self._fabric.chunk_bytes, target.nbytes)
                    chunk = self._fabric.read(rank, 0, stop - start)
                    np.copyto(flat_bytes(target)[start:stop], chunk)
                start += self._fabric.chunk_bytes
                if start >= longest:
                    break
                self._fabric.sync(None, self._fill(source, start), deadline, to=root)
        return targets

    def _deal(
        self,
        kind: str,
        xs: Sequence[ArrayLike] | None,
        root: int,
        timeout_s: float | None,
    ) -> Array:
        """Move the root's arrays to one rank each: every slot is cut into ``size`` parts."""
        given = None if xs is None else [np.asarray(x) for x in xs]
        call = Call(kind, root=root)
        if given is not None:
            if len({x.dtype for x in given}) > 1:
                dtypes = ", ".join(str(x.dtype) for x in given)
                raise TypeError(f"{kind} needs arrays of one dtype, got {dtypes}")
            shapes = tuple(x.shape for x in given)
            call = call._replace(dtype=_call.dtype_text(given[0].dtype), shapes=shapes)
        head = _call.encode(call)
        sources = None if given is None else [contiguous(x) for x in given]
        part = self._fabric.chunk_bytes // self.size // 64 * 64
        deadline = self._deadline(timeout_s)
        with self._guard:
            posted = self._fill_parts(sources, 0, part)
            calls = self._open(call, head, posted, deadline, part=part if sources else 0)
            origin = calls[root]
            target = np.empty(origin.shapes[self.rank], _call.text_dtype(origin.dtype))
            longest = max(_call.nbytes(origin, rank) for rank in range(self.size))
            offset = self.rank * part
            start = 0
            while True:
                stop = min(start + part, target.nbytes)
                if stop > start:
                    chunk = self._fabric.read(root, offset, offset + stop - start)
                    np.copyto(flat_bytes(target)[start:stop], chunk)
                start += part
                if start >= longest:
                    break
                posted = self._fill_parts(sources, start, part)
                self._fabric.sync(None, posted, deadline, part=part if sources else 0)
        return target


def contiguous(x: Array) -> Array:
    """Return ``x`` in C order, itself if it is; unlike ascontiguousarray this keeps 0-d."""
    return np.asarray(x, order="C")


def flat_bytes(x: Array) -> Array:
    """Return the memory of a C-contiguous array as flat bytes."""
    if not x.nbytes:
        return np.empty(0, np.uint8)
    return x.reshape(-1).view(np.uint8)
