"""Is the GPU used? The program of Theano's tutorial, as it is and in every process.

    python check_gpu.py [--processes 2] [--devices cuda0,cuda1]

It computes the exponential of many numbers a thousand times, and compares the results with NumPy's.
"""

import time

import numpy as np
import theano
import theano.tensor as T

import synkhronos as synk
from options import fork_arguments

LENGTH = 10 * 30 * 768
CALLS = 1000

n = synk.fork(**fork_arguments(__doc__))

# On a GPU from here on, if there is one: `fork()` has initialised it.
rng = np.random.RandomState(22)
values = np.asarray(rng.rand(LENGTH), "float32")
x = theano.shared(values, name="x")


def measure(name, f):
    """Call a function many times; check its last result."""
    began = time.perf_counter()
    for _ in range(CALLS):
        result = f()
    print(f"{name}: {CALLS} calls took {time.perf_counter() - began:.3f} s")
    print(f"  the result is {np.asarray(result)}")
    np.testing.assert_allclose(result, np.exp(values), rtol=1e-5)


plain = theano.function([], T.exp(x), name="plain")
operations = [type(node.op).__name__ for node in plain.maker.fgraph.toposort()]
print(f"operations: {', '.join(operations)}")
measure("plain Theano", plain)

# Every process computes the same; what is returned is the master's result.
f = synk.function([], (T.exp(x), None), name="exp")
measure(f"{n} process(es)", f)

# All of them have computed it, on devices of the same kind.
total = synk.function([], (T.exp(x).sum(), "gather"), name="sum of exp")
np.testing.assert_allclose(total(), np.full(n, np.exp(values.astype("float64")).sum()), rtol=1e-4)

print(f"Used the {'GPU' if any(name.startswith('Gpu') for name in operations) else 'CPU'}.")
synk.close()
print("All assertions passed.")
