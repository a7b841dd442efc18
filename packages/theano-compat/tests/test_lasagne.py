"""Lasagne 0.1 and 0.2.dev1: what they miss, and a recurrent network against NumPy.

Their own tests, and those of this repository that train networks with Lasagne, say the rest.
"""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

SPEC = importlib.util.find_spec("lasagne")
# As strict as can be about what our user would see: none of these warnings is ours to give.
STRICT = "import warnings; warnings.simplefilter('error', UserWarning)\n"
if SPEC and SPEC.submodule_search_locations:  # installed, or on PYTHONPATH
    place = str(Path(SPEC.submodule_search_locations[0]).parent)
    STRICT += f"import sys; sys.path.insert(0, {place!r})\n"

DOWNSAMPLE = """
import theano, theano.tensor as T, numpy as np
from theano.tensor.signal import downsample
from theano.tensor.signal.downsample import max_pool_2d, max_pool_2d_same_size
import theano.tensor.signal.downsample as again
assert again is downsample
x = T.tensor4()
X = np.random.RandomState(0).permutation(98).reshape(1, 2, 7, 7).astype(x.dtype)

def pool(**kwargs):
    return theano.function([x], max_pool_2d(x, **kwargs))(X)

whole = X[:, :, :6, :6].reshape(1, 2, 3, 2, 3, 2).max(axis=(3, 5))
assert np.array_equal(pool(ds=(2, 2), ignore_border=True), whole)
border = pool(ds=(2, 2))
assert border.shape == (1, 2, 4, 4) and np.array_equal(border[:, :, :3, :3], whole)
assert border[0, 1, 3, 3] == X[0, 1, 6, 6]
overlapping = pool(ds=[3, 3], st=[1, 2], ignore_border=True)
expected = [[[X[0, c, i:i + 3, 2 * j:2 * j + 3].max() for j in range(3)] for i in range(5)]
            for c in range(2)]
assert np.array_equal(overlapping[0], expected)
padded = pool(ds=(3, 3), st=(2, 2), padding=(1, 1), ignore_border=True)
P = np.pad(X, [(0, 0), (0, 0), (1, 1), (1, 1)], constant_values=-1)
expected = [[[P[0, c, 2 * i:2 * i + 3, 2 * j:2 * j + 3].max() for j in range(4)] for i in range(4)]
            for c in range(2)]
assert np.array_equal(padded[0], expected)
mean = pool(ds=(7, 7), mode="average_exc_pad", ignore_border=True)
np.testing.assert_allclose(mean[..., 0, 0], X.mean(axis=(2, 3)))
same = theano.function([x], max_pool_2d_same_size(x, (7, 7)))(X)
assert np.count_nonzero(same) == 2
"""


def test_downsample(run, forked):
    forked("import theano; theano.config.linker = 'py'\n" + STRICT + DOWNSAMPLE)
    assert "downsample" in run(STRICT + DOWNSAMPLE, skip="downsample", fails=True).stderr


RECURRENT = """
import theano, theano.tensor as T, numpy as np
import lasagne
from lasagne.layers import *
lasagne.random.set_rng(np.random.RandomState(3))
x = T.tensor3()
X = np.random.RandomState(1).randn(3, 5, 4).astype(x.dtype)
lstm = LSTMLayer(InputLayer((None, 5, 4), x), 6)
p = {q.name.split(".")[-1]: q.get_value() for q in lstm.get_params()}
sigmoid = lambda a: 1 / (1 + np.exp(-a))
h, c = np.zeros((3, 6)), np.zeros((3, 6))
states = []
for t in range(5):
    def gate(n, peep=None):
        a = X[:, t].dot(p["W_in_to_" + n]) + h.dot(p["W_hid_to_" + n]) + p["b_" + n]
        return a if peep is None else a + peep * p["W_cell_to_" + n]
    i, f = sigmoid(gate("ingate", c)), sigmoid(gate("forgetgate", c))
    c = f * c + i * np.tanh(gate("cell"))
    outgate = sigmoid(gate("outgate", c))
    if lasagne.__version__ == "0.1":  # it adds this peephole behind the sigmoid
        outgate = sigmoid(gate("outgate")) + c * p["W_cell_to_outgate"]
    h = outgate * np.tanh(c)
    states.append(h)
out = get_output(lstm)
np.testing.assert_allclose(theano.function([x], out)(X), np.stack(states, axis=1), rtol=1e-8)
"""


@pytest.mark.skipif(SPEC is None, reason="Lasagne is not installed")
def test_numbers_of_a_recurrent_network(run):
    """What Lasagne builds is in question here, not the C code: compiling that takes minutes."""
    run(STRICT + RECURRENT, flags="linker=py,optimizer=fast_compile")


# As the layers of 0.2.dev1 do it: the module is reached, but imported nowhere.
DEVELOPMENT = """
import sys, pathlib, tempfile
layers = pathlib.Path(tempfile.mkdtemp()) / "lasagne" / "layers"
layers.mkdir(parents=True)
(layers.parent / "__init__.py").write_text(
    "import theano.tensor as T\\nfrom . import layers\\n"
    "def pool(x):\\n    return T.signal.pool.pool_2d(x, ws=(2, 2), ignore_border=True)\\n"
)
(layers / "__init__.py").write_text("from . import special")
(layers / "special.py").write_text(
    "import numpy as np\\n"
    "def _initialize_tps(num_control_points):\\n"
    "    return np.linspace(-1, 1, np.sqrt(num_control_points))\\n"
)
sys.path.insert(0, str(layers.parent.parent))
import lasagne, lasagne.layers.special as special, theano.tensor as T
assert lasagne.__file__.startswith(str(layers.parent))
assert lasagne.pool(T.tensor4()).ndim == 4
assert special._initialize_tps(9).tolist() == [-1, 0, 1]
"""


def test_layers_of_the_development_version(run):
    run(DEVELOPMENT)
    for patch, said in (("L2", "no attribute 'signal'"), ("L3", "interpreted as an integer")):
        assert said in run(DEVELOPMENT, skip=patch, fails=True).stderr
