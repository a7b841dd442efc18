"""What Lasagne 0.1 of 2015 needs besides ``theano.tensor.signal.downsample``."""

from __future__ import annotations

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
