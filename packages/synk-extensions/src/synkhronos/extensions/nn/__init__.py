"""Networks for PyTensor: convolutions, pooling, normalization and the like, with their gradients.

::

    from synkhronos.extensions import nn

    def network(params, x):
        h = nn.conv2d(x, params("conv.w", (16, 1, 3, 3)), padding="same")
        h = nn.pool2d(T.maximum(h, 0), 2)
        return nn.dense(h, params("dense.w", (16 * 14 * 14, 10)), params("dense.b", 10, 0))

    params = nn.Parameters(seed=1)
    loss = nn.cross_entropy(network(params, x), y).mean()
    train = make_train_function(loss, params.trainable, [x, y], updates.adam)

Images have the shape (rows, channels, height, width). Convolutions and pooling are computed by
NumPy with linkers for CPUs, and by XLA with ``mode="JAX"``.
"""

from __future__ import annotations

try:
    import pytensor  # noqa: F401 - to say what is lacking
except ImportError as error:
    raise ImportError(
        "synkhronos.extensions.nn needs PyTensor, on Python 3.12 or newer; with Theano use "
        "Lasagne: pip install 'synkhronos[lasagne]'"
    ) from error

from ._layers import Parameters, batch_norm, cross_entropy, dense, dropout, glorot, he, recurrent
from ._ops import conv2d, pool2d

__all__ = [
    "Parameters",
    "batch_norm",
    "conv2d",
    "cross_entropy",
    "dense",
    "dropout",
    "glorot",
    "he",
    "pool2d",
    "recurrent",
]
