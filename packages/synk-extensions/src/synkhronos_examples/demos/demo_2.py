"""Demo 2: Data objects, arrays that all processes see.

    python demo_2.py [--processes 2] [--devices cpu]

Functions take arrays, too, and copy them into shared memory at each call. A Data object is there
already: write once, call often.
"""

import numpy as np

import synkhronos as synk
from synkhronos.engine import T, engine
from synkhronos_examples.demos.options import parsed

synk.fork(**parsed(__doc__))
x = T.fmatrix("x")
labels = T.ivector("labels")
mean = (x.max(axis=1) * T.cast(labels, "float32")).mean()
f = synk.function([x, labels], mean)
f_plain = engine.function([x, labels], mean)
synk.distribute()


def check(*values):
    """Compute on all processes, and by a plain function; return the result if they agree."""
    result = f(*values)
    np.testing.assert_allclose(result, f_plain(*map(np.asarray, values)), rtol=1e-4, atol=1e-6)
    return result


rng = np.random.RandomState(0)
x_dat = rng.standard_normal((10, 4)).astype("float32")

# Three ways to make one: from an array; for a variable, whose dtype and number of dimensions it
# takes; or of a given kind, with a shape and zeros.
x_data = synk.data(x_dat, name="x_data")
labels_data = synk.data(rng.randint(4, size=10), var=labels, force_cast=True)
room = synk.data(dtype="float32", ndim=2, shape=(10, 4))
print(f"\n{x_data}\n{labels_data}\n{room}")
assert labels_data.dtype == "int32"
assert not room.data.any()

# build_inputs() does it for all inputs of a function.
again, _ = f.build_inputs(x_dat, labels_data[:])
np.testing.assert_array_equal(again, x_data)

# It reads like an array, and is input to functions as it is.
print(f"shape {x_data.shape}, {x_data.size} items, first row {x_data[0]}")
np.testing.assert_array_equal(x_data[2:5, ::2], x_dat[2:5, ::2])
before = check(x_data, labels_data)

# It is written like an array. The workers see it: nothing has to be sent.
x_data[:, :] *= 2
after = check(x_data, labels_data)
print(f"result {before:.4f}, and of the doubled values {after:.4f}")
np.testing.assert_allclose(after, 2 * before, rtol=1e-5)

# Its dtype and number of dimensions are fixed. condition_data() shows the converted value.
assert x_data.condition_data([[1, 2], [3, 4]]).dtype == "float32"
try:
    x_data.set_value(x_dat.astype("float64"))
except TypeError as error:
    print(f"refused: {error}")
else:
    raise AssertionError("a float64 array does not fit without a loss")
x_data.set_value(x_dat.astype("float64"), force_cast=True)

# The length may change. Rows that stay keep their contents, new ones are zero. oversize= takes
# memory in reserve, so that growing within it moves nothing.
x_data.set_length(12, oversize=2)
labels_data.set_length(12)
print(f"now {x_data.shape}, with room for {x_data.alloc_size} items")
np.testing.assert_array_equal(x_data[:10], x_dat)
assert not x_data[10:].any()
assert x_data.alloc_size == 2 * 12 * 4
check(x_data, labels_data)
x_data.set_shape((5, 4))
labels_data.set_length(5)
check(x_data, labels_data)
assert x_data.alloc_size == 2 * 12 * 4, "an array that shrinks keeps its memory"

# set_value() takes another shape, too.
x_data.set_value(rng.standard_normal((7, 6)).astype("float32"))
labels_data.set_value(np.ones(7, dtype="int32"))
check(x_data, labels_data)

# free_memory() releases the allocation: the value is gone, the object stays.
x_data.free_memory()
assert x_data.alloc_size == 0
x_data.set_value(np.ones((7, 6), dtype="float32"))
assert check(x_data, labels_data) == 1

synk.close()
print("All assertions passed.")
