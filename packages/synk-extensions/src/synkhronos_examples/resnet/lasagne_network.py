"""ResNet-50 in Lasagne.

The network is that of He et al., "Deep residual learning for image recognition" (2015), as in
Lasagne's Recipes. Lasagne 0.1 has no batch normalization; a layer for it is here, on Theano's own,
which is cuDNN's on a GPU.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import theano
import theano.tensor as T
from lasagne import init, layers, nonlinearities, objectives
from lasagne import random as lasagne_random
from theano.tensor.nnet import bn

# Best for GPUs, and half the memory. Lasagne creates its parameters with this type.
theano.config.floatX = "float32"


class Convolution(layers.Conv2DLayer):
    """Pads inside Theano's convolution; Lasagne 0.1 copies the input into a larger array."""

    def get_output_for(self, input: Any, **_: Any) -> Any:  # noqa: A002 - Lasagne's name
        return T.nnet.conv2d(
            input,
            self.W,
            input_shape=self.input_shape,
            filter_shape=self.get_W_shape(),
            border_mode=self.pad,
            subsample=self.stride,
            filter_flip=False,
        )


class BatchNorm(layers.Layer):
    """Batch normalization over all but the channels."""

    def __init__(self, incoming: Any, gamma: float = 1.0) -> None:
        super().__init__(incoming)
        shape = (self.input_shape[1],)
        fixed = {"trainable": False, "regularizable": False}
        self.gamma = self.add_param(init.Constant(gamma), shape, "gamma", regularizable=False)
        self.beta = self.add_param(init.Constant(0), shape, "beta", regularizable=False)
        self.mean = self.add_param(init.Constant(0), shape, "mean", **fixed)
        self.var = self.add_param(init.Constant(1), shape, "var", **fixed)
        self.running_updates: list[Any] = []  # of the last output that was not deterministic

    def get_output_for(self, input: Any, deterministic: bool = False, **_: Any) -> Any:  # noqa: A002
        scale = (self.gamma, self.beta)
        if deterministic:
            return bn.batch_normalization_test(input, *scale, self.mean, self.var, axes="spatial")
        output, _, _, mean, var = bn.batch_normalization_train(
            input, *scale, axes="spatial", running_mean=self.mean, running_var=self.var
        )
        self.running_updates = [(self.mean, mean), (self.var, var)]
        return output


def convolve(network: Any, filters: int, size: int, stride: int = 1, gamma: float = 1.0) -> Any:
    """A convolution, normalized."""
    weights = init.HeNormal(gain="relu")
    network = Convolution(network, filters, size, stride, pad=size // 2, W=weights, b=None)
    return BatchNorm(network, gamma)


def rectify(network: Any) -> Any:
    return layers.NonlinearityLayer(network, nonlinearities.rectify)


def bottleneck(network: Any, filters: int, stride: int) -> Any:
    """Three convolutions, 1 x 1, 3 x 3 and 1 x 1, beside a shortcut."""
    branch = rectify(convolve(network, filters, 1))
    branch = rectify(convolve(branch, filters, 3, stride))
    # Blocks begin as nearly the identity: training starts fast and stays stable.
    branch = convolve(branch, 4 * filters, 1, gamma=0.2)
    shortcut = network
    if network.output_shape[1] != 4 * filters or stride > 1:
        shortcut = convolve(network, 4 * filters, 1, stride)
    return rectify(layers.ElemwiseSumLayer([branch, shortcut]))


def build_network(x: Any, size: Any) -> Any:
    """The network's last layer, of probabilities. `x` has the shape (rows, 3, side, side)."""
    network = layers.InputLayer((None, 3, size.side, size.side), x)
    network = rectify(convolve(network, size.width, 7, stride=2))
    network = layers.MaxPool2DLayer(network, 3, stride=2, pad=1, ignore_border=True)
    for stage, blocks in enumerate(size.blocks):
        for block in range(blocks):
            stride = 2 if stage > 0 and block == 0 else 1
            network = bottleneck(network, size.width * 2**stage, stride)
    network = layers.GlobalPoolLayer(network)
    return layers.DenseLayer(network, size.classes, nonlinearity=nonlinearities.softmax)


def build(size: Any, seed: int) -> dict[str, Any]:
    """Build what a `ResNetModel` has."""
    lasagne_random.set_rng(np.random.RandomState(seed))
    x, y = T.ftensor4("x"), T.ivector("y")
    network = build_network(x, size)
    training = layers.get_output(network)
    updates = [
        update
        for layer in layers.get_all_layers(network)
        if isinstance(layer, BatchNorm)
        for update in layer.running_updates
    ]
    validation = layers.get_output(network, deterministic=True)
    accuracy = T.eq(validation.argmax(axis=1), y).mean(dtype="float32")
    return {
        "inputs": [x, y],
        "loss": objectives.categorical_crossentropy(training, y).mean(),
        "params": layers.get_all_params(network, trainable=True),
        "running": layers.get_all_params(network, trainable=False),
        "running_updates": updates,
        "validation": [objectives.categorical_crossentropy(validation, y).mean(), accuracy],
    }
