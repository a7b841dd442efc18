"""Which rows are used: `batch`, `batch_s`, `num_slices`, `Data` and arrays of any layout."""

from __future__ import annotations

import numpy as np
import pytest
import theano.tensor as T
from _lib import exact, needs_reductions, same, shared, shares, still_there, values

LENGTH = 23
BATCHES = [
    None,
    5,
    -4,
    slice(2, 19, 3),
    slice(None, None, -1),
    slice(20, 4, -2),
    [5, 0, 0, 3, -1],
    np.array([7, 7, 1], "int32"),
    np.arange(LENGTH) % 3 == 0,
    [True] * 2 + [False] * (LENGTH - 2),
    [],
    1,
]


def chosen_by(batch, value):
    if batch is None or isinstance(batch, int):
        return value[:batch]
    if isinstance(batch, list):
        batch = np.array(batch, bool if batch and isinstance(batch[0], bool) else int)
    return value[batch]


@pytest.mark.parametrize("dtype", ["float32", "float16", "int32"])
@pytest.mark.parametrize("batch", BATCHES, ids=lambda batch: str(batch)[:24])
def test_batches_select_rows(synk, n, device_set, dtype, batch):
    needs_reductions(device_set, dtype)
    x, y = T.TensorType(dtype, (False, False))("x"), T.TensorType(dtype, (False,))("y")
    f = synk.function([x, y], [((x + x).sum(axis=0), "sum"), (x * 2, "gather"), (y + y, "gather")])
    rows, more = values(dtype, (LENGTH, 3)), values(dtype, (LENGTH,), 1)
    chosen, other = chosen_by(batch, rows), chosen_by(batch, more)
    for a, b in ((rows, more), (synk.data(rows), synk.data(more)), (rows, synk.data(more))):
        for num_slices in (1, 2):
            total, doubled, ys = f(a, b, batch=batch, num_slices=num_slices)
            assert f.rows == tuple(len(share) for share in shares(chosen, n))
            same(total, 2 * exact(chosen).sum(axis=0))
            same(doubled, 2 * exact(chosen), dtype)
            same(ys, 2 * exact(other), dtype)


LAYOUTS = {
    "fortran": np.asfortranarray,
    "every other row": lambda a: np.repeat(a, 2, axis=0)[::2],
    "every other column": lambda a: np.repeat(a, 2, axis=1)[:, ::2],
    "reversed": lambda a: a[::-1].copy()[::-1],
    "transposed": lambda a: a.T.copy().T,
    "broadcast": lambda a: np.broadcast_to(a[:1], a.shape),
    "unaligned": lambda a: (
        np.frombuffer(b"." + a.tobytes(), "uint8")[1:].view(a.dtype).reshape(a.shape)
    ),
    "other byte order": lambda a: a.astype(a.dtype.newbyteorder()),
}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_inputs_of_any_layout(synk, layout):
    x, w = T.matrix("x", dtype="float32"), T.matrix("w", dtype="float32")
    f = synk.function([x], [(x.dot(w), "gather"), (x.sum(axis=0), "sum")], bcast_inputs=[w])
    rows, weights = values("float32", (9, 4)), values("float32", (4, 2))
    laid, laid_weights = LAYOUTS[layout](rows), LAYOUTS[layout](weights)
    for batch in (None, [8, 1, 1], slice(7, 0, -3)):
        chosen = chosen_by(batch, np.array(laid, "float32"))
        product, total = f(laid, laid_weights, batch=batch)
        same(product, exact(chosen) @ np.array(laid_weights, "float64"), "float32")
        same(total, exact(chosen).sum(axis=0), "float32")


def test_data_grow_shrink_and_change(synk):
    """Every rank reads what the master has written last, wherever it lies."""
    x = T.matrix("x", dtype="float32")
    f = synk.function([x], [(x + 0, "gather"), (x.sum(), "sum")])
    held = synk.data(values("float32", (3, 2)), oversize=1.5)
    for length in (3, 4, 40, 2, 1000, 7):
        kept = np.array(held.data)
        held.set_length(length)
        np.testing.assert_array_equal(held.data[: len(kept)], kept[:length])
        for _ in range(2):
            held[:] = values("float32", (length, 2), seed=length)
            gathered, total = f(held)
            np.testing.assert_array_equal(gathered, held.data)
            same(total, exact(held.data).sum())
            held[0] = 5
            np.testing.assert_array_equal(f(held)[0], held.data)
    held.set_value(values("float32", (0, 2)))
    assert f(held)[0].shape == (0, 2)
    held.free_memory()
    held.set_value(values("float32", (5, 2)))
    np.testing.assert_array_equal(f(held)[0], held.data)


SELECTIONS = {
    "all": lambda lengths: None,
    "int": lambda lengths: 2,
    "range": lambda lengths: slice(1, min(lengths)),
    "steps": lambda lengths: slice(None, None, -2),
    "indexes": lambda lengths: [0, min(lengths) - 1, 0],
    "array": lambda lengths: np.array([1, 0, -1]),
    "a range per rank": lambda lengths: [slice(r % 2, k) for r, k in enumerate(lengths)],
    "indexes per rank": lambda lengths: [[*range(k)][::-1][: 1 + r] for r, k in enumerate(lengths)],
    "masks per rank": lambda lengths: [np.arange(k) % 2 == 0 for k in lengths],
    "uneven": lambda lengths: [[0, 1, 1, 2, 0]] + [[0]] * (len(lengths) - 1),
    "none on the first": lambda lengths: [[]] + [[0, 1]] * (len(lengths) - 1),
}  # fmt: skip


@pytest.mark.parametrize("dtype", ["float32", "float64", "int32"])
@pytest.mark.parametrize("kind", SELECTIONS)
def test_rows_of_resident_data_are_selected_on_each_rank(synk, n, place, dtype, kind):
    """Sliceable shared variables, given for an input and used by themselves, with a label."""
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
    held, marks = shares(rows, n), shares(labels, n)
    selection = SELECTIONS[kind]([len(part) for part in held])
    if n == 1 and kind == "none on the first":
        selection = [[0]]
    parts = selection if isinstance(selection, list) and "rank" in kind + "rank" * (
        kind in ("uneven", "none on the first")
    ) else [selection] * n  # fmt: skip
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
    names = ["avg", "sum", "max", "min", "prod", "last"]
    start = values(dtype, (3,), 3)
    targets = {name: shared(start, place, name) for name in names}
    row = abs(x)
    new = {
        "avg": row.mean(axis=0),
        "sum": row.sum(axis=0),
        "max": x.max(axis=0),
        "min": x.min(axis=0),
        "prod": x.prod(axis=0),
        "last": x[-1],
    }
    f = synk.function([x], x.mean(), updates=[(targets[k], new[k], k) for k in names])
    assert f.update_modes == tuple(names)
    for count in (4 * n + 1, 2 * n, n, max(n - 1, 1)):
        rows = values(dtype, (count, 3))
        for num_slices in (1, 2, 3, 7):
            synk.broadcast(list(targets.values()), [start] * len(names))
            same(f(rows, num_slices=num_slices), exact(rows).mean(), dtype)
            for rank, part in enumerate(shares(exact(rows), n)):
                for name, target in targets.items():
                    want = {
                        "avg": lambda a: abs(a).mean(axis=0),
                        "sum": lambda a: abs(a).sum(axis=0),
                        "max": lambda a: a.max(axis=0),
                        "min": lambda a: a.min(axis=0),
                        "prod": lambda a: a.prod(axis=0),
                        "last": lambda a: a[-1],
                    }[name](part) if len(part) else exact(start)  # fmt: skip
                    what = f"{name}, {count} rows, {num_slices} slices, rank {rank}"
                    same(synk.get_value(rank, target), want, dtype, what)
    still_there(targets["avg"], place)


def test_updates_that_no_row_goes_into_happen_on_ranks_without_rows(synk, n, place):
    x = T.matrix("x", dtype="float32")
    mean, rate = (shared(np.ones(3, "float32"), place, name) for name in ("mean", "rate"))
    counter = shared(np.int32(0), "host", "counter")
    f = synk.function(
        [x],
        (x * rate).sum(axis=0).mean(),
        updates=[(mean, mean + x.mean(axis=0)), (rate, rate * 0.5), (counter, counter + 1)],
    )
    means = [np.ones(3)] * n
    for done, count in enumerate((0, 1, n - 1, n + 1, 0, 2 * n), 1):
        rows = values("float32", (count, 3))
        f(rows)
        parts = shares(exact(rows), n)
        means = [m + p.mean(axis=0) if len(p) else m for m, p in zip(means, parts)]
        for rank in range(n):
            same(synk.get_value(rank, mean), means[rank], "float32", f"{count} rows, rank {rank}")
            same(synk.get_value(rank, rate), np.full(3, 0.5**done), "float32")
        np.testing.assert_array_equal(synk.gather(counter), np.full(n, done))
    still_there(rate, place)
