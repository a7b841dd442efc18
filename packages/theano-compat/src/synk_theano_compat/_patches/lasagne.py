"""L1 to L3: what Lasagne 0.1 and 0.2.dev1 need besides ``theano.tensor.signal.downsample``."""

from __future__ import annotations

import importlib
import sys
import warnings

from .rewrite import rewrite


def ignore_image_shape_warning() -> str:
    """L1: ignore Theano's warning, for each layer, of an old argument's name in Lasagne's code."""
    warnings.filterwarnings(
        "ignore",
        message="The `image_shape` keyword argument to `tensor.nnet.conv2d` is deprecated",
        category=UserWarning,
        module=r"lasagne\.",
    )
    return "one warning filtered"


def import_pooling() -> str:
    """L2: import ``theano.tensor.signal.pool``, which Lasagne 0.2.dev1 uses without an import.

    In the Theano of its time another module imported it. In 1.0.5 only the GPU back end does.
    """
    importlib.import_module("theano.tensor.signal.pool")
    return "theano.tensor.signal.pool imported"


def whole_grid() -> str:
    """L3: take an integer number of points, a square, in ``TPSTransformerLayer`` of 0.2.dev1.

    NumPy 1.18 and later refuse a float.
    """
    special = sys.modules.get("lasagne.layers.special")
    if special is None or not hasattr(special, "_initialize_tps"):
        return "not needed"
    rewrite(
        special._initialize_tps,
        "np.sqrt(num_control_points)",
        "int(np.sqrt(num_control_points))",
    )
    return "TPSTransformerLayer"
