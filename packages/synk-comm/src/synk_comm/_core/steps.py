"""The first steps of every collective: enter the guard, post the call, compare all calls."""

from __future__ import annotations

import operator
import pickle
from collections.abc import Sequence
from typing import Any, Callable, NamedTuple

import numpy as np

from synk_comm.exceptions import PeerDeclined

from .calls import CollectiveCall, Kind, check_agreement, declined, decode, text_dtype
from .fabric import Fabric
from .guard import Guard, deadline_after
from .ops import Array


class CheckedCall(NamedTuple):
    """A call with checked arguments, to be made once.

    ``finish(calls, deadline)`` goes on after the first round; returns the result.
    """

    call: CollectiveCall
    head: bytes  # the encoded ``call``
    finish: Callable[[Sequence[CollectiveCall], float], Any]
    fill: Callable[[], int] = lambda: 0  # fills the own slot first; returns how many bytes
    to: int | None = None  # of the first round, see ``Fabric.sync``
    part: int = 0


class Steps:
    """One rank's fabric, its guard and its default timeout."""

    def __init__(self, fabric: Fabric, timeout_s: float) -> None:
        self.rank = fabric.rank
        self.size = fabric.size
        self.fabric = fabric
        self.guard = Guard(fabric)
        self.timeout_s = timeout_s

    def deadline(self, timeout_s: float | None) -> float:
        """Return the deadline of a call that begins now."""
        return deadline_after(self.timeout_s if timeout_s is None else timeout_s)

    def make(self, prepared: CheckedCall, timeout_s: float | None) -> Any:
        """Make a call."""
        deadline = self.deadline(timeout_s)
        with self.guard:
            return self.make_inside(prepared, deadline)

    def make_inside(self, prepared: CheckedCall, deadline: float, *, resuming: bool = False) -> Any:
        """Make a call inside the guard; if ``resuming``, go on after its first round."""
        call, head, finish, fill, to, part = prepared
        if not resuming:
            self.fabric.sync(head, fill(), deadline, to=to, part=part)
        return finish(self._verdict(call, head), deadline)

    def _verdict(self, call: CollectiveCall, head: bytes) -> Sequence[CollectiveCall]:
        """Compare all ranks' heads of the first round."""
        if call.weight and self.fabric.all_said(head) and not call.outs:
            return [call] * self.size
        calls = [decode(said) for said in self.fabric.heads()]
        reasons = declined(calls)
        if reasons:
            lines = "".join(f"\n  rank {rank}: {reason}" for rank, reason in reasons.items())
            raise PeerDeclined(
                f"{call.kind} did not take place, declined by{lines}", reasons=reasons
            )
        check_agreement(calls)
        return calls

    def check_rank(self, number: int, what: str = "root") -> int:
        rank = operator.index(number)
        if not 0 <= rank < self.size:
            raise ValueError(f"{what} must be a rank, 0 to {self.size - 1}, got {number!r}")
        return rank

    def check_only_root(self, kind: str, xs: Any, root: int) -> None:
        """Raise ValueError if another rank than the root gives a list."""
        if self.rank != root and xs is not None:
            raise ValueError(f"only the root, rank {root}, gives a list to {kind}")


def check_out(out: Any, like: Kind | None) -> None:
    """Raise unless ``out`` is a writeable array that fits."""
    if not isinstance(out, np.ndarray):
        raise TypeError(f"out must be an ndarray, got {type(out).__name__}")
    if not out.flags.writeable:
        raise ValueError("out must be writeable")
    if like is not None and (out.dtype != text_dtype(like[0]) or out.shape != like[1]):
        raise ValueError(f"out must be like x, {like[0]} {like[1]}, got {out.dtype} {out.shape}")


def pickled(obj: Any) -> Array:
    return np.frombuffer(pickle.dumps(obj), np.uint8)


def unpickled(data: Array) -> Any:
    return pickle.loads(data.data)  # noqa: S301 - members of a group trust each other
