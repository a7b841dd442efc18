"""Every call with device arrays, and that it gives what it gives for arrays of the host."""

from __future__ import annotations

import numpy as np
from contract.tools import data, equal

STRUCT = np.dtype([("a", "i2"), ("b", "f8", (2,))], align=True)
REDUCED = {
    "i": ["sum", "prod", "min", "max"],
    "u": ["sum", "prod", "min", "max"],
    "f": ["sum", "prod", "min", "max", "avg"],
    "c": ["sum", "avg"],
    "b": ["min", "max"],
}
MOVED = ["?", ">i4", "M8[ns]", "U3", "V7", STRUCT]


def results(comm, put, dtype):
    """Make every call with arrays that ``put`` makes; return what came and what was overwritten."""
    me, size, last = comm.rank, comm.size, comm.size - 1
    whole = STRUCT if dtype is STRUCT else np.dtype(dtype)

    def array(*shape):
        return put(data(me, shape, whole))

    def zeros(*shape):
        return put(np.zeros(shape, whole))

    x, rows, ragged = array(7, 5), array(2 * size, 3), [array(rank, 2) for rank in range(size)]
    got = []
    for op in REDUCED.get(whole.kind, []) if whole.isnative else []:
        for shape in [(), (0,), (3, 1, 2)]:
            y = array(*shape)
            got += [comm.all_reduce(y, op), comm.reduce(y, op, last), y]
            assert comm.all_reduce(y, op, out=y) is y
            got += [y, *comm.all_reduce([x, y], op)]
        mine, unused = (x, None) if me == last else (None, zeros(1))
        got += [comm.all_reduce(mine, op, out=zeros(7, 5)), comm.reduce(mine, op, last, out=unused)]
        got.append(comm.reduce_scatter(rows, op))
        out = zeros(me, 2)
        assert comm.reduce_scatter(ragged, op, out=out) is out
        got.append(out)
        if op == "avg":
            weight = 1e200 * (1.0 + 3 * me)
            got.append(comm.all_reduce(x, op, weight=weight))
            got.append(comm.reduce_scatter(rows, op, weight=weight))
            nothing = put(np.full((7, 5), np.nan, whole)) if me else x
            comm.all_reduce(nothing, op, weight=float(not me), out=nothing)
            got.append(nothing)
    block, places = array(size, 7, 5), [zeros(rank, 2) for rank in range(size)]
    comm.all_gather(block[me], out=block)
    got += [*comm.all_gather(x), block, *comm.all_gather(ragged[me])]
    for arrays in comm.all_gather([x, rows]):
        got += arrays
    got += comm.all_gather(ragged[me], out=places)
    for root in range(size):
        quiet = me == (root + 1) % size and size > 1
        unused = None if me == root else zeros(1)
        got += comm.gather(None if quiet else ragged[me], root, out=unused) or []
        dealt = comm.scatter(ragged if me == root else None, root, out=zeros(me, 2))
        table = array(size, 2) if me == root else None
        got += [dealt, comm.scatter(table, root, out=zeros(2))]
        moved = [array(3), array(2, 2)]
        assert comm.broadcast(moved, root) is moved
        got += moved
    mine = [array(me + 2 * rank) for rank in range(size)]
    theirs = [zeros(rank + 2 * me) for rank in range(size)]
    got += [*comm.all_to_all(mine), *comm.all_to_all(mine, out=theirs)]
    return got + comm.all_to_all(array(size, 3))


def compare(comm, put, get, dtypes):
    """Make every call on host arrays, and on those that ``put`` makes of them and ``get`` reads."""
    for dtype in dtypes:
        with np.errstate(over="ignore"):  # products of float16
            expected = results(comm, np.array, dtype)
            got = results(comm, put, dtype)
        assert len(got) == len(expected), dtype
        for number, (one, other) in enumerate(zip(got, expected)):
            assert (one is None) == (other is None), (dtype, number)
            if one is None:
                continue
            one, other = get(one), np.asarray(other)
            assert (one.shape, one.dtype) == (other.shape, other.dtype), (dtype, number)
            if one.dtype.kind in "fc":
                eps = 8 * float(np.finfo(one.dtype).eps)
                np.testing.assert_allclose(one, other, eps, eps, err_msg=f"{dtype}, {number}")
            elif one.dtype.names is None:
                assert one.tobytes() == other.tobytes(), (dtype, number)
            else:
                equal(one, other)
