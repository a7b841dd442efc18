"""Demo 5: batch_s=, which picks rows of data that stay in the processes (on GPUs: in their memory).

    python demo_5.py [--processes 2] [--devices cpu]

The data is scattered once, into shared variables. A call says which rows of those it is about, and
nothing is copied between processes, or to a GPU, any more.
"""

import numpy as np

import synkhronos as synk
from synkhronos.engine import T, engine
from synkhronos_examples.demos.options import parsed

n = synk.fork(**parsed(__doc__))
ranks = range(n)
x = T.fmatrix("x")
y = T.ivector("y")
signed = x.sum(axis=1) * T.cast(2 * y - 1, "float32")

# The variables that hold data are inputs by way of givens, and are named in sliceable_shareds.
# (Theano keeps float arrays on the GPU. Integers stay in the host's memory, which is as good here:
# they are few.)
xs = engine.shared(np.zeros((1, 3), dtype="float32"), name="xs")
ys = engine.shared(np.zeros(1, dtype="int32"), name="ys")
f = synk.function(
    [],
    [signed.mean(), (signed, "gather")],
    givens=[(x, xs), (y, ys)],
    sliceable_shareds=[xs, ys],
)
f_plain = engine.function([x, y], [signed.mean(), signed])
synk.distribute()

rng = np.random.RandomState(0)
x_dat = rng.standard_normal((50, 3)).astype("float32")
y_dat = rng.randint(2, size=50).astype("int32")
synk.scatter([xs, ys], [x_dat, y_dat])
lengths = synk.get_lengths(xs)
begins = np.concatenate([[0], np.cumsum(lengths)])
print(f"\nrows per rank: {lengths}")


def check(name, per_rank, **call):
    """Call f, and the plain function on the rows that this selects, given for each rank."""
    rows = np.concatenate(
        [np.arange(begins[rank], begins[rank + 1])[per_rank[rank]] for rank in ranks]
    )
    result, values = f(**call)
    expected, expected_values = f_plain(x_dat[rows], y_dat[rows])
    print(f"{name:<34} {len(values):3d} rows, mean {result:+.4f}")
    np.testing.assert_allclose(result, expected, rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(values, expected_values, rtol=1e-6)


# Without batch_s: all rows that the ranks have.
check("all", [slice(None)] * n)

# One selection, which every rank applies to its own rows.
check("batch_s=slice(2, 5)", [slice(2, 5)] * n, batch_s=slice(2, 5))
check("batch_s=[0, 4, 1]", [[0, 4, 1]] * n, batch_s=[0, 4, 1])

# A list with one selection per rank: slices, lists or arrays of indexes; lengths may differ.
slices = [slice(rank, rank + 4) for rank in ranks]
check("batch_s=a slice for each rank", slices, batch_s=slices)
indexes = [rng.permutation(lengths[rank])[: 3 + rank] for rank in ranks]
check("batch_s=indexes for each rank", indexes, batch_s=indexes)

# Slicing works on these variables, too; so a whole test set needs little memory.
check("num_slices=3", [slice(None)] * n, num_slices=3)
check("indexes for each rank, num_slices=2", indexes, batch_s=indexes, num_slices=2)

# An epoch: each rank shuffles its rows, and deals them into as many batches as the others.
seen = 0
orders = [np.array_split(rng.permutation(length), 5) for length in lengths]
for batch in zip(*orders):
    _, values = f(batch_s=list(batch))
    rows = np.concatenate([begins[rank] + batch[rank] for rank in ranks])
    np.testing.assert_allclose(values, f_plain(x_dat[rows], y_dat[rows])[1], rtol=1e-6)
    seen += len(values)
assert seen == len(x_dat)

# Inputs of both kinds can be mixed: `batch` then picks among the inputs, before they are
# scattered, and `batch_s` among the rows that are there.
w = T.fvector("w")
g = synk.function([w], (w * signed).mean(), givens=[(x, xs), (y, ys)], sliceable_shareds=[xs, ys])
w_dat = rng.standard_normal(80).astype("float32")
result = g(w_dat, batch=slice(10, 10 + 6 * n), batch_s=slice(6))
rows = np.concatenate([begins[rank] + np.arange(6) for rank in ranks])
expected = (w_dat[10 : 10 + 6 * n] * f_plain(x_dat[rows], y_dat[rows])[1]).mean()
np.testing.assert_allclose(result, expected, rtol=1e-4, atol=1e-6)

synk.close()
print("All assertions passed.")
