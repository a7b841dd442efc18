"""L1 to L3: what Lasagne 0.1 and 0.2.dev1 need besides ``theano.tensor.signal.downsample``."""

from __future__ import annotations

import importlib
import sys
import warnings

from .rewrite import rewrite


def ignore_image_shape_warning() -> str:
    """L1: ignore the warning that Lasagne calls an argument of ``conv2d`` by its old name.

    Theano accepts the old name and warns for each layer, about code that its user did not write.
    """
    warnings.filterwarnings(
        "ignore",
        message="The `image_shape` keyword argument to `tensor.nnet.conv2d` is deprecated",
        category=UserWarning,
        module=r"lasagne\.",
    )
    return "one warning filtered"


def import_pooling() -> str:
    """L2: import the module that Lasagne 0.2.dev1 uses as ``theano.tensor.signal.pool``.

    Lasagne does not import it: in the Theano of its time another module had done so. In 1.0.5 only
    the GPU back end does.
    """
    importlib.import_module("theano.tensor.signal.pool")
    return "theano.tensor.signal.pool imported"


def whole_grid() -> str:
    """L3: an integer number of points in ``TPSTransformerLayer``, where NumPy 1.18 refuses a float.

    Lasagne 0.2.dev1 has this layer, and has refused numbers of points that are no squares before.
    """
    special = sys.modules.get("lasagne.layers.special")
    if special is None or not hasattr(special, "_initialize_tps"):
        return "not needed"
    rewrite(
        special._initialize_tps,
        "np.sqrt(num_control_points)",
        "int(np.sqrt(num_control_points))",
        1,
    )
    return "TPSTransformerLayer"
