"""Rows of arrays on devices: `batch_s` and `num_slices`."""

from __future__ import annotations

import numpy as np
import pytest
import theano.tensor as T
from _lib import exact, needs_reductions, same, shared, still_there, values


def chosen_by(batch, value):
    return value[np.array(batch, int) if isinstance(batch, list) else batch]


# Of the lengths of the ranks' rows: one for all ranks, and others.
FOR_ALL = {
    "steps": lambda lengths: slice(None, None, -2),
    "indexes": lambda lengths: [0, min(lengths) - 1, 0],
}
FOR_EACH = {
    "masks": lambda lengths: [np.arange(k) % 2 == 0 for k in lengths],
    "uneven": lambda lengths: [[0, 1, 1, 2, 0]] + [[0]] * (len(lengths) - 1),
    "none on the last": lambda lengths: [[0, 1]] + [[]] * (len(lengths) - 1),
}


@pytest.mark.parametrize("dtype", ["float32", "float64", "int32"])
@pytest.mark.parametrize("kind", [*FOR_ALL, *FOR_EACH])
def test_rows_of_resident_data_are_selected_on_each_rank(synk, n, place, dtype, kind):
    count = 5 * n + 2
    rows, labels = values(dtype, (count, 3)), values("int32", (count,))
    x, y = T.TensorType(dtype, (False, False))("x"), T.ivector("y")
    s_x, s_y = shared(rows[:1], place, "s_x"), shared(labels[:1], place, "s_y")
    f = synk.function(
        [],
        [((x + x).sum(axis=0), "sum"), (x, "gather"), (y + s_y, "gather"),
         (s_x.max(axis=0), "max")],
        givens={x: s_x, y: s_y},
        sliceable_shareds=[s_x, s_y],
    )  # fmt: skip
    synk.scatter([s_x, s_y], [rows, labels])
    held, marks = np.array_split(rows, n), np.array_split(labels, n)
    lengths = [len(part) for part in held]
    selection = {**FOR_ALL, **FOR_EACH}[kind](lengths)
    parts = [selection] * n if kind in FOR_ALL else selection
    chosen = np.concatenate([chosen_by(s, part) for s, part in zip(parts, held)])
    chosen_marks = np.concatenate([chosen_by(s, part) for s, part in zip(parts, marks)])
    for num_slices in (1, 2, 3):
        total, gathered, ys, top = f(batch_s=selection, num_slices=num_slices)
        same(total, 2 * exact(chosen).sum(axis=0))
        np.testing.assert_array_equal(gathered, chosen)
        np.testing.assert_array_equal(ys, 2 * chosen_marks)
        same(top, exact(chosen).max(axis=0), dtype)
    still_there(s_x, place)
    np.testing.assert_array_equal(synk.gather(s_x, nd_up=0), rows)


@pytest.mark.parametrize("dtype", ["float32", "float64", "float16"])
def test_updates_accumulate_over_slices_by_their_ops(synk, n, device_set, place, dtype):
    needs_reductions(device_set, dtype)
    x = T.TensorType(dtype, (False, False))("x")
    start = values(dtype, (3,), 3)
    ops = {
        "avg": (abs(x).mean(axis=0), lambda a: abs(a).mean(axis=0)),
        "sum": (abs(x).sum(axis=0), lambda a: abs(a).sum(axis=0)),
        "max": (x.max(axis=0), lambda a: a.max(axis=0)),
        "min": (x.min(axis=0), lambda a: a.min(axis=0)),
        "prod": (x.prod(axis=0), lambda a: a.prod(axis=0)),
        "last": (x[-1], lambda a: a[-1]),
    }
    targets = {op: shared(start, place, op) for op in ops}
    f = synk.function([x], x.mean(), updates=[(targets[op], ops[op][0], op) for op in ops])
    assert f.update_modes == tuple(ops)
    for count in (4 * n + 1, n, max(n - 1, 1)):
        rows = values(dtype, (count, 3))
        for num_slices in (1, 3, 7):
            synk.broadcast(list(targets.values()), [start] * len(ops))
            same(f(rows, num_slices=num_slices), exact(rows).mean(), dtype)
            for rank, part in enumerate(np.array_split(exact(rows), n)):
                for op, target in targets.items():
                    want = ops[op][1](part) if len(part) else exact(start)
                    what = f"{op}, {count} rows, {num_slices} slices, rank {rank}"
                    same(synk.get_value(rank, target), want, dtype, what)
    still_there(targets["avg"], place)
