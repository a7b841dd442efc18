"""L1, L2: what Lasagne 0.1 and 0.2.dev1 need besides ``theano.tensor.signal.downsample``."""

from __future__ import annotations

import importlib
import warnings


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
