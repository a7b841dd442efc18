"""Reductions of device arrays, whole and in parts; and their terms in NCCL."""

from __future__ import annotations

import contextlib
import math
import weakref
from collections.abc import Sequence
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np

from synk_comm._backends.nccl.arrays import (
    BFLOAT16,
    DeviceArray,
    check_apart,
    check_like,
    is_pygpu,
    pygpu_place,
)
from synk_comm._core.calls import ON_DEVICES, CollectiveCall, Kind, text_dtype
from synk_comm._core.ops import ReduceOp, check_reducible, check_weight, positive_weight, scaled
from synk_comm._core.table import Arguments, CollectiveRow

from .link import Link
from .steps import DeviceCall, DeviceSteps, Finished

_ENTRIES = 512
"""Calls that a communicator keeps at most."""
_SUM, _PROD, _MAX, _MIN, _AVG = range(5)
_OPS = {ReduceOp.SUM: _SUM, ReduceOp.PROD: _PROD, ReduceOp.MAX: _MAX, ReduceOp.MIN: _MIN}
_TYPES = ["|i1", "|u1", "<i4", "<u4", "<i8", "<u8", "<f2", "<f4", "<f8", BFLOAT16]
"""dtypes, by the numbers that NCCL gives them."""
_PARTS = {"<c8": "<f4", "<c16": "<f8"}


class Combined(NamedTuple):
    """How NCCL combines an array."""

    type: int  # NCCL's number of the dtype
    dtype: str  # of complex numbers that of their parts
    elements: int  # of this dtype


@lru_cache(maxsize=1024)
def _combined(kind: Kind, op: ReduceOp) -> Combined:
    """Return how NCCL combines an array; TypeError, with the cure, if it cannot."""
    dtype, shape = kind
    elements = math.prod(shape)
    if dtype != BFLOAT16 and text_dtype(dtype).isnative:
        check_reducible(text_dtype(dtype), op)
    if dtype == "|b1":
        dtype = "|u1"  # only min and max are left: and, or
    elif dtype in _PARTS:
        if op not in (ReduceOp.SUM, ReduceOp.AVG):
            raise TypeError(
                f"NCCL cannot {op} complex numbers, only sum and avg; reduce a copy in host memory"
            )
        dtype, elements = _PARTS[dtype], 2 * elements
    elif dtype not in _TYPES:
        raise TypeError(
            f"NCCL cannot {op} arrays of dtype {text_dtype(dtype)}; convert to one of int8, uint8, "
            "int32, uint32, int64, uint64, float16, float32, float64, or reduce in host memory"
        )
    return Combined(_TYPES.index(dtype), dtype, elements)


def _nccl_ops(
    steps: DeviceSteps,
    hows: Sequence[Combined],
    op: ReduceOp,
    said: Sequence[CollectiveCall],
    stack: contextlib.ExitStack,
) -> tuple[list[int], bool]:
    """Return NCCL's op for each array, and whether calls with them can be repeated.

    They cannot if they are sums of scaled operands, whose factors last as long as ``stack``.
    """
    weights = [theirs.weight for theirs in said]
    if steps.size == 1:  # a copy: NCCL 2.28 leaves out the last elements of some averages
        return [_SUM] * len(hows), False
    if op is not ReduceOp.AVG or min(weights) == max(weights):
        return [_OPS.get(op, _AVG)] * len(hows), True
    small = scaled(weights)
    made: dict[str, int] = {}
    for how in hows:
        if how.dtype not in made:
            scalar = _element(small[steps.rank] / math.fsum(small), how.dtype)
            made[how.dtype] = stack.enter_context(steps.link.scaled_sum(scalar, how.type))
    return [made[how.dtype] for how in hows], False


def _element(value: float, dtype: str) -> bytes:
    """Return a number as the bytes of an element."""
    if dtype != BFLOAT16:
        return np.asarray(value, text_dtype(dtype)).tobytes()
    bits = int(np.asarray(value, np.float32).view(np.uint32))
    return ((bits + 0x7FFF + (bits >> 16 & 1)) >> 16).to_bytes(2, "little")


def _neutral(op: ReduceOp, dtype: str) -> bytes:
    """Return the element that changes no other one."""
    if op not in (ReduceOp.MIN, ReduceOp.MAX):
        return _element(op is ReduceOp.PROD, dtype)
    if dtype == BFLOAT16 or text_dtype(dtype).kind == "f":
        return _element(-math.inf if op is ReduceOp.MAX else math.inf, dtype)
    limits = np.iinfo(text_dtype(dtype))
    return _element(limits.min if op is ReduceOp.MAX else limits.max, dtype)


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


def reduce(steps: DeviceSteps, row: CollectiveRow, asked: Arguments, deadline: float) -> Any:
    """Make a reduce or all_reduce."""
    x, out = asked.x, asked.out
    root = steps.check_rank(asked.root) if row.root == "receives" else -1
    op = ReduceOp.parse(asked.op)
    weight = check_weight(asked.weight, op)
    receives = root in (-1, steps.rank)
    in_place = receives and out is x and x is not None
    given = [] if x is None else steps.several(x, "x", written=in_place)
    targets = given if in_place else []
    if receives and out is not None and not in_place:
        targets = steps.several(out, "out", written=True)
        if given:
            check_like(given, targets)
            check_apart(given, targets)
    likes = given or targets
    many = bool(likes) and isinstance(x if given else out, (list, tuple))
    kinds = tuple([array.kind for array in likes])
    weight = weight if given else 0.0
    hows = [_combined(kind, op) for kind in kinds]
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
            ours = [_combined(kind, op) for kind in theirs]
            sources = _filled(steps, op, ours, tos, stream, stack)
        ops, is_lasting = _nccl_ops(steps, ours, op, said, stack)
        name, to_root = ("all_reduce", ()) if root < 0 else ("reduce", (root,))
        # NCCL does not write to the target of a rank that receives nothing.
        calls = [
            (name, source, to, how.elements, how.type, nccl_op, *to_root)
            for source, to, how, nccl_op in zip(sources, tos or sources, ours, ops)
            if how.elements
        ]
        return calls, is_lasting and bool(weight)

    call = CollectiveCall(row.name + ON_DEVICES, op.value, root, kinds, (), weight, many)
    prepared = DeviceCall(steps, call, stream, finish)
    prepared.make(deadline)
    if root < 0 and not many and is_pygpu(x) and is_pygpu(out):
        if len(steps.repeated) >= _ENTRIES:
            steps.repeated.clear()
        refs, places = (weakref.ref(x), weakref.ref(out)), (pygpu_place(x), pygpu_place(out))
        known = RepeatedReduction(*refs, asked.op, asked.weight, places, prepared)
        steps.repeated[id(x), id(out)] = known
    return result


def _filled(
    steps: DeviceSteps,
    op: ReduceOp,
    hows: Sequence[Combined],
    targets: Sequence[int],
    stream: int,
    stack: contextlib.ExitStack,
) -> list[int]:
    """Return neutral operands of a rank that contributes nothing: its targets, if it receives."""
    driver, pointers = steps.link.driver, list(targets)
    stack.enter_context(driver.entered(steps.link.device))
    for number, how in enumerate(hows):
        element = _neutral(op, how.dtype)
        if not targets:
            pointers.append(driver.allocate_on(stream, how.elements * len(element)))
            stack.callback(driver.free_on, stream, pointers[-1])
        if how.elements:
            driver.fill_on(stream, pointers[number], how.elements, element)
    return pointers


def reduce_scatter(
    steps: DeviceSteps, row: CollectiveRow, asked: Arguments, deadline: float
) -> Any:
    x, out, rank = asked.x, asked.out, steps.rank
    op = ReduceOp.parse(asked.op)
    weight = positive_weight(asked.weight, op, row.name)
    many = isinstance(x, (list, tuple))
    whole = None if many else steps.one(x, "x")
    parts = steps.per_rank(x, "x") if whole is None else _blocks(whole, steps.size)
    kinds = tuple([array.kind for array in (parts if whole is None else [whole])])
    if len({dtype for dtype, _ in kinds}) > 1:
        raise TypeError("reduce_scatter needs arrays of one dtype")
    hows = [_combined(kind, op) for kind in kinds]
    mine = parts[rank]
    if out is None:
        out, target = steps.made(x[rank] if many else x, mine.shape)
    else:
        target = steps.one(out, "out", written=True)
        check_like([mine], [target])
        check_apart(parts, [target if part is mine else None for part in parts])

    def finish(said: Sequence[CollectiveCall], stack: contextlib.ExitStack) -> Finished:
        ops, _ = _nccl_ops(steps, hows, op, said, stack)  # of one dtype
        if whole is not None:
            how = hows[0]
            start = (whole.pointer, target.pointer, how.elements // steps.size, how.type, ops[0])
            return [("reduce_scatter", *start)] if how.elements else [], False
        # NCCL does not write to the target of a rank that receives nothing.
        targets = [target if part is mine else part for part in parts]
        return [
            ("reduce", part.pointer, to.pointer, how.elements, how.type, ops[0], root)
            for root, (part, to, how) in enumerate(zip(parts, targets, hows))
            if how.elements
        ], False

    call = CollectiveCall(row.name + ON_DEVICES, op.value, -1, kinds, (), weight, many)
    DeviceCall(steps, call, steps.stream_for([*parts, target]), finish).make(deadline)
    return out


def _blocks(x: DeviceArray, size: int) -> list[DeviceArray]:
    """Cut an array along its first axis into equal blocks."""
    if not x.shape or x.shape[0] % size:
        raise ValueError(
            f"the first axis of x must be a multiple of the group's size, {size}, got {x.shape}"
        )
    return x._replace(shape=(size, x.shape[0] // size, *x.shape[1:])).rows()


class PartitionedReduction:
    """An all_reduce that all ranks have begun; see ``NcclCommunicator.partitioned_all_reduce``."""

    def __init__(
        self,
        steps: DeviceSteps,
        out: Any,
        op: ReduceOp,
        bounds: Sequence[tuple[int, int]],
        weight: float | None,
        timeout_s: float | None,
    ) -> None:
        deadline, name = steps.deadline(timeout_s), "partitioned_all_reduce"
        weight = positive_weight(weight, op, name)
        result = steps.one(out, "out", written=True)
        _check_bounds(bounds, result.elements)
        kinds = tuple([(result.dtype, (stop - begin,)) for begin, stop in bounds])
        hows = [_combined(kind, op) for kind in kinds]
        call = CollectiveCall(name + ON_DEVICES, op.value, -1, kinds, (), weight, many=True)
        self._steps = steps
        self._timeout_s = timeout_s
        self._given = 0
        self._held = [out]
        self._stack = contextlib.ExitStack()
        self._main = steps.stream_for([result])
        # Here its error comes before the others rely on this rank.
        self._stream, self._event = steps.aside(self._main)
        with steps.guard:
            said = steps.host.agree(call, deadline)
            ops, _ = _nccl_ops(steps, hows, op, said, self._stack)
        self._parts = [
            (result.part(begin, (stop - begin,)), (how.elements, how.type, nccl_op))
            for (begin, stop), how, nccl_op in zip(bounds, hows, ops)
        ]

    def ready(self, x: Any = None) -> None:
        """Enqueue the reduction of the next part, after all work that the main stream has so far.

        Args:
            x: the part, which must not change before ``wait``; None if it lies in ``out``.
        """
        steps, link = self._steps, self._steps.link
        target, how = self._parts[self._given]
        source = target
        if x is not None:
            source = steps.one(x, "x")
            check_like([source], [target])
            self._held.append(x)
        with steps.guard, link.driver.entered(link.device):
            link.driver.record(self._event, self._main)
            link.driver.wait_for(self._stream, self._event)
            self._given += 1
            call = ("all_reduce", source.pointer, target.pointer, *how)
            link.run([call], self._stream, steps.deadline(self._timeout_s))

    def wait(self) -> None:
        """Enqueue the reduction of the parts that are left; the main stream waits for all.

        A rank that fails to compute its parts must call this, too, or the others' devices wait for
        ever. The result is meaningless then, on all ranks.
        """
        while self._given < len(self._parts):
            self.ready()
        link = self._steps.link
        with self._steps.guard, link.driver.entered(link.device):
            link.driver.record(self._event, self._stream)
            link.driver.wait_for(self._main, self._event)
        self._stack.close()
        self._held.clear()


class PreparedReduction:
    """An all_reduce amid another library's work; see ``NcclCommunicator.prepared_all_reduce``."""

    def __init__(
        self, link: Link, ops: Sequence[ReduceOp], kinds: Sequence[Kind], timeout_s: float
    ) -> None:
        if not _OPS.keys() >= set(ops):
            raise ValueError("a prepared reduction has no weights: use 'sum', and divide")
        hows = [(_combined(kind, op), op) for kind, op in zip(kinds, ops)]
        self._hows = [(how.elements, how.type, _OPS[op]) for how, op in hows]
        self._link, self._timeout_s = link, timeout_s

    def __call__(self, sources: Sequence[int], targets: Sequence[int], stream: int) -> None:
        """Enqueue the reductions of arrays in C order at these addresses, as one group.

        Any thread may call it. It never raises: ``awaiting_work`` does.
        """
        calls = [
            ("all_reduce", source, target, *how)
            for source, target, how in zip(sources, targets, self._hows)
            if how[0]
        ]
        self._link.enqueue(calls, stream, self._timeout_s)


def _check_bounds(bounds: Sequence[tuple[int, int]], elements: int) -> None:
    """Raise ValueError unless each element is in one part, and no part is empty."""
    ordered = sorted(bounds)
    ends = [0, *(stop for _, stop in ordered)]
    is_whole = [begin for begin, _ in ordered] == ends[:-1] and ends[-1] == elements
    if not is_whole or any(stop <= begin for begin, stop in ordered):
        raise ValueError(
            "bounds must be begin and end of parts that have something, and together the "
            f"{elements} elements of out, each once; got {list(bounds[:8])}"
        )
