"""What Lasagne 0.1 and 0.2.dev1 need besides ``theano.tensor.signal.downsample``."""

from __future__ import annotations

import importlib
import warnings


def hide_image_shape_warning() -> str:
    """L1: say nothing when Lasagne calls an argument of ``conv2d`` by its old name.

    Theano maps it to the new one and warns for each layer, of code that its user did not write.
    """
    warnings.filterwarnings(
        "ignore",
        message="The `image_shape` keyword argument to `tensor.nnet.conv2d` is deprecated",
        category=UserWarning,
        module=r"lasagne\.",
    )
    return "one warning filtered"


def import_pooling() -> str:
    """L2: load the module that Lasagne 0.2.dev1 reaches as ``theano.tensor.signal.pool``.

    It does not import it: with the Theano of its time some other module had done so. In 1.0.5
    only the GPU back end does.
    """
    importlib.import_module("theano.tensor.signal.pool")
    return "theano.tensor.signal.pool imported"
