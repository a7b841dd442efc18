"""The networks whose training functions are distributed: an MLP and ResNet-50, in plain Theano."""

from __future__ import annotations

from typing import Any

import numpy as np
import theano
import theano.tensor as T
from theano.tensor.signal.pool import pool_2d

RESNET_50 = (3, 4, 6, 3)
"""Bottleneck blocks of each stage: with stem and four projections 53 convolutions."""
EPSILON, RATE, MOMENTUM = np.float32(1e-5), np.float32(0.1), np.float32(0.9)


class Parameters:
    """What a network learns, and the running statistics of its normalisations.

    Attributes:
        learned: the shared variables that a gradient is taken of.
        statistics: pairs of a shared variable and its next value.
    """

    def __init__(self, seed: int = 0) -> None:
        self._generator = np.random.RandomState(seed)
        self.learned: list[Any] = []
        self.statistics: list[tuple[Any, Any]] = []

    def weights(self, name: str, *shape: int) -> Any:
        """Return random weights as of He et al. (2015): variance 2 / inputs of a unit."""
        inputs = shape[0] if len(shape) == 2 else int(np.prod(shape[1:]))
        values = self._generator.standard_normal(shape) * np.sqrt(2.0 / inputs)
        return self.add(name, values)

    def add(self, name: str, values: Any) -> Any:
        """Return a new shared variable of float32 that is learned."""
        variable = theano.shared(np.asarray(values, "float32"), name=name)
        self.learned.append(variable)
        return variable


def mlp(units: int = 800) -> tuple[list[Any], Any, Parameters]:
    """Return (inputs, loss, parameters): two hidden layers for digits of 28 x 28 pixels."""
    x, labels = T.fmatrix("x"), T.ivector("labels")
    parameters = Parameters()
    out, width = x, 784
    for number, size in enumerate((units, units, 10)):
        w = parameters.weights(f"w{number}", width, size)
        b = parameters.add(f"b{number}", np.zeros(size))
        out, width = T.dot(out, w) + b, size
        if number < 2:
            out = T.nnet.relu(out)
    loss = T.nnet.categorical_crossentropy(T.nnet.softmax(out), labels).mean()
    return [x, labels], loss, parameters


def resnet(
    stages: tuple[int, ...] = RESNET_50, width: int = 64, classes: int = 1000
) -> tuple[list[Any], Any, Parameters]:
    """Return (inputs, loss, parameters): a residual network of bottleneck blocks (He et al., 2016).

    Inputs are images (n, 3, h, w) in float32 and labels (n,) in int32. With the defaults it is
    ResNet-50; `width` is the number of channels after the stem.
    """
    images, labels = T.ftensor4("images"), T.ivector("labels")
    net = _Resnet()
    out = T.nnet.relu(net.normalised(net.convolution(images, 3, width, 7, 2), width))
    out = pool_2d(out, (3, 3), stride=(2, 2), pad=(1, 1), ignore_border=True)
    channels = width
    for stage, blocks in enumerate(stages):
        inner = width * 2**stage
        for block in range(blocks):
            stride = 2 if stage and not block else 1
            out = net.bottleneck(out, channels, inner, stride)
            channels = 4 * inner
    out = out.mean(axis=(2, 3))
    w = net.parameters.weights("dense.w", channels, classes)
    b = net.parameters.add("dense.b", np.zeros(classes))
    loss = T.nnet.categorical_crossentropy(T.nnet.softmax(T.dot(out, w) + b), labels).mean()
    return [images, labels], loss, net.parameters


class _Resnet:
    """The pieces, and a count of them for names."""

    def __init__(self) -> None:
        self.parameters = Parameters()
        self._count = 0

    def convolution(self, x: Any, channels: int, filters: int, size: int, stride: int = 1) -> Any:
        self._count += 1
        w = self.parameters.weights(f"conv{self._count}.w", filters, channels, size, size)
        return T.nnet.conv2d(
            x,
            w,
            filter_shape=(filters, channels, size, size),
            border_mode="half",
            subsample=(stride, stride),
        )

    def normalised(self, x: Any, channels: int) -> Any:
        """Normalise a batch (Ioffe and Szegedy, 2015), in elementary operations."""
        name = f"norm{self._count}"
        scale = self.parameters.add(f"{name}.scale", np.ones(channels))
        shift = self.parameters.add(f"{name}.shift", np.zeros(channels))
        mean = x.mean(axis=(0, 2, 3))
        variance = T.sqr(x - _spread(mean)).mean(axis=(0, 2, 3))
        for which, start, now in (("mean", np.zeros, mean), ("variance", np.ones, variance)):
            running = theano.shared(start(channels).astype("float32"), name=f"{name}.{which}")
            self.parameters.statistics.append((running, running + RATE * (now - running)))
        factor = scale / T.sqrt(variance + EPSILON)
        return (x - _spread(mean)) * _spread(factor) + _spread(shift)

    def bottleneck(self, x: Any, channels: int, inner: int, stride: int) -> Any:
        """Return 1 x 1, 3 x 3, 1 x 1 convolutions beside a shortcut, projected if shapes change."""
        out, outer = x, 4 * inner
        for before, after, size, step in ((channels, inner, 1, stride), (inner, inner, 3, 1)):
            out = self.convolution(out, before, after, size, step)
            out = T.nnet.relu(self.normalised(out, after))
        out = self.normalised(self.convolution(out, inner, outer, 1), outer)
        if channels != outer or stride != 1:
            x = self.normalised(self.convolution(x, channels, outer, 1, stride), outer)
        return T.nnet.relu(out + x)


def _spread(vector: Any) -> Any:
    """Return a value per channel, for arrays (n, channels, h, w)."""
    return vector.dimshuffle("x", 0, "x", "x")


def training(loss: Any, parameters: Parameters) -> list[tuple[Any, Any]]:
    """Return updates of gradient descent with momentum, and of the running statistics."""
    updates = list(parameters.statistics)
    gradients = T.grad(loss, parameters.learned)
    for variable, gradient in zip(parameters.learned, gradients):
        velocity = theano.shared(np.zeros_like(variable.get_value()), name=f"{variable.name}.v")
        step = MOMENTUM * velocity - RATE * gradient
        updates += [(velocity, step), (variable, variable + step)]
    return updates
