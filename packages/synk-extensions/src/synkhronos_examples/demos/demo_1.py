"""Demo 1: functions, and how the results of the processes are combined.

    python demo_1.py [--processes 2] [--devices cpu]

A function's inputs are split by rows; each process computes its rows; each output has an operation
that combines the parts. Every result is compared with that of a plain function on the whole data.

`engine` is Theano or PyTensor, whichever is installed, and `T` its module of tensors.
"""

import numpy as np

import synkhronos as synk
from synkhronos.engine import TITLE, T, engine
from synkhronos_examples.demos.options import parsed

n = synk.fork(**parsed(__doc__))

# Any graph: x will be split by rows, every process gets the whole of y.
x = T.fmatrix("x")
y = T.fvector("y")
scores = (x * y).sum(axis=1)

# An output is an expression, or a pair with a reduce operation. The default is an average weighted
# by rows, which is right for a mean over all rows. The operation has to match the graph: the mean
# of a mean, the sum of a sum, the maximum of a maximum; row-wise results are gathered.
modes = {
    "avg": scores.mean(),
    "sum": x.sum(axis=0),
    "max": scores.max(),
    "min": x.min(axis=0),
    "prod": (1 + x / np.float32(100)).prod(axis=0),
    "gather": scores,
}
outputs = [(expression, op) for op, expression in modes.items()]
f = synk.function([x], outputs, bcast_inputs=[y], name="f")

# The same graph without Synkhronos, for comparison.
f_plain = engine.function([x, y], list(modes.values()))

# No reduction: the result is the master's own, from its own rows.
own = synk.function([x], (x.shape[0], None), name="own rows")

# Replicate the functions in the workers. You can call it again after building more functions; a
# function that was not distributed is distributed at its first call.
synk.distribute()

# 101 rows cannot be divided evenly by 2 or 4: shares differ by at most one row.
rng = np.random.RandomState(0)
x_dat = rng.standard_normal((101, 3)).astype("float32")
y_dat = rng.standard_normal(3).astype("float32")

expected = f_plain(x_dat, y_dat)
results = f(x_dat, y_dat)
print(f"\n{len(x_dat)} rows on {n} process(es), of which the master has {own(x_dat)}")
assert 101 // n <= own(x_dat) <= 101 // n + 1
for op, result, wanted in zip(f.output_modes, results, expected):
    shown = f"{len(result)} values" if op == "gather" else np.round(result, 4)
    print(f"  {op:<7} {shown}")
    np.testing.assert_allclose(result, wanted, rtol=1e-4, atol=1e-5)
print(f"All of them are what plain {TITLE} computes from the whole data.")

# Some of the outputs; the rest is not computed.
(largest,) = f(x_dat, y_dat, output_subset=[list(modes).index("max")])
assert largest == results[list(modes).index("max")]

# Slices: each process takes its rows in five parts, one after the other. This bounds the memory
# that intermediate results take, and changes nothing else.
for result, whole in zip(f(x_dat, y_dat, num_slices=5), results):
    np.testing.assert_allclose(result, whole, rtol=1e-4, atol=1e-5)
print("Computed in 5 slices per process: the same.")

# In the master alone, as a plain function would.
for result, wanted in zip(f.as_theano(x_dat, y_dat), expected):
    np.testing.assert_allclose(result, wanted, rtol=1e-4, atol=1e-5)

# Updates are applied in each process, from its own rows. When a call is sliced, all slices start
# from the original value, and the third entry says how their results are put together.
total = engine.shared(np.zeros(3, dtype="float32"), name="total")
add_up = synk.function([x], updates=[(total, x.sum(axis=0), "sum")], name="add up")
add_up(x_dat, num_slices=4)
parts = synk.gather(total)
print(f"The sum of each process's own rows, one row per process:\n{parts}")
np.testing.assert_allclose(parts.sum(axis=0), x_dat.sum(axis=0), rtol=1e-4, atol=1e-4)

synk.close()
print("All assertions passed.")
