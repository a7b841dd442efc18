"""Quick ways to send and receive a small array again, like those of ``shortcuts.py``."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, Callable

from synk_comm._core.calls import Kind, count_bytes, text_dtype
from synk_comm._core.fabric import PIECE_HEAD_BYTES, Entrance
from synk_comm._core.lists import bare, typed
from synk_comm._core.ops import Array
from synk_comm.exceptions import CommTimeout

from .block import LENGTH, PLACES, PUSHED, TAKEN

if TYPE_CHECKING:
    from .channels import Channels


def sender(
    channels: Channels, dest: int, header: bytes, kind: Kind, guard: Entrance, timeout_s: float
) -> Callable[[Array], None]:
    """Return what sends arrays of one dtype and shape, under one header."""
    block, waiter, fence = channels.block, channels.waiter, channels.fence
    words, lock, spins = block.words, guard.lock, waiter.spins
    alerts, heed = waiter.alerts, channels.heed
    pair = block.layout.pair(channels.rank, dest)
    pushed, taken = pair + PUSHED, pair + TAKEN
    written = channels.written[dest]
    places, views = _places(channels, channels.rank, dest, kind)
    nbytes = count_bytes(kind)

    def send(x: Array) -> None:
        if not lock:
            raise guard.refusal()
        entered = sent = False
        try:
            lock.pop()
            entered = True
            number = words[pushed]
            left = spins
            while number - words[taken] >= PLACES:
                if not left:
                    channels.await_place(dest, number, time.monotonic() + timeout_s)
                    break
                left -= 1
            which = number % PLACES
            if written[which] is not header:
                block.put_text(places[which], header)
                channels.put_length(places[which], nbytes)
                written[which] = header
            views[which][...] = x
            if fence is not None:
                fence()
            words[pushed] = number + 1
            sent = True
            for index in alerts:
                if words[index]:
                    heed(pushed)
        except BaseException as exc:
            if not entered and isinstance(exc, IndexError):  # another thread was quicker
                raise guard.refusal() from None
            guard.leave(exc, in_step=not sent and isinstance(exc, CommTimeout))
            raise
        lock.append(None)

    return send


def receiver(
    channels: Channels,
    source: int,
    header: bytes,
    kind: Kind,
    guard: Entrance,
    timeout_s: float,
    otherwise: Callable[[Any, float], Array],
    is_calm: Callable[[BaseException], bool],
) -> Callable[[Any], Array]:
    """Return what receives arrays that come under one header; see ``Fabric.receiver``."""
    block, waiter, fence = channels.block, channels.waiter, channels.fence
    words, lock, spins = block.words, guard.lock, waiter.spins
    alerts, heed = waiter.alerts, channels.heed
    pair = block.layout.pair(source, channels.rank)
    pushed, taken = pair + PUSHED, pair + TAKEN
    places, views = _places(channels, source, channels.rank, kind)
    packed = LENGTH.pack(len(header)) + header
    heads = [block.bytes[place : place + len(packed)] for place in places]
    copies: list[Callable[[], Any]] = [view.copy for view in views]
    if not kind[1]:
        copies = [lambda view=view: bare(view.copy()) for view in views]  # type: ignore[misc]

    def receive(out: Any) -> Any:  # noqa: PLR0912 - one function: every call costs
        if not lock:
            raise guard.refusal()
        entered = False
        try:
            lock.pop()
            entered = True
            number = words[taken]
            left = spins
            while words[pushed] <= number:
                if not left:
                    channels.await_piece(source, number, time.monotonic() + timeout_s)
                    break
                left -= 1
            if fence is not None:
                fence()
            which = number % PLACES
            if heads[which] == packed:
                if out is None:
                    result = copies[which]()
                else:
                    out[...] = views[which]
                    result = out
                if fence is not None:
                    fence()
                words[taken] = number + 1
                for index in alerts:
                    if words[index]:
                        heed(taken)
            else:
                result = otherwise(out, time.monotonic() + timeout_s)
        except BaseException as exc:
            if not entered and isinstance(exc, IndexError):  # another thread was quicker
                raise guard.refusal() from None
            guard.leave(exc, in_step=is_calm(exc))
            raise
        lock.append(None)
        return result

    return receive


def _places(
    channels: Channels, source: int, dest: int, kind: Kind
) -> tuple[list[int], list[Array]]:
    layout, data = channels.block.layout, channels.block.data
    places = [layout.place(source, dest, number) for number in range(PLACES)]
    starts = [place + PIECE_HEAD_BYTES for place in places]
    dtype, nbytes = text_dtype(kind[0]), count_bytes(kind)
    return places, [typed(data[start : start + nbytes], dtype, kind[1]) for start in starts]
