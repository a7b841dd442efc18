"""ResNet-50 of examples/resnet, and VGG-16 of Lasagne's layers; and tiny ones of the same kinds.

All contenders that run on Theano share them.
"""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from typing import Any, NamedTuple

import lasagne
import numpy as np
import theano.tensor as T
from lasagne.layers import DenseLayer, DropoutLayer, InputLayer, Pool2DLayer
from lasagne.nonlinearities import rectify, softmax

EXAMPLE = Path(__file__).resolve().parents[4] / "examples" / "resnet"
RATE, MOMENTUM = 1e-4, 0.9
VGG_BLOCKS = ((2, 64), (2, 128), (3, 256), (3, 512), (3, 512))
VGG_UNITS = 4096
TINY_BLOCKS, TINY_UNITS = ((1, 4), (1, 8)), 32


class Network(NamedTuple):
    """What a training function needs, and the data that go with it."""

    inputs: list[Any]
    """Images (n, 3, size, size) of float32 and labels (n,) of int32."""
    loss: Any
    params: list[Any]
    updates: list[Any]
    """Of running averages."""
    size: int
    classes: int
    batch: int
    """Images per GPU and step."""
    images: int


def build(name: str, tiny: bool, images: int) -> Network:
    """Return the network "resnet" or "vgg", its loss, and what else belongs to its training."""
    example = _example()
    size = example.TINY if tiny else example.RESNET50
    if name == "resnet":
        model = example.build_model(size)
        about = (size.side, size.classes, 4 if tiny else 64, images)
        return Network(model.inputs, model.loss, model.params, model.running_updates, *about)
    lasagne.random.set_rng(np.random.RandomState(1))
    x, labels = T.ftensor4("x"), T.ivector("y")
    last = _vgg(x, size, tiny)
    loss = T.nnet.categorical_crossentropy(lasagne.layers.get_output(last), labels).mean()
    params = lasagne.layers.get_all_params(last, trainable=True)
    batch = 4 if tiny else 16
    return Network([x, labels], loss, params, [], size.side, size.classes, batch, images)


def shapes(network: Network) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return the shapes of a data set for it: images and labels."""
    return (network.images, 3, network.size, network.size), (network.images,)


def fill(network: Network, images: Any, labels: Any) -> None:
    """Fill arrays of these shapes with a synthetic data set, always the same."""
    generator = np.random.default_rng(1)
    for row in images:
        generator.random(out=row, dtype=np.float32)
    labels[:] = generator.integers(network.classes, size=labels.shape)


def _example() -> Any:
    if str(EXAMPLE) not in sys.path:
        sys.path.append(str(EXAMPLE))
    return importlib.import_module("resnet")


def _vgg(x: Any, size: Any, tiny: bool) -> Any:
    """Simonyan and Zisserman (2015), configuration D, with dropout."""

    class Biased(importlib.import_module("lasagne_network").Convolution):  # type: ignore[misc]
        """The example's convolution has no bias, since normalisation would take it away."""

        def get_output_for(self, input: Any, **options: Any) -> Any:  # noqa: A002 - Lasagne's
            output = super().get_output_for(input, **options)
            return self.nonlinearity(output + self.b.dimshuffle("x", 0, "x", "x"))

    blocks, units = (TINY_BLOCKS, TINY_UNITS) if tiny else (VGG_BLOCKS, VGG_UNITS)
    weights = lasagne.init.HeNormal(gain="relu")
    out = InputLayer((None, 3, size.side, size.side), x)
    for layers, filters in blocks:
        for _ in range(layers):
            out = Biased(out, filters, 3, pad=1, W=weights, nonlinearity=rectify)
        out = Pool2DLayer(out, 2)
    for _ in range(2):
        out = DropoutLayer(DenseLayer(out, units, W=weights, nonlinearity=rectify))
    return DenseLayer(out, size.classes, W=weights, nonlinearity=softmax)
