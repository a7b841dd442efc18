"""Demo 4: batch=, which picks rows of the inputs before they are scattered.

    python demo_4.py [--processes 2] [--devices cpu]

The whole data set lies in shared memory. A call says which rows it is about, and each process
fetches its part of them by itself, in parallel: shuffling costs the master nothing.
"""

import numpy as np

import synkhronos as synk
from synkhronos.engine import TITLE, T, engine
from synkhronos.extensions.batches import index_batches
from synkhronos_examples.demos.options import parsed

n = synk.fork(**parsed(__doc__))
x = T.fmatrix("x")
y = T.fvector("y")
w = engine.shared(np.zeros(5, dtype="float32"), name="w")
residual = (x * w).sum(axis=1) - y
loss = T.sqr(residual).mean()
f = synk.function([x, y], [loss, (residual, "gather")])
f_plain = engine.function([x, y], [loss, residual])
synk.distribute()

rng = np.random.RandomState(0)
x_dat = rng.standard_normal((100, 5)).astype("float32")
y_dat = (x_dat.dot([1, 2, 3, 4, 5]) + 0.1 * rng.standard_normal(100)).astype("float32")
x_data, y_data = f.build_inputs(x_dat, y_dat)
synk.broadcast(w, rng.standard_normal(5).astype("float32"))

# All that selects rows of a NumPy array, and a number, which means so many from the beginning.
mask = rng.uniform(size=100) < 0.3
batches = {
    "30": (30, slice(30)),
    "slice(20, 73)": (slice(20, 73),) * 2,
    "slice(None, None, 3)": (slice(None, None, 3),) * 2,
    "a list": ([7, 3, 3, 99],) * 2,
    "an array of indexes": (rng.permutation(100)[:41],) * 2,
    "a mask": (mask,) * 2,
}
print()
for name, (batch, key) in batches.items():
    result, rows = f(x_data, y_data, batch=batch)
    expected, expected_rows = f_plain(x_dat[key], y_dat[key])
    print(f"batch={name:<22} {len(rows):3d} rows, loss {result:.4f}")
    np.testing.assert_allclose(result, expected, rtol=1e-4)
    # Rows are scattered, and gathered again, in the order in which the batch names them.
    np.testing.assert_allclose(rows, expected_rows, rtol=1e-3, atol=1e-5)

# Scattering comes after: the shares are equal whichever rows are picked. (batch_s, in demo 5,
# picks from what each process has.)
held = engine.shared(np.zeros(1, dtype="float32"), name="held")
hold = synk.function([x], updates=[(held, x[:, 0])])
hold(x_data, batch=slice(20, 73))
shares = synk.get_lengths(held)
print(f"rows 20 to 72 are divided into {shares}")
assert sum(shares) == 53
assert max(shares) - min(shares) <= 1

# A minibatch that was made elsewhere, for instance by a loader that augments images: Data with
# minibatch=True holds just those rows, and index 0 means the lowest row of the batch.
x_mini = synk.data(x_dat[40:60] + 1, minibatch=True)
result, _ = f(x_mini, y_data, batch=slice(40, 60))
np.testing.assert_allclose(result, f_plain(x_dat[40:60] + 1, y_dat[40:60])[0], rtol=1e-4)

# An epoch: each row once, in random order. The last batch is smaller; averages stay exact.
seen = []
for indexes in index_batches(len(x_data), 32, rng):
    result, _ = f(x_data, y_data, batch=indexes)
    np.testing.assert_allclose(result, f_plain(x_dat[indexes], y_dat[indexes])[0], rtol=1e-4)
    seen.extend(indexes)
assert sorted(seen) == list(range(100))
print(f"an epoch in batches of 32: the losses of plain {TITLE}, on {n} process(es)")

synk.close()
print("All assertions passed.")
