"""Demo 3: shared variables in the workers, read, written, and of different shapes.

    python demo_3.py [--processes 2] [--devices cpu]

Every process has its own copy of each shared variable. All begin with the same value; what
happens then is up to updates, in each process, and to collectives, between them.
"""

import numpy as np

import synkhronos as synk
from synkhronos.engine import T, engine
from synkhronos_examples.demos.options import parsed

n = synk.fork(**parsed(__doc__))
ranks = range(n)
x = T.fmatrix("x")
s = engine.shared(np.ones(2, dtype="float32"), name="s")
rows = engine.shared(np.zeros((1, 2), dtype="float32"), name="rows")
scale = synk.function([], updates=[(s, 2 * s)])
# `rows` will hold data: it is scattered like an input, but stays where it is between calls.
mean = synk.function([], rows.mean(axis=0), sliceable_shareds=[rows])
mean_plain = engine.function([x], x.mean(axis=0))
synk.distribute()

# One process at a time: write and read the copy of any rank. set_value() of the variable itself
# changes the master's copy only.
for rank in ranks:
    synk.set_value(rank, s, np.full(2, rank + 1, dtype="float32"))
print(f"\ns on each rank:\n{synk.gather(s)}")
for rank in ranks:
    np.testing.assert_array_equal(synk.get_value(rank, s), [rank + 1, rank + 1])

# A function updates every copy from its own value.
scale()
expected = 2 * np.array([[rank + 1, rank + 1] for rank in ranks], dtype="float32")
np.testing.assert_array_equal(synk.gather(s), expected)

# reduce: into the master, or returned; the workers keep theirs.
np.testing.assert_allclose(synk.reduce(s, op="max", in_place=False), expected.max(axis=0))
np.testing.assert_array_equal(synk.gather(s), expected)

# all_reduce: every copy becomes the result.
synk.all_reduce(s, op="avg")
print(f"s on each rank after all_reduce(s, 'avg'):\n{synk.gather(s)}")
np.testing.assert_allclose(synk.gather(s), [expected.mean(axis=0)] * n, rtol=1e-6)

# broadcast: every copy becomes the master's, or a given value.
s.set_value(np.zeros(2, dtype="float32"))
synk.broadcast(s)
assert not synk.gather(s).any()

# scatter: each rank gets a part of the rows. The lengths differ if the rows do not divide evenly.
data = np.arange(2 * (3 * n + 1), dtype="float32").reshape(-1, 2)
synk.scatter(rows, data)
print(f"rows per rank after scatter: {synk.get_lengths(rows)}, shapes {synk.get_shapes(rows)}")
assert synk.get_lengths(rows) == (4,) + (3,) * (n - 1)

# Copies of different lengths are computed with as they are, and weighted by their rows.
np.testing.assert_allclose(mean(), mean_plain(data), rtol=1e-6)

# One after the other they are the data again; to be stacked they would have to be equally long.
np.testing.assert_array_equal(synk.gather(rows, nd_up=0), data)

# Any other shape will do, on any rank: only the number of dimensions is fixed.
for rank in ranks:
    synk.set_value(rank, rows, np.full((rank + 1, 2), rank, dtype="float32"))
lengths = synk.get_lengths(rows)
print(f"rows per rank after set_value: {lengths}")
assert lengths == tuple(rank + 1 for rank in ranks)
together = np.repeat(np.arange(n, dtype="float32"), lengths)[:, None] * np.ones(2, dtype="float32")
np.testing.assert_array_equal(synk.gather(rows, nd_up=0), together)
np.testing.assert_allclose(mean(), mean_plain(together), rtol=1e-6)

# Values that cannot be reduced are refused before anything moves; the error lists all shapes.
if n > 1:
    try:
        synk.all_reduce(rows)
    except ValueError as error:
        print(f"refused: {error}")
    else:
        raise AssertionError("arrays of different shapes have no average")
    assert synk.get_lengths(rows) == lengths

# all_gather: every rank gets the rows of all.
synk.all_gather(rows)
print(f"rows per rank after all_gather: {synk.get_lengths(rows)}")
for rank in ranks:
    np.testing.assert_array_equal(synk.get_value(rank, rows), together)

synk.close()
print("All assertions passed.")
