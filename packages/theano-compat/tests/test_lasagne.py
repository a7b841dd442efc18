"""Lasagne 0.1 and 0.2.dev1 find what they miss in Theano."""

from __future__ import annotations

import importlib.util
from pathlib import Path

SPEC = importlib.util.find_spec("lasagne")
# As strict as can be about what our user would see: none of these warnings is ours to give.
STRICT = "import warnings; warnings.simplefilter('error', UserWarning)\n"
if SPEC and SPEC.submodule_search_locations:  # installed, or on PYTHONPATH
    place = str(Path(SPEC.submodule_search_locations[0]).parent)
    STRICT += f"import sys; sys.path.insert(0, {place!r})\n"

DOWNSAMPLE = """
import theano, theano.tensor as T, numpy as np
from theano.tensor.signal import downsample
from theano.tensor.signal.pool import pool_2d
from theano.tensor.signal.downsample import max_pool_2d, max_pool_2d_same_size
import theano.tensor.signal.downsample as again
assert again is downsample
x = T.tensor4()
X = np.random.RandomState(0).permutation(98).reshape(1, 2, 7, 7).astype(x.dtype)

for old, new in (
    ({"ds": (2, 2), "ignore_border": True}, {"ws": (2, 2), "ignore_border": True}),
    ({"ds": (2, 2)}, {"ws": (2, 2), "ignore_border": False}),
    ({"ds": [3, 3], "st": [1, 2]}, {"ws": (3, 3), "stride": (1, 2), "ignore_border": False}),
    ({"ds": (3, 3), "st": (2, 2), "padding": (1, 1), "ignore_border": True},
     {"ws": (3, 3), "stride": (2, 2), "pad": (1, 1), "ignore_border": True}),
    ({"ds": (7, 7), "mode": "average_exc_pad", "ignore_border": True},
     {"ws": (7, 7), "mode": "average_exc_pad", "ignore_border": True}),
):
    got, expected = theano.function([x], [max_pool_2d(x, **old), pool_2d(x, **new)])(X)
    assert np.array_equal(got, expected), (old, new)
same = theano.function([x], max_pool_2d_same_size(x, (7, 7)))(X)
assert np.count_nonzero(same) == 2
"""


def test_downsample(run, forked):
    forked("import theano; theano.config.linker = 'py'\n" + STRICT + DOWNSAMPLE)
    assert "downsample" in run(STRICT + DOWNSAMPLE, skip="downsample", fails=True).stderr


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
