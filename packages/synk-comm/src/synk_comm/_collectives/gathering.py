"""The collectives that only move arrays: from arguments to results."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from synk_comm._core import moves
from synk_comm._core.calls import CollectiveCall, count_bytes, encode, kind_of, received
from synk_comm._core.ops import Array
from synk_comm._core.packing import (
    NUMBERS,
    as_array,
    bare,
    bundles,
    contiguous,
    flat_bytes,
    is_list,
    new_arrays,
    pack,
    place_for,
    unpack,
)
from synk_comm._core.steps import CheckedCall, Steps, check_out, pickled, unpickled
from synk_comm._core.table import TABLE, Arguments, CollectiveRow


def barrier(steps: Steps, row: CollectiveRow, given: Arguments) -> CheckedCall:  # noqa: ARG001
    call = CollectiveCall("barrier")
    return CheckedCall(call, encode(call), lambda calls, deadline: None)  # noqa: ARG005


def broadcast(steps: Steps, row: CollectiveRow, given: Arguments) -> CheckedCall:
    root, is_number = steps.check_rank(given.root), isinstance(given.x, NUMBERS)
    x = as_array(given.x) if is_number else given.x
    call = _broadcast_call(steps, row.name, x, root)
    own = list(x) if call.many else [x]
    parts = bundles(call.arrays)
    source = pack(own, parts[0]) if steps.rank == root else None

    def finish(calls: Sequence[CollectiveCall], deadline: float) -> Any:
        kinds, many = calls[root].arrays, calls[root].many
        arrays = new_arrays(kinds) if x is None else own
        for which, bundle in enumerate(bundles(kinds)):
            if steps.rank != root:
                data = place_for(bundle, arrays)
            else:
                data = source if which == 0 and source is not None else pack(arrays, bundle)
            moves.spread(steps.fabric, root, data, deadline, which == 0)
            if steps.rank != root:
                unpack(data, bundle, arrays)
        if x is None:
            return arrays if many else bare(arrays[0])
        return bare(x) if is_number else x

    return CheckedCall(call, encode(call), finish, lambda: steps.fabric.post(source))


def _broadcast_call(steps: Steps, kind: str, x: Any, root: int) -> CollectiveCall:
    is_root = steps.rank == root
    if x is None and not is_root:
        return CollectiveCall(kind, root=root)
    many = is_list(x)
    for array in x if many else [x]:
        if not isinstance(array, np.ndarray):
            got = type(array).__name__
            if is_root:
                raise TypeError(
                    f"x must be an ndarray, or a list of them, on the root, rank {root}, got "
                    f"{got}; objects go by broadcast_object"
                )
            raise TypeError(
                f"x must be an ndarray, a list of them or None: here, on rank {steps.rank}, it is "
                f"where the array of rank {root} goes, got {got}; None makes a new one, and "
                "objects go by broadcast_object"
            )
        if not is_root and not array.flags.writeable:
            raise ValueError("x must be writeable, except on the root")
    kinds = tuple(kind_of(array) for array in (x if many else [x]))
    return CollectiveCall(kind, root=root, arrays=kinds, many=many)


def exchange(steps: Steps, row: CollectiveRow, given: Arguments) -> CheckedCall:
    """Prepare a gather, all_gather, scatter or all_to_all."""
    fabric, rank, size, x = steps.fabric, steps.rank, steps.size, given.x
    root = steps.check_rank(given.root) if row.root else None
    senders = range(size) if root is None or row.root == "receives" else [root]
    receives = row.root != "receives" or rank == root
    out = given.out if receives else None
    dealt = row.sends == "parts"
    many = is_list(x) and not dealt
    if dealt:
        arrays = _one_for_each(steps, row.name, x, senders)
    else:
        arrays = None if x is None else [as_array(array) for array in (x if many else [x])]
    if out is not None and many:
        raise ValueError(f"out of {row.name} does not go together with a list of arrays")
    outs = None if out is None else _outs(out, None if row.makes == "one" else size, row.name)
    call = CollectiveCall(
        row.name,
        root=-1 if root is None else root,
        arrays=_kinds_of(arrays),
        outs=_kinds_of(outs),
        weight=float(dealt or arrays is not None),
        many=many,
    )
    sources = None if arrays is None else [flat_bytes(contiguous(array)) for array in arrays]
    if sources is not None and not dealt:
        sources = sources if len(sources) == 1 else [np.concatenate(sources)]
    whole = None if sources is None else sources[0]
    fill, part = moves.first_parts(fabric, sources) if dealt else (lambda: fabric.post(whole), 0)

    def finish(calls: Sequence[CollectiveCall], deadline: float) -> Any:
        totals = [sum(map(count_bytes, theirs.arrays)) for theirs in calls]
        lists, places = any(theirs.many for theirs in calls), outs or [None] * len(senders)
        kinds = received(calls, rank)
        if lists:
            kinds = [kind and ("|u1", (total,)) for kind, total in zip(kinds, totals)]
        got = [
            moves.room(kind, place, arrays or []) if kind is not None and receives else None
            for kind, place in zip(kinds, places)
        ]
        if dealt:
            moves.deal(fabric, calls, sources, moves.taker(senders, got), deadline)
        else:
            moves.collect(fabric, root, whole, got, totals, deadline)
        moves.settle(got, places)
        if out is not None or not receives:
            return out
        if lists:
            return _by_array(got, calls)
        new = [None if array is None else bare(array) for array in got]
        return new[0] if row.makes == "one" else new

    to = root if row.root == "receives" else None
    return CheckedCall(call, encode(call), finish, fill, to, part)


_SHARE = TABLE["all_gather_object"]._replace(name="share")


def share(steps: Steps, obj: Any, deadline: float) -> list[Any]:
    """Send a small object to all ranks, within a collective."""
    prepared = exchange(steps, _SHARE, Arguments(pickled(obj)))
    return [unpickled(data) for data in steps.make_inside(prepared, deadline)]


def _one_for_each(
    steps: Steps, kind: str, xs: Sequence[Any] | None, senders: Sequence[int]
) -> list[Array] | None:
    """Return the arrays of a sender for each rank; None on other ranks."""
    size = steps.size
    if len(senders) == 1:
        steps.check_only_root(kind, xs, senders[0])
    if steps.rank not in senders:
        return None
    if xs is None or len(xs) != size:
        got = "None" if xs is None else f"a list of {len(xs)}"
        raise ValueError(f"{kind} takes a list of {size} here, one for each rank, got {got}")
    given = [contiguous(as_array(x)) for x in xs]
    if len({x.dtype for x in given}) > 1:
        dtypes = ", ".join(str(x.dtype) for x in given)
        raise TypeError(f"{kind} needs arrays of one dtype, got {dtypes}")
    return given


def _kinds_of(arrays: Sequence[Array | None] | None) -> tuple[Any, ...]:
    return () if arrays is None else tuple(None if x is None else kind_of(x) for x in arrays)


def _outs(out: Any, size: int | None, kind: str) -> list[Array | None]:
    """Return the arrays that receive, by sender: of ``size`` ranks, or of a single one."""
    rows = [out]
    if size is not None and isinstance(out, np.ndarray):
        if not out.ndim or out.shape[0] != size:
            raise ValueError(
                f"the first axis of out of {kind} must have length {size}, one row for each "
                f"rank, got shape {out.shape}"
            )
        rows = [out[rank, ...] for rank in range(size)]
    elif size is not None:
        if not isinstance(out, (list, tuple)):
            raise TypeError(f"out must be an ndarray or a list of them, got {type(out).__name__}")
        if len(out) != size:
            raise ValueError(f"out of {kind} must be a list of {size}, got {len(out)}")
        rows = list(out)
    for row in rows:
        if row is not None:
            check_out(row, None)
    return rows


def _by_array(
    gathered: list[Array | None], calls: Sequence[CollectiveCall]
) -> list[list[Array | None]]:
    """Cut each rank's bytes into its arrays; return a list of all ranks' for each array."""
    count = max(len(theirs.arrays) for theirs in calls)
    lists: list[list[Array | None]] = [[None] * len(calls) for _ in range(count)]
    for rank, (flat, theirs) in enumerate(zip(gathered, calls)):
        if flat is not None:
            arrays = new_arrays(theirs.arrays)
            cuts = np.cumsum([array.nbytes for array in arrays])
            for array, text, received in zip(arrays, np.split(flat, cuts), lists):
                np.copyto(flat_bytes(array), text)
                received[rank] = array
    return lists
