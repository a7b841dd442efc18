"""The communicator: all collectives, once for all back-ends; see ``README.md``."""

from __future__ import annotations

import operator
import time
from collections.abc import Sequence
from functools import partial
from typing import Any, Callable, cast

from numpy import ndarray

from synk_comm._core.calls import CollectiveCall, declined, decode, encode, encode_decline
from synk_comm._core.fabric import Fabric, RepeatedCall, Share, Shortcut
from synk_comm._core.ops import ReduceOp
from synk_comm._core.packing import NUMBERS, as_array, can_receive
from synk_comm._core.requests import Request
from synk_comm._core.steps import CheckedCall, Steps
from synk_comm._core.table import TABLE, Arguments, CollectiveRow, row_of
from synk_comm.abc import Communicator
from synk_comm.exceptions import CommError, MisuseError

from . import gathering, reducing
from .nonblocking import CLOSE_S, Background
from .point_to_point import PointToPoint
from .splitting import split

_PREPARE: dict[tuple[str, str], Callable[[Steps, CollectiveRow, Arguments], CheckedCall]] = {
    ("", ""): gathering.barrier,
    ("whole", "fold"): reducing.reduce,
    ("parts", "fold"): reducing.reduce_scatter,
    ("whole", "fill"): gathering.broadcast,
    ("whole", "rows"): gathering.exchange,
    ("parts", "rows"): gathering.exchange,
    ("parts", "one"): gathering.exchange,
}
"""By ``sends`` and ``makes`` of the row."""

_LIKE_X = {row.name for row in TABLE.values() if (row.sends, row.makes) == ("whole", "fold")}
"""Collectives whose shortcuts fill any ``out`` that is like ``x``."""
_ENTRIES = 512
"""Shortcuts that a communicator keeps at most."""

Prepare = Callable[[Arguments], CheckedCall]


def _prepare(steps: Steps, kind: str, given: Arguments) -> CheckedCall:
    """Check the arguments of a collective, and prepare it."""
    row = TABLE[kind]
    return _PREPARE[row.sends, row.makes](steps, row, given)


class RoundCommunicator(Communicator):
    """A communicator over any fabric; made by ``join``, ``connect`` and ``local_group``."""

    def __init__(
        self, fabric: Fabric, timeout_s: float, why: str, origin: Sequence[int] = ()
    ) -> None:
        self.rank = fabric.rank
        self.size = fabric.size
        self.backend = fabric.backend
        self.ordered_bytes = fabric.ordered_bytes
        self.why = why
        self.timeout_s = timeout_s  # of a call that names none
        self._steps = Steps(fabric, timeout_s)
        self._guard = self._steps.guard
        self._messages = PointToPoint(self._steps)
        self._shortcuts: dict[Any, Shortcut] = {}  # by this rank's call
        self._background: Background | None = None
        self.origin = origin  # its ranks in the group that it was split from

    def __repr__(self) -> str:
        who = f"rank {self.rank} of {self.size}"
        return f"<Communicator {who}, {self.backend}, {self._guard.state}>"

    # -- collectives --------------------------------------------------------------------------

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
        if type(root) is not int:  # it has to be hashable
            root = self._steps.check_rank(root)
        # The key of a shortcut, written out: a call of another function costs a tenth of the whole.
        key: Any = None
        if timeout_s is None and type(x) is ndarray:
            if out is None or (kind in _LIKE_X and can_receive(out, x)):
                key = (kind, x.dtype, x.shape, op, root, weight)
            elif type(out) is ndarray and out.flags.writeable:
                key = (kind, x.dtype, x.shape, op, root, weight, out.dtype, out.shape)
        elif timeout_s is None and x is None:
            if out is None:
                key = (kind, op, root, weight) if kind != "barrier" else kind
            elif type(out) is ndarray and out.flags.writeable:
                key = (kind, op, root, weight, out.dtype, out.shape)
        shortcut = self._shortcuts.get(key)
        if shortcut is not None and (
            kind != "broadcast" or x is None or root == self.rank or x.flags.writeable
        ):
            return shortcut(x, out)
        if kind == "broadcast" and isinstance(x, NUMBERS):
            return self._call(kind, as_array(x), None, timeout_s, op, root)[()]
        prepare = partial(_prepare, self._steps, kind)
        if TABLE[kind].is_of_objects:  # the next one is seldom as long
            key = None
        return self._call_first(key, prepare, Arguments(x, out, op, root, weight), timeout_s)

    def _call_first(
        self, key: Any, prepare: Prepare, given: Arguments, timeout_s: float | None
    ) -> Any:
        """Make a call in the general way; learn to repeat it if ``key`` is not None."""
        steps = self._steps
        result = steps.make(prepare(given), timeout_s)
        if key is not None and steps.fabric.is_first_round:
            self._learn(key, prepare, given._replace(x=None, out=None))
        return result

    def _learn(self, key: Any, prepare: Prepare, given: Arguments) -> None:
        """Keep a shortcut for the latest call of all ranks, if there is one."""
        steps, size = self._steps, self.size
        heads = steps.fabric.heads()
        calls = [decode(head) for head in heads]
        if any(call.many and not call.on_devices for call in calls):
            return
        in_blocks = row_of(calls[0].kind).in_blocks

        def otherwise(x: Any, out: Any) -> Any:
            if in_blocks:
                x = x.reshape(x.shape[0] * x.shape[1], *x.shape[2:])
            prepared = prepare(given._replace(x=x, out=out))
            return steps.make_inside(prepared, steps.deadline(None), resuming=True)

        repeat = steps.fabric.shortcut(
            RepeatedCall(steps.guard, calls, heads, steps.timeout_s, otherwise)
        )
        if repeat is None:
            return

        def repeat_blocks(x: Any, out: Any) -> Any:
            return repeat(x.reshape(size, x.shape[0] // size, *x.shape[1:]), out)

        if len(self._shortcuts) >= _ENTRIES:
            self._shortcuts.clear()
        self._shortcuts[key] = repeat_blocks if in_blocks else repeat

    def agree(self, call: CollectiveCall, deadline: float) -> Sequence[CollectiveCall]:
        """Compare a call on all ranks; return all ranks' calls, or raise on all of them."""
        shortcut, left_s = self._shortcuts.get(call), deadline - time.monotonic()
        calls: Sequence[CollectiveCall]
        if shortcut is not None and left_s > 0.9 * self.timeout_s:  # it waits for as long as that
            calls = shortcut(None, None)
        else:
            prepared = CheckedCall(call, encode(call), lambda calls, _: calls)
            calls = self._call_first(call, lambda _: prepared, Arguments(), max(left_s, 0.001))
        return calls

    def _begin(self, kind: str, given: Arguments) -> Request:
        if self._background is None:
            refusal = self._steps.fabric.why_no_thread()
            if refusal:
                raise MisuseError(refusal)
            call = CollectiveCall("first non-blocking collective")
            child = self._split(call, (0, self.rank), None)
            try:
                self._background = Background(child, self)
            except BaseException as exc:
                self.abort(f"no thread for collectives: {exc}")  # the others have theirs
                raise
        prepared = _prepare(self._background.steps, kind, given)
        return self._background.begin(kind, prepared)

    def decline(self, reason: str, *, timeout_s: float | None = None) -> dict[int, str]:
        head, fabric = encode_decline(str(reason)), self._steps.fabric
        deadline = self._steps.deadline(timeout_s)
        with self._guard:
            fabric.sync(head, 0, deadline)
            reasons = declined([decode(said) for said in fabric.heads()])
        del reasons[self.rank]
        return reasons

    # -- between two ranks --------------------------------------------------------------------

    def _message(
        self, sending: bool, array: Any, peer: int, tag: int, timeout_s: float | None
    ) -> Any:
        return self._messages.begin(sending, array, peer, tag, timeout_s=timeout_s).wait()

    def _begin_message(self, sending: bool, array: Any, peer: int, tag: int) -> Request:
        return self._messages.begin(sending, array, peer, tag, once=True)

    # -- groups -------------------------------------------------------------------------------

    def split(
        self, color: int | None, key: int = 0, *, timeout_s: float | None = None
    ) -> RoundCommunicator | None:
        said = (None if color is None else operator.index(color), operator.index(key))
        return self._split(CollectiveCall("split"), said, timeout_s)

    def _split(
        self, call: CollectiveCall, said: tuple[int | None, int], timeout_s: float | None
    ) -> RoundCommunicator | None:
        def finish(_: Any, deadline: float) -> RoundCommunicator | None:
            share: Share = lambda obj: gathering.share(self._steps, obj, deadline)  # noqa: E731
            enter = lambda fabric, members: meet(  # noqa: E731
                fabric, deadline, self.timeout_s, self.why, members
            )
            return split(self._steps.fabric, said, share, enter)

        made = self._steps.make(CheckedCall(call, encode(call), finish), timeout_s)
        return cast("RoundCommunicator | None", made)

    # -- the end ------------------------------------------------------------------------------

    def ended(self) -> CommError | None:
        """Return the error that ended the group, if known; cheap."""
        return self._guard.ended()

    def raised(self, error: BaseException) -> bool:
        return self._guard.raised(error)

    def abort(self, reason: str) -> None:
        self._guard.abort(reason)

    def close(self) -> None:
        try:
            self._messages.finish()
        finally:
            limit_s = self.timeout_s if self._guard.ended() is None else CLOSE_S
            self._shortcuts.clear()  # they keep the memory of the slots, to be unmapped below
            self._guard.close()
            if self._background is not None:  # last: others may wait for this rank's end
                self._background.close(limit_s)


def meet(
    fabric: Fabric, deadline: float, timeout_s: float, why: str = "", origin: Sequence[int] = ()
) -> RoundCommunicator:
    """Wait for all ranks, and make the communicator; free everything if that fails."""
    comm = RoundCommunicator(fabric, timeout_s, why, origin)
    try:
        with comm._guard:
            fabric.meet(deadline)
    except BaseException:
        comm.close()
        raise
    return comm
