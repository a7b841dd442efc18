"""The communicator: all collectives, built on rounds, one implementation for every backend.

The path of one call:

1. Arguments are checked, on this rank alone; nothing has been sent yet.
2. The head (the call, with dtypes and shapes) and the first bytes of data are posted in one
   round. After it every rank sees all heads, so all reach the same verdict: go on,
   ``MismatchError``, or ``PeerDeclined``.
3. Data longer than a slot follow in further rounds; their number follows from the heads.
4. Each rank reads what it needs from its peers' slots after each round.

Calls that all ranks have made alike before may take a shortcut: ``Fabric.shortcut``.
"""

from __future__ import annotations

import operator
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Callable, Dict, NamedTuple

import numpy as np
from numpy import ndarray

from synk_comm._core.calls import CollectiveCall, declined, decode, encode, encode_decline
from synk_comm._core.fabric import Again, Fabric, RepeatedCall, Share, Shortcut, is_of_watch
from synk_comm._core.lists import as_array
from synk_comm._core.ops import Array, ReduceOp
from synk_comm._core.steps import Result, Run, Steps
from synk_comm.abc import Request
from synk_comm.exceptions import AbortedError, CommError, MisuseError, PeerLost

from .gathering import Gathering
from .nonblocking import Background
from .objects import ObjectMoves
from .point_to_point import PointToPoint
from .reducing import Reducing
from .splitting import in_ranks_of_the_old, split

if TYPE_CHECKING:
    from numpy.typing import ArrayLike

_ENTRIES = 512
"""Shortcuts that a communicator keeps at most."""

_FIRST_BEGUN = CollectiveCall("first non-blocking collective")


class _Asked(NamedTuple):
    """The arguments of a collective, with or without waiting."""

    x: Any = None
    out: Any = None
    op: str | ReduceOp = "sum"
    root: int = 0
    weight: float | None = None


_ASKED = _Asked()


class Learned(Dict[Any, Shortcut]):
    """Shortcuts by this rank's call, with or without ``out``."""

    def __init__(self, steps: Steps) -> None:
        super().__init__()
        self._steps = steps

    def learn(self, key: Any, again: Again) -> None:
        """Keep a shortcut for the call that all ranks have just made, if there is one."""
        steps = self._steps
        if key is None or not steps.fabric.is_first_round:
            return
        heads = steps.fabric.heads()
        calls = [decode(head) for head in heads]
        if any(call.many and not call.on_devices for call in calls):
            return
        repeated = RepeatedCall(steps.guard, calls, heads, steps.timeout_s, again)
        shortcut = steps.fabric.shortcut(repeated)
        if shortcut is not None:
            if len(self) >= _ENTRIES:
                self.clear()
            self[key] = shortcut


def key_of(kind: str, x: Any, out: Any, timeout_s: float | None, *more: Any) -> Any:
    """Return the key of a call that a shortcut may repeat; else None."""
    if timeout_s is not None or not (x is None or type(x) is ndarray):
        return None
    said = (kind, None if x is None else (x.dtype, x.shape), *more)
    if out is None:
        return said
    if type(out) is not ndarray or not out.flags.writeable:
        return None
    return (*said, out.dtype, out.shape)


def is_alike(x: Any, out: Any) -> bool:
    """Return whether an array can receive what is reduced from another."""
    return bool(out.dtype == x.dtype and out.shape == x.shape)


class RoundCommunicator(ObjectMoves):
    """A communicator over any fabric; made by ``join``, ``connect`` and ``local_group``."""

    def __init__(self, fabric: Fabric, timeout_s: float, why: str = "") -> None:
        self.rank = fabric.rank
        self.size = fabric.size
        self.backend = fabric.backend
        self.ordered_bytes = fabric.ordered_bytes
        self.why = why or f"{fabric.backend}: asked for"
        self._steps = Steps(fabric, timeout_s)
        self._guard = self._steps.guard
        self._letters = PointToPoint(self._steps)
        self._reducing = Reducing(self._steps)
        self._gathering = Gathering(self._steps)
        self._quick = Learned(self._steps)
        self._background: Background | None = None
        self._child: RoundCommunicator | None = None  # the group of `_background`
        self._origin: Sequence[int] = ()  # its ranks in the group that it was split from

    def __repr__(self) -> str:
        who = f"rank {self.rank} of {self.size}"
        return f"<Communicator {who}, {self.backend}, {self._guard.state}>"

    @property
    def timeout_s(self) -> float:
        """How long a call may take that names no time."""
        return self._steps.timeout_s

    def ended(self) -> CommError | None:
        """Return what ended the group, if it is known to have ended; cheap."""
        return self._guard.ended()

    def agree(self, call: CollectiveCall, deadline: float) -> Sequence[CollectiveCall]:
        """Send a call to all ranks; return all ranks' calls, which agree, or raise on all."""
        key = ("agree", call)
        quick = self._quick.get(key)
        # A shortcut waits as long as a call that names no time.
        if quick is not None and deadline - time.monotonic() > 0.9 * self.timeout_s:
            calls: Sequence[CollectiveCall] = quick(None, None)
            return calls
        head = encode(call)
        with self._guard:
            calls = self._steps.open(call, head, lambda: 0, deadline)

        def again(x: Any, out: Any, timeout_s: float | None) -> Any:  # noqa: ARG001
            return self._steps.verdict(call, head), None

        self._quick.learn(key, again)
        return calls

    def decline(self, reason: str, *, timeout_s: float | None = None) -> dict[int, str]:
        head = encode_decline(str(reason))
        fabric = self._steps.fabric
        deadline = self._steps.deadline(timeout_s)
        with self._guard:
            fabric.sync(head, 0, deadline)
            reasons = declined([decode(said) for said in fabric.heads()])
        del reasons[self.rank]
        return reasons

    def abort(self, reason: str) -> None:
        self._guard.abort(reason)

    def close(self) -> None:
        try:
            self._letters.finish()
        finally:
            is_open = self._guard.ended() is None
            self._quick.clear()  # they keep the memory of the slots, to be unmapped below
            self._guard.close()
            self._letters.forget()
            # At last: who waits for this rank in this group need not wait for that.
            if self._background is not None:
                self._background.close(is_open)

    # -- collectives, all of them in one way --------------------------------------------------

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
        """Make a collective: by the shortcut of a call that was made before, or the general way."""
        if type(root) is not int:
            root = self._steps.check_rank(root)
        if self.rank != root:
            if kind == "gather":
                out = None
            elif kind == "scatter":
                self._steps.check_only_root(kind, x, self._steps.check_rank(root))
        written = x if kind == "broadcast" and self.rank != root else out
        key = key_of(kind, x, written, timeout_s, op, root, weight)
        quick = self._quick.get(key)
        if quick is None:
            return self._call_first(key, kind, _Asked(x, out, op, root, weight), timeout_s)
        if kind == "reduce_scatter":
            x = x.reshape(self.size, x.shape[0] // self.size, *x.shape[1:])
        return quick(x, out)

    def _call_first(self, key: Any, kind: str, asked: _Asked, timeout_s: float | None) -> Any:
        result, accident = _PREPARE[kind](self, asked)(timeout_s)

        def again(x: Any, out: Any, timeout_s: float | None) -> Result:
            if kind == "reduce_scatter":  # the shortcut got it in blocks
                x = x.reshape(x.shape[0] * x.shape[1], *x.shape[2:])
            said = asked._replace(x=x, out=out)
            return _PREPARE[kind](self, said)(timeout_s, resuming=True)

        self._quick.learn(key, again)
        if accident is not None:
            raise accident
        return result

    def _begin(self, kind: str, x: Any = None, out: Any = None, **how: Any) -> Request:
        asked = _Asked(x, out, **how)
        if self._background is None or self._child is None:
            refusal = self._steps.fabric.why_no_thread()
            if refusal:
                raise MisuseError(refusal)
            child = self._split(_FIRST_BEGUN, (0, self.rank), None)
            assert child is not None  # noqa: S101 - all have given a color
            try:
                self._background = Background(child, self)
            except BaseException as exc:
                self.abort(f"no thread for collectives: {exc}")  # the others have theirs
                raise
            self._child = child
        return self._background.begin(kind, _PREPARE[kind](self._child, asked))

    def barrier(self, *, timeout_s: float | None = None) -> None:
        quick = self._quick.get("barrier") if timeout_s is None else None
        if quick is not None:
            quick(None, None)
            return
        self._call_first("barrier" if timeout_s is None else None, "barrier", _ASKED, timeout_s)

    def all_reduce(
        self,
        x: ArrayLike | Sequence[Array] | None,
        op: str | ReduceOp = "sum",
        *,
        weight: float | None = None,
        out: Any = None,
        timeout_s: float | None = None,
    ) -> Any:
        key = None  # written out, as in broadcast: a helper would cost a tenth of the call
        if type(x) is ndarray and timeout_s is None:
            key = (x.dtype, x.shape, op, weight)
            quick = self._quick.get(key)
            if quick is not None and (
                out is None
                or (type(out) is ndarray and (out is x or is_alike(x, out)) and out.flags.writeable)
            ):
                return quick(x, out)
        asked = _Asked(x, out, op, weight=weight)
        return self._call_first(key, "all_reduce", asked, timeout_s)

    def reduce(
        self,
        x: ArrayLike | Sequence[Array] | None,
        op: str | ReduceOp = "sum",
        root: int = 0,
        *,
        weight: float | None = None,
        out: Any = None,
        timeout_s: float | None = None,
    ) -> Any:
        if type(root) is not int:
            root = self._steps.check_rank(root)
        if self.rank != root:
            out = None
        if type(x) is ndarray and out is None and timeout_s is None:  # written out, as in broadcast
            key: Any = ("reduce", (x.dtype, x.shape), op, weight, root)
        else:
            key = key_of("reduce", x, out, timeout_s, op, weight, root)
        quick = self._quick.get(key)
        if quick is not None and (out is None or (x is not None and is_alike(x, out))):
            return quick(x, out)
        return self._call_first(key, "reduce", _Asked(x, out, op, root, weight), timeout_s)

    def broadcast(
        self,
        x: Array | Sequence[Array] | complex | np.generic | None,
        root: int = 0,
        *,
        timeout_s: float | None = None,
    ) -> Any:
        key: Any = None
        if type(x) is ndarray and timeout_s is None:
            key = (x.dtype, x.shape, root, "broadcast")
            quick = self._quick.get(key)
            if quick is not None and (root == self.rank or x.flags.writeable):
                return quick(x, None)
        elif x is None and timeout_s is None:
            key = (None, None, root, "broadcast")
            quick = self._quick.get(key)
            if quick is not None:
                return quick(None, None)
        elif isinstance(x, (int, float, complex, np.generic)):
            return self.broadcast(as_array(x), root, timeout_s=timeout_s)[()]
        return self._call_first(key, "broadcast", _Asked(x, root=root), timeout_s)

    # -- between two ranks --------------------------------------------------------------------

    def send(
        self, x: ArrayLike, dest: int, *, tag: int = 0, timeout_s: float | None = None
    ) -> None:
        self._letters.do(self._letters.to(x, dest, tag), timeout_s)

    def recv(
        self,
        source: int,
        *,
        tag: int = 0,
        out: Array | None = None,
        timeout_s: float | None = None,
    ) -> Any:
        return self._letters.do(self._letters.of(source, tag, out), timeout_s)

    def isend(self, x: ArrayLike, dest: int, *, tag: int = 0) -> Request:
        return self._letters.begin(self._letters.to(x, dest, tag))

    def irecv(self, source: int, *, tag: int = 0, out: Array | None = None) -> Request:
        return self._letters.begin(self._letters.of(source, tag, out))

    # -- smaller groups -----------------------------------------------------------------------

    def split(
        self, color: int | None, key: int = 0, *, timeout_s: float | None = None
    ) -> RoundCommunicator | None:
        said = (None if color is None else operator.index(color), operator.index(key))
        return self._split(CollectiveCall("split"), said, timeout_s)

    def _split(
        self, call: CollectiveCall, said: tuple[int | None, int], timeout_s: float | None
    ) -> RoundCommunicator | None:
        deadline = self._steps.deadline(timeout_s)
        share: Share = lambda obj: self._gathering.share(obj, deadline)  # noqa: E731
        enter = lambda fabric: meet(fabric, deadline, self.timeout_s, self.why)  # noqa: E731
        with self._guard:
            self._steps.open(call, encode(call), lambda: 0, deadline)
            comm, members = split(self._steps.fabric, said, share, enter)
        if comm is not None:
            comm._origin = members
        return comm

    def told_above(self, exc: CommError) -> CommError:
        """Return an error of this group in the ranks of the group that it was split from."""
        return in_ranks_of_the_old(exc, self._origin)


_PREPARE: dict[str, Callable[[RoundCommunicator, _Asked], Run]] = {
    "barrier": lambda comm, _: comm._gathering.barrier(),
    "all_reduce": lambda comm, a: comm._reducing.reduce(
        "all_reduce", a.x, a.op, None, a.weight, a.out
    ),
    "reduce": lambda comm, a: comm._reducing.reduce("reduce", a.x, a.op, a.root, a.weight, a.out),
    "reduce_scatter": lambda comm, a: comm._reducing.scatter(a.x, a.op, a.weight, a.out),
    "broadcast": lambda comm, a: comm._gathering.broadcast("broadcast", a.x, a.root),
    "scatter": lambda comm, a: comm._gathering.scatter("scatter", a.x, a.root, a.out),
    "gather": lambda comm, a: comm._gathering.gather("gather", a.x, a.root, a.out),
    "all_gather": lambda comm, a: comm._gathering.gather("all_gather", a.x, None, a.out),
    "all_to_all": lambda comm, a: comm._gathering.all_to_all("all_to_all", a.x, a.out),
}
"""By kind, what checks the arguments of a collective, and returns what makes it."""


def meet(fabric: Fabric, deadline: float, timeout_s: float, why: str = "") -> RoundCommunicator:
    """Wait for all ranks, and make the communicator; free everything if that fails."""
    comm = RoundCommunicator(fabric, timeout_s, why)
    try:
        fabric.meet(deadline)
    except BaseException as exc:
        if is_of_watch(exc) or not isinstance(exc, (AbortedError, PeerLost)):
            comm.abort(f"{type(exc).__name__} while joining: {exc}")
        elif isinstance(exc, AbortedError) and exc.rank == fabric.rank:
            comm.abort(exc.reason)  # of the group that this one comes from: the others may not know
        elif fabric.failure() is None and exc.rank >= 0:  # else they see that, and by whom
            fabric.lose(exc.rank)
        comm.close()
        raise
    return comm
