"""Between two ranks: arrays in pieces, and messages that arrive before their ``recv``."""

from __future__ import annotations

import json
import operator
from collections import deque
from functools import lru_cache
from typing import Any, Callable

import numpy as np

from synk_comm._core.calls import Kind, kind_of, text_dtype
from synk_comm._core.fabric import PIECE_HEAD_BYTES
from synk_comm._core.lists import bare, contiguous, flat_bytes
from synk_comm._core.ops import Array
from synk_comm._core.steps import Steps
from synk_comm.exceptions import CommTimeout, MismatchError

_ROOM = PIECE_HEAD_BYTES - 8
_QUICK_ENTRIES = 256


class PointToPoint:
    """Messages to and from single ranks."""

    def __init__(self, steps: Steps) -> None:
        self._steps = steps
        self._early: dict[tuple[int, int], deque[Array]] = {}
        self._senders: dict[Any, Callable[[Array], None]] = {}
        self._receivers: dict[Any, Callable[[Any], Array]] = {}
        self._began = False

    def send(self, x: Array, dest: int, tag: int, timeout_s: float | None) -> None:
        """Send one array; see ``Communicator.send``."""
        steps = self._steps
        key = (dest, tag, x.dtype, x.shape)
        quick = self._senders.get(key)
        if quick is not None and timeout_s is None:
            quick(x)
            return
        tag = _checked(tag)
        kind = kind_of(x)
        header = _header(tag, kind)
        data = flat_bytes(contiguous(x))
        deadline = steps.deadline(timeout_s)
        began = False
        steps.guard.__enter__()
        try:
            if dest == steps.rank:
                self._keep(dest, tag, x.copy())
            else:
                piece = steps.fabric.piece_bytes
                for start in range(0, max(data.nbytes, 1), piece):
                    head = b"" if began else header
                    steps.fabric.push(dest, head, data[start : start + piece], deadline)
                    began = True
        except BaseException as exc:
            steps.guard.leave(exc, in_step=not began and isinstance(exc, CommTimeout))
            raise
        steps.guard.leave(None, in_step=True)
        if dest != steps.rank and data.nbytes <= steps.fabric.piece_bytes:
            quick = steps.fabric.sender(dest, header, kind, steps.guard, steps.timeout_s)
            _learn(self._senders, key, quick)

    def receive(self, source: int, tag: int, out: Array | None, timeout_s: float | None) -> Any:
        """Receive one array; see ``Communicator.recv``."""
        steps = self._steps
        if timeout_s is None and not self._early:
            quick = self._receivers.get(
                (source, tag, None) if out is None else (source, tag, out.dtype, out.shape)
            )
            if quick is not None:
                return quick(out)
        tag = _checked(tag)
        deadline = steps.deadline(timeout_s)
        self._began = False
        steps.guard.__enter__()
        try:
            result = self._take(source, tag, out, deadline)
        except BaseException as exc:
            steps.guard.leave(exc, in_step=self._is_calm(exc))
            raise
        steps.guard.leave(None, in_step=True)
        self._learn_receiving(source, tag, result)
        return bare(result) if out is None else result

    def _is_calm(self, exc: BaseException) -> bool:
        """Return whether an exception of a receive has left the two ranks in step."""
        return isinstance(exc, MismatchError) or (isinstance(exc, CommTimeout) and not self._began)

    def forget(self) -> None:
        """Drop the shortcuts, which keep the memory of the channels alive."""
        self._senders.clear()
        self._receivers.clear()

    def _learn_receiving(self, source: int, tag: int, result: Array) -> None:
        steps = self._steps
        if source == steps.rank or result.nbytes > steps.fabric.piece_bytes:
            return
        kind = kind_of(result)

        def otherwise(out: Any, deadline: float) -> Any:
            self._receivers.pop((source, tag, None), None)
            result = self._take(source, tag, out, deadline)
            return bare(result) if out is None else result

        quick = steps.fabric.receiver(
            source, _header(tag, kind), kind, steps.guard, steps.timeout_s, otherwise, self._is_calm
        )
        _learn(self._receivers, (source, tag, None), quick)
        _learn(self._receivers, (source, tag, result.dtype, result.shape), quick)

    def _take(self, source: int, tag: int, out: Array | None, deadline: float) -> Array:
        early = self._early.get((source, tag))
        if not early:
            return self._wait_for(source, tag, out, deadline)
        kept = early.popleft()
        if not early:
            del self._early[source, tag]
        return kept if out is None else _into(out, kept, source)

    def _wait_for(self, source: int, tag: int, out: Array | None, deadline: float) -> Array:
        steps = self._steps
        if source == steps.rank:
            raise CommTimeout(
                f"rank {source} has sent itself nothing with tag {tag}",
                missing={source: "is the one that waits"},
            )
        while True:
            header, first = steps.fabric.pull(source, deadline)
            self._began = True
            number, kind = _read_header(header)
            wanted = number == tag
            fits = out is not None and wanted and _fits(out, kind)
            target = (
                out
                if fits and out is not None and out.flags.c_contiguous
                else np.empty(kind[1], text_dtype(kind[0]))
            )
            self._read(source, first, flat_bytes(target), deadline)
            self._began = False
            if not wanted:
                self._keep(source, number, target)
            elif out is None or target is out:
                return target
            else:
                return _into(out, target, source)

    def _read(self, source: int, first: Array, target: Array, deadline: float) -> None:
        fabric = self._steps.fabric
        np.copyto(target[: first.nbytes], first)
        fabric.release(source)
        start = first.nbytes
        while start < target.nbytes:
            _, piece = fabric.pull(source, deadline)
            np.copyto(target[start : start + piece.nbytes], piece)
            fabric.release(source)
            start += piece.nbytes

    def _keep(self, source: int, tag: int, array: Array) -> None:
        self._early.setdefault((source, tag), deque()).append(array)


def _learn(known: dict[Any, Any], key: Any, quick: Any) -> None:
    if quick is not None:
        if len(known) >= _QUICK_ENTRIES:
            known.clear()
        known[key] = quick


def _into(out: Array, received: Array, source: int) -> Array:
    kind = kind_of(received)
    if not _fits(out, kind):
        said = {source: f"send({kind[0]} {kind[1]})"}
        raise MismatchError(
            f"out of recv is {out.dtype} {out.shape}, but rank {source} sent {kind[0]} "
            f"{kind[1]}; the message is lost",
            calls=said,
        )
    np.copyto(out, received)
    return out


@lru_cache(maxsize=256)
def _header(tag: int, kind: Kind) -> bytes:
    header = json.dumps([tag, *kind]).encode()
    if len(header) > _ROOM:
        raise ValueError(
            f"the description of this array takes {len(header)} bytes, at most {_ROOM} can "
            "be sent; use a simpler dtype"
        )
    return header


@lru_cache(maxsize=256)
def _read_header(header: bytes) -> tuple[int, Kind]:
    tag, dtype, shape = json.loads(header)
    return int(tag), (str(dtype), tuple(int(n) for n in shape))


def _checked(tag: int) -> int:
    number = operator.index(tag)
    if number < 0:
        raise ValueError(f"tag must be a number from 0, got {tag!r}")
    return number


def _fits(out: Any, kind: Kind) -> bool:
    return bool(out.dtype == text_dtype(kind[0]) and out.shape == kind[1])
