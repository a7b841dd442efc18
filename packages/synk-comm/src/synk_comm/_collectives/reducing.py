"""all_reduce, reduce and reduce_scatter: from arguments to results."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Callable, NamedTuple

import numpy as np

from synk_comm._core import moves
from synk_comm._core.bulk import AgreedReduction, Stretch
from synk_comm._core.calls import CollectiveCall, Kind, encode, kind_of
from synk_comm._core.lists import (
    Bundle,
    address,
    as_array,
    bare,
    bundles,
    contiguous,
    cut,
    flat_bytes,
    is_list,
    overlap,
    pack,
    unpack,
)
from synk_comm._core.ops import Array, ReduceOp, check_reducible, check_weight, scaled
from synk_comm._core.reductions import first_part, first_post, reduce_stretch
from synk_comm._core.steps import Result, Run, Steps, check_out


class Job(NamedTuple):
    """One rank's part in a reduction.

    Attributes:
        op: how values are combined.
        root: the only receiver; None if all ranks are.
        call, head: for the others.
        given: the arrays brought, in C order; None if this rank contributes nothing.
        outs: where the results go; None for new arrays.
        bundles: which arrays travel together; empty if this rank does not know.
        first: flat bytes of the first bundle.
    """

    op: ReduceOp
    root: int | None
    call: CollectiveCall
    head: bytes
    given: list[Array] | None
    outs: list[Array] | None
    bundles: list[Bundle]
    first: Array | None


class Reducing:
    """The reductions of one communicator."""

    def __init__(self, steps: Steps) -> None:
        self._steps = steps

    def reduce(
        self,
        kind: str,
        x: Any,
        op: str | ReduceOp,
        root: int | None,
        weight: float | None,
        out: Any,
    ) -> Run:
        """Check a reduction, to all ranks if ``root`` is None; return what does it."""
        steps = self._steps
        root = None if root is None else steps.check_rank(root)
        op = ReduceOp.parse(op)
        weight = check_weight(weight, op)
        many = is_list(x if x is not None else out)
        given = _listed(x, many)
        outs = None if root not in (None, steps.rank) else _out_list(out, many, given)
        known = given if given is not None else outs
        kinds = () if known is None else tuple(kind_of(array) for array in known)
        for array in known or ():
            check_reducible(array.dtype, op)
        weight = 0.0 if given is None else weight
        call = CollectiveCall(kind, op.value, -1 if root is None else root, kinds, (), weight, many)
        source = [contiguous(array) for array in given] if given is not None and weight else None
        parts = bundles(kinds, together=many)
        # What is written for one bundle must not be what the next has still to read.
        if len(parts) > 1 and source is not None and outs is not None and overlap(source, outs):
            source = [array.copy() for array in source]
        first = None if source is None else pack(source, parts[0])
        job = Job(op, root, call, encode(call), source, outs, parts, first)

        def run(timeout_s: float | None, *, resuming: bool = False) -> Result:
            deadline = steps.deadline(timeout_s)
            with steps.passing(resuming):
                fill, part = self._first_round(job)
                calls = steps.open(job.call, job.head, fill, deadline, root, part, resuming)
                return self._finish(job, calls, deadline)

        return run

    def _first_round(self, job: Job) -> tuple[Callable[[], int], int]:
        fabric = self._steps.fabric
        if not job.bundles:
            return (lambda: 0), 0
        nbytes = job.bundles[0].nbytes
        return (lambda: first_post(fabric, nbytes, job.first)), first_part(fabric, nbytes)

    def _finish(self, job: Job, calls: Sequence[CollectiveCall], deadline: float) -> Result:
        steps = self._steps
        fabric = steps.fabric
        ranks = [rank for rank, theirs in enumerate(calls) if theirs.weight]
        weights = [calls[rank].weight for rank in ranks]
        factors = None if min(weights) == max(weights) else scaled(weights)
        plan = AgreedReduction(job.op, ranks, factors, job.root)
        kinds = calls[ranks[0]].arrays
        receives = job.root in (None, steps.rank)
        results: list[Array | None] = [None] * len(kinds)
        accident = None
        posted = True
        many = calls[ranks[0]].many
        for which, bundle in enumerate(job.bundles or bundles(kinds, together=many)):
            source = job.first if which == 0 else None
            if source is None and job.given is not None:
                source = pack(job.given, bundle)
            target = _target(job, bundle, source) if receives else None
            stretch = Stretch(bundle.dtype, bundle.nbytes, source, target)
            accident = reduce_stretch(fabric, plan, stretch, deadline, posted=posted) or accident
            posted = False
            if target is not None:
                self._hand_over(job, bundle, kinds, target, results)
        if not receives:
            return None, accident
        if many:
            return results, accident
        (result,) = results
        return result if result is None or job.outs is not None else bare(result), accident

    @staticmethod
    def _hand_over(
        job: Job, bundle: Bundle, kinds: Sequence[Kind], target: Array, results: list[Array | None]
    ) -> None:
        if job.outs is None:
            for which, array in cut(target, bundle, kinds).items():
                results[which] = array
            return
        unpack(target, bundle, job.outs)
        for which in bundle.members:
            results[which] = job.outs[which]

    def scatter(self, x: Any, op: str | ReduceOp, weight: float | None, out: Any) -> Run:
        """Check a reduce_scatter; return what does it."""
        steps = self._steps
        op = ReduceOp.parse(op)
        weight = check_weight(weight, op)
        if not weight:
            raise ValueError("every rank contributes to reduce_scatter: weight must be positive")
        many = is_list(x)
        given = [contiguous(as_array(array)) for array in (x if many else [x])]
        blocks = _blocks(given, many, steps.size)
        own = kind_of(blocks[steps.rank])
        check_reducible(given[0].dtype, op)
        if out is not None:
            check_out(out, own)
        kinds = tuple(kind_of(array) for array in given)
        call = CollectiveCall("reduce_scatter", op.value, -1, kinds, (), weight, many)
        inbox = moves.Inbox([own], [out], given)
        (target,) = inbox.flat()
        accidents: list[Exception] = []
        dtype = given[0].dtype

        def begin(calls: Sequence[CollectiveCall]) -> Any:
            weights = [theirs.weight for theirs in calls]
            factors = None if min(weights) == max(weights) else scaled(weights)
            plan = AgreedReduction(op, list(range(steps.size)), factors, None)

            def receive(start: int, part: int, read: moves.Read) -> None:
                assert target is not None  # noqa: S101 - every rank gets its block
                stop = min(start + part, target.nbytes)
                if stop > start:
                    operands = [read(rank, stop - start).view(dtype) for rank in range(steps.size)]
                    accident = plan.combine(operands, target[start:stop].view(dtype))
                    accidents.extend([] if accident is None else [accident])

            return receive

        head = encode(call)
        sources = [flat_bytes(block) for block in blocks]

        def run(timeout_s: float | None, *, resuming: bool = False) -> Result:
            deadline = steps.deadline(timeout_s)
            with steps.passing(resuming):
                moves.deal(steps, call, head, sources, begin, deadline, resuming)
            block = inbox.taken()[0]
            assert block is not None  # noqa: S101 - every rank gets its block
            return block if out is not None else bare(block), accidents[0] if accidents else None

        return run


def _listed(x: Any, many: bool) -> list[Array] | None:
    if x is None:
        return None
    return [as_array(array) for array in (x if many else [x])]


def _out_list(out: Any, many: bool, given: list[Array] | None) -> list[Array] | None:
    if out is None:
        return None
    outs = list(out) if many and isinstance(out, (list, tuple)) else [out]
    if many and (not isinstance(out, (list, tuple)) or (given and len(outs) != len(given))):
        raise ValueError(f"out must be a list of {len(given or outs)} arrays, as x is")
    for which, array in enumerate(outs):
        check_out(array, None if given is None else kind_of(given[which]))
    return outs


def _blocks(given: list[Array], many: bool, size: int) -> list[Array]:
    if many:
        if len(given) != size or len({array.dtype for array in given}) != 1:
            raise ValueError(
                f"reduce_scatter needs {size} arrays of one dtype, one for each rank, got "
                f"{len(given)} of {', '.join(sorted({str(array.dtype) for array in given}))}"
            )
        return given
    x = given[0]
    if not x.ndim or x.shape[0] % size:
        raise ValueError(
            f"the first axis of x must be a multiple of {size}, the number of ranks, got "
            f"shape {x.shape}; a list of {size} arrays may be uneven"
        )
    rows = x.shape[0] // size
    return [x[rank * rows : (rank + 1) * rows] for rank in range(size)]


def _target(job: Job, bundle: Bundle, source: Array | None) -> Array:
    """Return flat memory for a result: that of ``out`` if it can be written while x is read."""
    if len(bundle.members) == 1 and job.outs is not None:
        out = job.outs[bundle.members[0]]
        if out.flags.c_contiguous:
            flat = flat_bytes(out)
            if (
                source is None
                or not np.may_share_memory(flat, source)
                or address(flat) == address(source)
            ):
                return flat
    return np.empty(bundle.nbytes, np.uint8)
