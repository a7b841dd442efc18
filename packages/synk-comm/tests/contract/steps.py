"""Steps: collectives of which each rank knows what it gives and, by NumPy, what it must get."""

from __future__ import annotations

from itertools import count
from typing import Any, NamedTuple

import numpy as np

from synk_comm import PeerDeclined
from synk_comm._core.table import TABLE

from .tools import (
    ANYTHING,
    FOLDS,
    NUMBERS,
    SHAPES,
    bits,
    data,
    equal,
    equal_reduced,
    folded,
    layouts,
    outs_like,
    raises,
)

_ROWS = [row for row in TABLE.values() if row.sends and not row.is_of_objects]
REDUCTIONS = [*(row.name for row in _ROWS if row.makes == "fold"), "split"]
MOVES = [*(row.name for row in _ROWS if row.makes != "fold"), "ring"]
LISTED = [row.name for row in _ROWS if row.sends == "whole"]
NOBODY = (False,) * 5


class Step(NamedTuple):
    """One collective, as all ranks call it, so many ``times``; of several ``shapes`` a list."""

    kind: str
    dtype: Any = "f4"
    shapes: tuple[tuple[int, ...], ...] = ((3,),)
    op: str = "sum"
    root: int = 0
    weights: tuple[float, ...] | None = None
    quiet: tuple[bool, ...] = NOBODY
    out: int = 0
    layout: int = 0
    seed: int = 1
    times: int = 3


def values(step, rank, which=0):
    """Return what a rank brings: a new array, in C order; to gather, of a length of its own."""
    shape = step.shapes[which]
    if step.out % 2 and shape and step.kind in ("gather", "all_gather"):
        shape = (shape[0] + rank % 3, *shape[1:])
    dtype = step.dtype[which] if isinstance(step.dtype, tuple) else step.dtype
    return data(100 * step.seed + 10 * which + rank, shape, dtype)


def dealt(step, rank, size):
    """Return the list of arrays that a rank deals out, all of one shape or each of its own."""
    shape = step.shapes[0]
    more = [dest % 3 if step.out % 2 and shape else 0 for dest in range(size)]
    shapes = [(shape[0] + n, *shape[1:]) if n else shape for n in more]
    return [
        data(100 * step.seed + 10 * dest + rank, s, step.dtype) for dest, s in enumerate(shapes)
    ]


def laid_out(step, x):
    ways = list(layouts(x)) if step.layout else [x]
    return ways[step.layout % len(ways)]


def place(step, like):
    ways = list(outs_like(like)) if step.out > 1 else [None]
    return ways[step.out % len(ways)]


def reduced(step, parts, ranks):
    """Return what NumPy says; of a weighted average a pair, with its tolerance."""
    weights = [1.0 if step.weights is None else step.weights[r] for r in ranks]
    parts = [part for part, weight in zip(parts, weights) if weight]
    weights = [weight for weight in weights if weight]
    if len(set(weights)) == 1:
        return folded(parts, step.op)
    exact = sum(w * part.astype("c16") for w, part in zip(weights, parts)) / sum(weights)
    return exact, 16 * float(np.finfo(parts[0].dtype).eps)


def expected(step, rank, size):
    """Return the list of arrays that a rank gets; a pair stands for a value and its tolerance."""
    kind, root, ranks, whiches = step.kind, step.root, range(size), range(len(step.shapes))
    givers = [r for r in ranks if not step.quiet[r]]
    if kind in ("reduce", "gather") and rank != root:
        return []
    if kind in ("all_reduce", "reduce"):
        return [reduced(step, [values(step, r, w) for r in givers], givers) for w in whiches]
    if kind == "split":
        return [folded([values(step, r) for r in ranks if r % 2 == rank % 2], step.op)]
    if kind == "reduce_scatter":
        return [reduced(step, [dealt(step, r, size)[rank] for r in ranks], ranks)]
    if kind == "broadcast":
        return [values(step, root, w) for w in whiches]
    if kind == "scatter":
        return [dealt(step, root, size)[rank]]
    if kind in ("gather", "all_gather"):
        return [values(step, r, w) if r in givers else None for w in whiches for r in ranks]
    if kind == "all_to_all":
        return [dealt(step, r, size)[rank] for r in ranks]
    return [values(step, (rank - 1) % size)] if kind == "ring" else []


def _deal(step, comm, how):
    """Do a step in which ranks deal out arrays, to one or to all."""
    size, rank, kind, root = comm.size, comm.rank, step.kind, step.root
    xs = [laid_out(step, x) for x in dealt(step, root if kind == "scatter" else rank, size)]
    own = dealt(step, root if kind == "scatter" else rank, size)[rank]
    out = place(step, own)
    if own.ndim and not step.out % 2:  # the same as one array
        together = np.stack if kind != "reduce_scatter" else np.concatenate
        xs = laid_out(step, together(xs).astype(step.dtype))
    if kind == "all_to_all":
        sources = [dealt(step, source, size)[rank] for source in range(size)]
        outs = [np.zeros_like(x) for x in sources] if step.out > 1 else None
        got = comm.all_to_all(xs, out=outs)
        assert outs is None or all(one is out for one, out in zip(got, outs))
        return got
    if kind == "scatter":
        return [comm.scatter(xs if rank == root else None, root, out=out)]
    return [comm.reduce_scatter(xs, step.op, out=out, **how)]


def perform(step, comm):
    """Do a step on one rank; return the list of arrays that it got."""
    size, rank, kind, root = comm.size, comm.rank, step.kind, step.root
    plain = [values(step, rank, which) for which in range(len(step.shapes))]
    mine = [laid_out(step, x) for x in plain]
    listed = len(mine) > 1
    given = None if step.quiet[rank] else mine if listed else mine[0]
    how = {} if step.weights is None else {"weight": step.weights[rank]}
    if kind in ("all_reduce", "reduce"):
        outs = [place(step, x) for x in plain]
        out = None if outs[0] is None else outs if listed else outs[0]
        to = () if kind == "all_reduce" else (root,)
        got = getattr(comm, kind)(given, step.op, *to, out=out, **how)
        if kind == "reduce" and rank != root:
            assert got is None
            return []
        assert out is None or listed or got is out
        return list(got) if listed else [got]
    if kind == "broadcast":
        xs = mine if rank == root else [np.zeros_like(x, order="F") for x in plain]
        comm.broadcast(xs if listed else xs[0], root)
        return xs
    if kind in ("gather", "all_gather"):
        out = None
        if not listed and step.out > 1:
            out = [None if step.quiet[r] else np.zeros_like(values(step, r)) for r in range(size)]
        got = getattr(comm, kind)(given, *([root] if kind == "gather" else []), out=out)
        if kind == "gather" and rank != root:
            assert got is None
            return []
        return [x for arrays in got for x in arrays] if listed else list(got)
    if kind in ("reduce_scatter", "all_to_all", "scatter"):
        return _deal(step, comm, how)
    if kind == "ring":
        dest, source, tag = (rank + 1) % size, (rank - 1) % size, step.seed
        out, is_small = place(step, values(step, source)), mine[0].nbytes < 1000
        later = comm.irecv(source, tag=tag, out=out) if tag % 3 == 1 else None
        # Small ones wait for nobody.
        send = comm.send if tag % 3 == 2 and is_small else comm.isend
        gone = send(mine[0], dest, tag=tag)
        got = later.wait() if later else comm.recv(source, tag=tag, out=out)
        assert out is None or got is out
        for request in filter(None, (gone, later)):
            request.wait()
            assert request.test()
        return [later.wait() if later else got]
    if kind == "split":
        with comm.split(rank % 2) as part:
            return [part.all_reduce(mine[0], step.op)]
    if rank == root:
        assert comm.decline("not now") == {}
    else:
        call = [comm.barrier, lambda: comm.all_reduce(np.ones(3)), lambda: comm.all_gather(mine[0])]
        raises(PeerDeclined, "not now", call[step.seed % 3])
    return []


def check(comm, step):
    """Do a step; return the list of arrays that this rank got, which is what NumPy says."""
    got, wanted = perform(step, comm), expected(step, comm.rank, comm.size)
    assert len(got) == len(wanted), step
    plain = [value for value in wanted if isinstance(value, np.ndarray)]
    if step.kind == "reduce_scatter":
        plain = dealt(step, comm.rank, comm.size)
    nbytes = sum(x.nbytes for x in plain)
    in_order = comm.ordered_bytes is None or nbytes <= comm.ordered_bytes
    # What is new and has no axes is a scalar; what was given is not, nor what is in lists.
    is_new = step.kind == "split" or (step.out < 2 and step.kind != "broadcast")
    scalar = step.shapes == ((),) and is_new
    for array, value in zip(got, wanted):
        assert isinstance(array, np.generic) == (scalar and value is not None), step
        if value is None:
            assert array is None, step
        elif isinstance(value, tuple):
            np.testing.assert_allclose(array, value[0], value[1], value[1], err_msg=str(step))
        elif step.kind in REDUCTIONS and not in_order:
            equal_reduced(comm, array, value, nbytes)
        elif value.dtype.names:  # there may be padding
            equal(array, value)
        else:
            value = np.asarray(value[()]) if isinstance(array, np.generic) else value
            assert (array.dtype, array.shape) == (value.dtype, value.shape), step
            same = bits(np.ascontiguousarray(array)) == bits(np.ascontiguousarray(value))
            assert same, f"{step}: {array} is not {value}"
    return got


MIXED: dict[bool, list[Any]] = {
    True: [
        *[("f4", (3,)), ("f8", ()), ("f4", (70_001,)), ("i4", (0, 2)), ("f2", (2, 2)), ("g", (1,))],
        *[(">f4", (4,)), ("i1", (200_000,)), (">i2", (4,)), (">i2", (2, 3))],
    ],
    False: [
        *[("f4", (3,)), ("U5", ()), ("u1", (200_001,)), ("f8", (0,)), ("M8[s]", (2,))],
        *[(">f8", (90_000,)), ("S3", (1,)), (">i2", (4,))],
    ],
}
"""Dtypes and shapes of lists: whether it is reduced."""


def ops_of(dtype):
    return [op for op in FOLDS if op != "avg" or np.dtype(dtype).kind in "fc"]


def table(size):
    """Yield steps of every kind, dtype and op, each with the next shape, root, layout and out."""
    numbers, quiet = count(), [tuple(who == rank for rank in range(size)) for who in range(size)]
    for kind in [*REDUCTIONS[:3], *MOVES]:
        for dtype in NUMBERS if kind in REDUCTIONS else ANYTHING:
            for op in ops_of(dtype) if kind in REDUCTIONS else ["sum"]:
                for shape in SHAPES[:: 1 if kind == "all_reduce" else 2]:
                    n = next(numbers)
                    how = {"out": n % 6, "layout": n % 7, "seed": n % 5}
                    yield Step(kind, dtype, (shape,), op, n % size, **how)
    for kind in LISTED:
        dtypes, shapes = zip(*MIXED[kind in REDUCTIONS])
        for out in (1, 2):
            for who in [NOBODY, *(quiet[1:2] if kind != "broadcast" else [])]:
                yield Step(kind, dtypes, shapes, root=next(numbers) % size, quiet=who, out=out)
                yield Step(kind, "f8", ((4,),), root=next(numbers) % size, quiet=who, out=2 * out)
    for kind in REDUCTIONS[:3]:
        for dtype in ("f2", ">f2", "f4", ">f8", "c8"):
            for scale in (1.0, 1e-30, 1e30):
                weights = tuple(scale * (1.0 + 3 * rank) for rank in range(size))
                for shape in ((), (31,)):
                    yield Step(kind, dtype, (shape,), "avg", next(numbers) % size, weights)
    if size > 1:
        weights = (0.0, *[1.0] * (size - 1))
        yield Step("all_reduce", "f4", ((70_001,),), "avg", weights=weights)
