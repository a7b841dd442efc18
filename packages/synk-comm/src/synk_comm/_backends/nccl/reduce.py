"""Reductions of device arrays: all_reduce, reduce, reduce_scatter, partitioned_all_reduce."""

from __future__ import annotations

import contextlib
import math
import weakref
from collections.abc import Sequence
from typing import Any, NamedTuple

from synk_comm._backends.nccl.arrays import DeviceArray, is_pygpu, pygpu_place
from synk_comm._core.calls import ON_DEVICES, CollectiveCall
from synk_comm._core.ops import ReduceOp, check_weight, scaled
from synk_comm._core.table import Arguments, CollectiveRow

from . import terms
from .steps import DeviceCall, DeviceSteps, Finished

_ENTRIES = 512
"""Calls that a communicator keeps at most."""


class RepeatedReduction(NamedTuple):
    """An all_reduce of pygpu arrays that was made before, without the arrays themselves."""

    x: weakref.ref[Any]
    out: weakref.ref[Any]
    op: str | ReduceOp
    weight: float | None
    places: tuple[Any, ...]
    call: DeviceCall

    def fits(self, x: Any, out: Any, op: str | ReduceOp, weight: float | None) -> bool:
        """Return whether the call is the same, and the arrays lie where they lay."""
        if self.x() is not x or self.out() is not out or op != self.op or weight != self.weight:
            return False
        return self.places == (pygpu_place(x), pygpu_place(out))


def nccl_ops(
    steps: DeviceSteps,
    hows: Sequence[terms.Combined],
    op: ReduceOp,
    said: Sequence[CollectiveCall],
    stack: contextlib.ExitStack,
) -> tuple[list[int], bool]:
    """Return NCCL's op for each array, and whether calls with them can be repeated.

    Not if they are sums of scaled operands, of which this rank's part lasts as long as ``stack``.
    """
    weights = [theirs.weight for theirs in said]
    nccl_op = terms.plain_op(op, weights)
    if nccl_op is not None:
        return [nccl_op] * len(hows), steps.size > 1
    made: dict[str, int] = {}
    small = scaled(weights)
    for how in hows:
        if how.dtype not in made:
            scalar = terms.element(small[steps.rank] / math.fsum(small), how.dtype)
            made[how.dtype] = stack.enter_context(steps.link.scaled_sum(scalar, how.type))
    return [made[how.dtype] for how in hows], False


def reduce(steps: DeviceSteps, row: CollectiveRow, asked: Arguments, deadline: float) -> Any:
    """Make a reduce or all_reduce."""
    x, out = asked.x, asked.out
    root = steps.check_rank(asked.root) if row.root == "receives" else None
    op = ReduceOp.parse(asked.op)
    weight = check_weight(asked.weight, op)
    receives = root in (None, steps.rank)
    in_place = receives and out is x and x is not None
    given = [] if x is None else steps.several(x, "x", written=in_place)
    targets = given if in_place else []
    if receives and out is not None and not in_place:
        targets = steps.several(out, "out", written=True)
        if given:
            terms.check_like(given, targets)
            terms.check_apart(given, targets)
    likes = given or targets
    many = bool(likes) and isinstance(x if given else out, (list, tuple))
    kinds = tuple([array.kind for array in likes])
    weight = weight if given else 0.0
    hows = [terms.combined(kind, op) for kind in kinds]
    result = out if receives else None
    if receives and out is None:
        made = [steps.made(like, array.shape) for like, array in zip(x if many else [x], given)]
        targets = [where for _, where in made]
        result = [new for new, _ in made] if many else made[0][0]
    froms, tos = [array.pointer for array in given], [array.pointer for array in targets]
    stream = steps.stream_for([*given, *targets])

    def finish(said: Sequence[CollectiveCall], stack: contextlib.ExitStack) -> Finished:
        ours, sources = hows, froms
        if not weight:
            theirs = next(call.arrays for call in said if call.arrays)
            ours = [terms.combined(kind, op) for kind in theirs]
            sources = _neutral(steps, op, ours, tos, stream, stack)
        ops, is_lasting = nccl_ops(steps, ours, op, said, stack)
        calls: list[tuple[Any, ...]] = []
        # What ranks that receive nothing name as result is not written to.
        for source, to, how, nccl_op in zip(sources, tos or sources, ours, ops):
            start = (source, to, how.elements, how.type, nccl_op)
            if how.elements:
                calls.append(("all_reduce", *start) if root is None else ("reduce", *start, root))
        return calls, is_lasting and bool(weight)

    place = -1 if root is None else root
    call = CollectiveCall(row.name + ON_DEVICES, op.value, place, kinds, (), weight, many)
    prepared = DeviceCall(steps, call, stream, finish)
    prepared.make(deadline)
    if root is None and not many and is_pygpu(x) and is_pygpu(out):
        if len(steps.repeated) >= _ENTRIES:
            steps.repeated.clear()
        refs, places = (weakref.ref(x), weakref.ref(out)), (pygpu_place(x), pygpu_place(out))
        known = RepeatedReduction(*refs, asked.op, asked.weight, places, prepared)
        steps.repeated[id(x), id(out)] = known
    return result


def _neutral(
    steps: DeviceSteps,
    op: ReduceOp,
    hows: Sequence[terms.Combined],
    targets: Sequence[int],
    stream: int,
    stack: contextlib.ExitStack,
) -> list[int]:
    """Return what a rank that contributes nothing gives instead: in place, if it receives."""
    driver, elements = steps.link.driver, [terms.neutral(op, how.dtype) for how in hows]
    pointers = list(targets)
    stack.enter_context(driver.entered(steps.link.device))
    if not targets:
        for how, element in zip(hows, elements):
            pointers.append(driver.allocate_on(stream, how.elements * len(element)))
            stack.callback(driver.free_on, stream, pointers[-1])
    for pointer, how, element in zip(pointers, hows, elements):
        if how.elements:
            driver.fill_on(stream, pointer, how.elements, element)
    return pointers


def reduce_scatter(
    steps: DeviceSteps, row: CollectiveRow, asked: Arguments, deadline: float
) -> Any:
    x, out, rank = asked.x, asked.out, steps.rank
    op = ReduceOp.parse(asked.op)
    weight = positive(asked.weight, op, row.name)
    many = isinstance(x, (list, tuple))
    whole = None if many else steps.one(x, "x")
    parts = steps.per_rank(x, "x") if whole is None else _blocks(whole, steps.size)
    kinds = tuple([array.kind for array in (parts if whole is None else [whole])])
    if len({dtype for dtype, _ in kinds}) > 1:
        raise TypeError("reduce_scatter needs arrays of one dtype")
    hows = [terms.combined(kind, op) for kind in kinds]
    mine = parts[rank]
    if out is None:
        out, target = steps.made(x[rank] if many else x, mine.shape)
    else:
        target = steps.one(out, "out", written=True)
        terms.check_like([mine], [target])
        terms.check_apart(parts, [target if part is mine else None for part in parts])
    # What ranks that receive nothing name as result is not written to.
    targets = [target if part is mine else part for part in parts]

    def finish(said: Sequence[CollectiveCall], stack: contextlib.ExitStack) -> Finished:
        ops, _ = nccl_ops(steps, hows, op, said, stack)
        if whole is None:
            return [
                ("reduce", part.pointer, to.pointer, how.elements, how.type, ops[0], root)
                for root, (part, to, how) in enumerate(zip(parts, targets, hows))
                if how.elements
            ], False
        how = hows[0]
        start = (whole.pointer, target.pointer, how.elements // steps.size, how.type, ops[0])
        return [("reduce_scatter", *start)] if how.elements else [], False

    call = CollectiveCall(row.name + ON_DEVICES, op.value, -1, kinds, (), weight, many)
    DeviceCall(steps, call, steps.stream_for([*parts, target]), finish).make(deadline)
    return out


def positive(weight: float | None, op: ReduceOp, kind: str) -> float:
    """Return the weight of a call to which every rank contributes."""
    checked = check_weight(weight, op)
    if not checked:
        raise ValueError(f"every rank contributes to {kind}: weight must be positive")
    return checked


def _blocks(x: DeviceArray, size: int) -> list[DeviceArray]:
    """Cut an array along its first axis into equal blocks."""
    if not x.shape or x.shape[0] % size:
        raise ValueError(
            f"the first axis of x must be a multiple of the group's size, {size}, got {x.shape}"
        )
    return x._replace(shape=(size, x.shape[0] // size, *x.shape[1:])).rows()
