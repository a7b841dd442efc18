"""Reductions of device arrays: all_reduce, reduce, reduce_scatter."""

from __future__ import annotations

import contextlib
import weakref
from collections.abc import Sequence
from typing import Any, NamedTuple

from synk_comm._backends.nccl.arrays import DeviceArray, is_pygpu, pygpu_place
from synk_comm._collectives.communicator import RoundCommunicator
from synk_comm._core.calls import CollectiveCall
from synk_comm._core.ops import ReduceOp, check_weight
from synk_comm._core.table import Arguments, CollectiveRow

from . import terms
from .base import NcclBase, NcclSettings
from .link import Link
from .partitioned import Part, PartitionedReduction

_Calls = list[tuple[Any, ...]]

_ENTRIES = 512
"""Calls that a communicator keeps at most."""


class _ArrayReduction(NamedTuple):
    """A call whose arguments have been checked.

    Attributes:
        root: the only receiver; None if all ranks are.
        given, targets: where the arrays lie, and their results; empty if there are none.
    """

    plan: terms.NcclReduction
    op: ReduceOp
    root: int | None
    given: Sequence[DeviceArray]
    targets: Sequence[DeviceArray]
    stream: int


class _Repeated(NamedTuple):
    """An all_reduce of pygpu arrays: all that has been found out about them, without themselves.

    Attributes:
        said: the ranks' calls, the last time.
        calls: of NCCL, which follow from these; empty if they have to be made anew.
    """

    x: weakref.ref[Any]
    out: weakref.ref[Any]
    op: str | ReduceOp
    weight: float | None
    places: tuple[Any, ...]
    reduction: _ArrayReduction
    said: Sequence[CollectiveCall]
    calls: _Calls

    def fits(self, x: Any, out: Any, op: str | ReduceOp, weight: float | None) -> bool:
        """Return whether the call is the same, and the arrays lie where they lay."""
        if self.x() is not x or self.out() is not out or op != self.op or weight != self.weight:
            return False
        return self.places == (pygpu_place(x), pygpu_place(out))


class NcclReductions(NcclBase):
    """Reductions, on devices."""

    def __init__(self, host: RoundCommunicator, link: Link, settings: NcclSettings) -> None:
        super().__init__(host, link, settings)
        self._repeated: dict[tuple[int, int], _Repeated] = {}  # by the arrays' addresses

    def _reduce_again(self, known: _Repeated, deadline: float) -> None:
        """Make an all_reduce that was made before; all of its arrays lie where they lay."""
        with self._device_guard:
            said = self._host.agree(known.reduction.plan.call, deadline)
            if known.calls and said == known.said:
                self._link.run(known.calls, known.reduction.stream, deadline)
                return
            calls = self._enqueue(known.reduction, said, deadline)
        self._repeated[id(known.x()), id(known.out())] = known._replace(said=said, calls=calls)

    def _reduce(self, row: CollectiveRow, asked: Arguments, deadline: float) -> Any:
        x, out = asked.x, asked.out
        root = self._steps.check_rank(asked.root) if row.root == "receives" else None
        op = ReduceOp.parse(asked.op)
        weight = check_weight(asked.weight, op)
        receives = root is None or root == self.rank
        in_place = receives and out is x and x is not None
        given = [] if x is None else self._several(x, "x", written=in_place)
        targets = given if in_place else []
        if receives and out is not None and not in_place:
            targets = self._several(out, "out", written=True)
            if given:
                terms.check_like(given, targets)
                terms.check_apart(given, targets)
        likes = given or targets
        many = isinstance(x if given else out, (list, tuple)) if likes else False
        kinds = tuple([array.kind for array in likes])
        place = -1 if root is None else root
        plan = terms.plan(row.name, op, place, kinds, weight if given else 0.0, many)
        result = out
        if receives and out is None:
            made = [self._made(array.owner, array.shape, array.dtype) for array in given]
            targets = [where for _, where in made]
            result = [new for new, _ in made] if many else made[0][0]
        stream = self._stream_for(given if targets is given else [*given, *targets])
        reduction = _ArrayReduction(plan, op, root, given, targets, stream)
        with self._device_guard:
            said = self._host.agree(plan.call, deadline)
            calls = self._enqueue(reduction, said, deadline)
        if root is None and not many and is_pygpu(x) and is_pygpu(out):
            if len(self._repeated) >= _ENTRIES:
                self._repeated.clear()
            kept = reduction._replace(
                given=[array._replace(owner=None) for array in given],
                targets=[array._replace(owner=None) for array in targets],
            )
            places = pygpu_place(x), pygpu_place(out)
            refs = weakref.ref(x), weakref.ref(out)
            self._repeated[id(x), id(out)] = _Repeated(
                *refs, asked.op, asked.weight, places, kept, said, calls
            )
        return result if receives else None

    def _enqueue(
        self, reduction: _ArrayReduction, said: Sequence[CollectiveCall], deadline: float
    ) -> _Calls:
        """Combine the arrays by NCCL, given all ranks' calls.

        Returns:
            The calls of NCCL, if these do just the same the next time; else nothing.
        """
        plan, op, root, given, targets, stream = reduction
        for theirs in said:
            if theirs.arrays and not plan.hows:
                call = plan.call
                plan = terms.plan(call.method, op, call.root, theirs.arrays, 0.0, theirs.many)
        if self.size == 1:
            self._copy(given, targets, stream)
            return []
        with contextlib.ExitStack() as stack:
            sources = given if plan.call.weight else self._neutral(reduction, plan, stack)
            ops, is_lasting = self._ops(plan, op, said, stack)
            link = self._link
            calls: _Calls = []
            # What ranks that receive nothing name as result is not written to.
            for source, target, how, count, nccl_op in zip(
                sources, targets or sources, plan.hows, plan.counts, ops
            ):
                start = (source.pointer, target.pointer, count, how.type, nccl_op)
                if count and root is None:
                    calls.append((link.binding.all_reduce, *start, link.handle, stream))
                elif count:
                    calls.append((link.binding.reduce, *start, root, link.handle, stream))
            link.run(calls, stream, deadline)
        return calls if is_lasting and plan.call.weight else []

    def _ops(
        self,
        plan: terms.NcclReduction,
        op: ReduceOp,
        said: Sequence[CollectiveCall],
        stack: contextlib.ExitStack,
    ) -> tuple[list[int], bool]:
        """Return NCCL's op for each array, and whether they outlast ``stack``.

        They do unless they are sums of scaled operands, of which this rank's part is made here.
        """
        weights = [theirs.weight for theirs in said]
        nccl_op = terms.plain_op(op, weights)
        if nccl_op is not None:
            return [nccl_op] * len(plan.hows), True
        made: dict[str, int] = {}
        for how in plan.hows:
            if how.dtype not in made:
                scalar = terms.element(terms.factor(weights, self.rank), how.dtype)
                made[how.dtype] = stack.enter_context(self._link.scaled_sum(scalar, how.type))
        return [made[how.dtype] for how in plan.hows], False

    def _neutral(
        self, reduction: _ArrayReduction, plan: terms.NcclReduction, stack: contextlib.ExitStack
    ) -> list[DeviceArray]:
        """Return what a rank that contributes nothing gives instead: in place, if it receives."""
        driver, stream, arrays = self._link.driver, reduction.stream, list(reduction.targets)
        if not arrays:
            for dtype, shape in plan.call.arrays:
                nbytes = terms.count_bytes((dtype, shape))
                pointer = stack.enter_context(self._scratch(nbytes, stream))
                size = terms.count_bytes((dtype, ()))
                where = (pointer, shape, dtype, size, self.device, stream, True, True, None)
                arrays.append(DeviceArray(*where))
        with driver.entered(self.device):
            for array, how, count in zip(arrays, plan.hows, plan.counts):
                if count:
                    value = terms.neutral(reduction.op, how.dtype)
                    driver.fill_on(stream, array.pointer, count, value)
        return arrays

    def _copy(
        self, sources: Sequence[DeviceArray], targets: Sequence[DeviceArray], stream: int
    ) -> None:
        """Do all that there is to reduce in a group of one.

        NCCL 2.28 leaves out the last elements of some averages there.
        """
        driver = self._link.driver
        with driver.entered(self.device):
            for source, target in zip(sources, targets):
                if source.nbytes and source.pointer != target.pointer:
                    driver.copy_on(stream, target.pointer, source.pointer, source.nbytes)
        self._link.run([], stream, 0.0)

    def _reduce_scatter(self, row: CollectiveRow, asked: Arguments, deadline: float) -> Any:
        x, out = asked.x, asked.out
        op = ReduceOp.parse(asked.op)
        weight = _positive(check_weight(asked.weight, op), row.name)
        many = isinstance(x, (list, tuple))
        whole = [] if many else [self._one(x, "x")]
        parts = self._per_rank(x, "x") if many else _blocks(whole[0], self.size)
        kinds = tuple([array.kind for array in whole or parts])
        if len({dtype for dtype, _ in kinds}) > 1:
            raise TypeError("reduce_scatter needs arrays of one dtype")
        plan = terms.plan(row.name, op, -1, kinds, weight, many)
        mine = parts[self.rank]
        if out is None:
            out, target = self._made(mine.owner, mine.shape, mine.dtype)
        else:
            target = self._one(out, "out", written=True)
            terms.check_like([mine], [target])
            terms.check_apart(parts, [target if part is mine else None for part in parts])
        stream = self._stream_for([*parts, target])
        with self._device_guard, contextlib.ExitStack() as stack:
            said = self._host.agree(plan.call, deadline)
            if self.size == 1:
                self._copy([mine], [target], stream)
                return out
            link, how = self._link, plan.hows[0]
            nccl_op = self._ops(plan, op, said, stack)[0][0]
            calls: _Calls = []
            for array in whole:
                count = mine.elements * how.parts
                start = (array.pointer, target.pointer, count, how.type, nccl_op)
                if count:
                    calls.append((link.binding.reduce_scatter, *start, link.handle, stream))
            for rank, part in enumerate(parts if many else ()):
                to = target.pointer if rank == self.rank else part.pointer
                start = (part.pointer, to, part.elements * how.parts, how.type, nccl_op)
                if part.elements:
                    calls.append((link.binding.reduce, *start, rank, link.handle, stream))
            link.run(calls, stream, deadline)
        return out

    def partitioned_all_reduce(
        self,
        out: Any,
        op: str | ReduceOp = "sum",
        *,
        bounds: Sequence[tuple[int, int]],
        weight: float | None = None,
        timeout_s: float | None = None,
    ) -> PartitionedReduction:
        """Begin an all_reduce of a device vector whose parts come about one after the other.

        A collective: it compares the ranks' calls, as ``all_reduce`` does. Each rank then calls
        ``ready`` of the result for each part that is there, and ``wait`` at the end, whatever
        happens in between; no other call on device arrays may come before that. The parts are
        reduced on a stream of their own meanwhile.

        Args:
            out: a device vector for the reduced parts, in which they may also come about.
            op: as in ``all_reduce``.
            bounds: begin and end of each part, in elements, in the order in which they come about;
                the same on all ranks.
            weight: of this rank in an average, greater than 0.
            timeout_s: of the comparison, and of each call of NCCL.

        Raises:
            MismatchError: the ranks' parts or ops differ.
            TypeError, ValueError: bad arguments, such as parts that overlap.
            All errors of ``all_reduce``.
        """
        deadline = self._steps.deadline(timeout_s)
        op = ReduceOp.parse(op)
        weight = _positive(check_weight(weight, op), "partitioned_all_reduce")
        result = self._one(out, "out", written=True)
        _check_bounds(bounds, result.elements)
        kinds = tuple([(result.dtype, (stop - begin,)) for begin, stop in bounds])
        plan = terms.plan("partitioned_all_reduce", op, -1, kinds, weight, True)
        main, stack = self._stream_for([result]), contextlib.ExitStack()
        self._aside(main)  # an error now, not when the others rely on this rank
        with self._device_guard:
            ops, _ = self._ops(plan, op, self._host.agree(plan.call, deadline), stack)
        parts = []
        for (begin, stop), count, how, nccl_op in zip(bounds, plan.counts, plan.hows, ops):
            pointer = result.pointer + begin * result.itemsize
            part = result._replace(pointer=pointer, shape=(stop - begin,))
            parts.append(Part(part, count, how.type, nccl_op))
        return PartitionedReduction(self, main, parts, timeout_s, stack)


def _positive(weight: float, kind: str) -> float:
    if not weight:
        raise ValueError(f"every rank contributes to {kind}: weight must be positive")
    return weight


def _check_bounds(bounds: Sequence[tuple[int, int]], elements: int) -> None:
    """Raise ValueError unless each element is in one part, and no part is empty."""
    end = 0
    for begin, stop in sorted(bounds):
        if begin != end or stop <= begin:
            break
        end = stop
    else:
        if end == elements:
            return
    raise ValueError(
        f"bounds must be begin and end of parts that have something, and together the {elements} "
        f"elements of out, each once; got {list(bounds[:8])}"
    )


def _blocks(x: DeviceArray, size: int) -> list[DeviceArray]:
    """Cut an array along its first axis into equal blocks."""
    if not x.shape or x.shape[0] % size:
        raise ValueError(
            f"the first axis of x must be a multiple of the group's size, {size}, got {x.shape}"
        )
    return x._replace(shape=(size, x.shape[0] // size, *x.shape[1:])).rows()
