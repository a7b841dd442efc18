"""all_reduce, reduce and reduce_scatter: from arguments to results."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from synk_comm._core import moves
from synk_comm._core.bulk import Stretch, agreed
from synk_comm._core.calls import CollectiveCall, encode, kind_of
from synk_comm._core.ops import Array, ReduceOp, check_reducible, check_weight, positive_weight
from synk_comm._core.packing import (
    as_array,
    bare,
    bundles,
    contiguous,
    flat_bytes,
    is_list,
    new_arrays,
    overlap,
    pack,
    place_for,
    unpack,
)
from synk_comm._core.reductions import first_round, folder, reduce_stretch
from synk_comm._core.steps import CheckedCall, Steps, check_out
from synk_comm._core.table import Arguments, CollectiveRow


def reduce(steps: Steps, row: CollectiveRow, given: Arguments) -> CheckedCall:
    """Prepare a reduce or all_reduce."""
    fabric, x, out = steps.fabric, given.x, given.out
    root = steps.check_rank(given.root) if row.root == "receives" else None
    op = ReduceOp.parse(given.op)
    weight = check_weight(given.weight, op)
    many = is_list(x if x is not None else out)
    arrays = None if x is None else [as_array(array) for array in (x if many else [x])]
    receives = root in (None, steps.rank)
    outs = _out_list(out, many, arrays) if receives else None
    known = arrays if arrays is not None else outs
    kinds = () if known is None else tuple(kind_of(array) for array in known)
    for array in known or ():
        check_reducible(array.dtype, op)
    weight = 0.0 if arrays is None else weight
    call = CollectiveCall(row.name, op.value, -1 if root is None else root, kinds, (), weight, many)
    sources = [contiguous(array) for array in arrays] if arrays is not None and weight else None
    parts = bundles(kinds)  # none if this rank knows no dtypes and shapes
    # One bundle must not overwrite what the next one has still to read.
    if len(parts) > 1 and sources is not None and outs is not None and overlap(sources, outs):
        sources = [array.copy() for array in sources]
    first = None if sources is None else pack(sources, parts[0])

    def finish(calls: Sequence[CollectiveCall], deadline: float) -> Any:
        plan = agreed(calls)
        kinds, many = calls[plan.ranks[0]].arrays, calls[plan.ranks[0]].many
        results = outs or new_arrays(kinds if receives else ())
        for which, bundle in enumerate(bundles(kinds)):
            source = first if which == 0 or sources is None else pack(sources, bundle)
            target = place_for(bundle, results, source) if receives else None
            stretch = Stretch(bundle.dtype, bundle.nbytes, source, target)
            reduce_stretch(fabric, plan, stretch, deadline, posted=which == 0)
            if target is not None:
                unpack(target, bundle, results)
        plan.finish()
        if many or not receives:
            return results if receives else None
        return bare(results[0]) if outs is None else results[0]

    fill, part = first_round(fabric, parts[0].nbytes if parts else 0, first)
    return CheckedCall(call, encode(call), finish, fill, root, part)


def reduce_scatter(steps: Steps, row: CollectiveRow, given: Arguments) -> CheckedCall:
    size, out, many = steps.size, given.out, is_list(given.x)
    op = ReduceOp.parse(given.op)
    weight = positive_weight(given.weight, op, row.name)
    arrays = [contiguous(as_array(array)) for array in (given.x if many else [given.x])]
    blocks = _blocks(arrays, many, size)
    own, dtype = kind_of(blocks[steps.rank]), arrays[0].dtype
    check_reducible(dtype, op)
    if out is not None:
        check_out(out, own)
    kinds = tuple(kind_of(array) for array in arrays)
    call = CollectiveCall(row.name, op.value, -1, kinds, (), weight, many)
    sources = [flat_bytes(block) for block in blocks]
    fill, part = moves.first_parts(steps.fabric, sources)

    def finish(calls: Sequence[CollectiveCall], deadline: float) -> Any:
        plan = agreed(calls)
        block = moves.room(own, out, arrays)
        stretch = Stretch(dtype, block.nbytes, None, flat_bytes(block))
        moves.deal(steps.fabric, calls, sources, folder(plan, stretch), deadline)
        moves.settle([block], [out])
        plan.finish()
        return bare(block) if out is None else out

    return CheckedCall(call, encode(call), finish, fill, part=part)


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
