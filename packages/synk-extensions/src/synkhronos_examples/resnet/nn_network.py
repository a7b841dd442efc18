"""ResNet-50 with `synkhronos.extensions.nn`: the same network as in `lasagne_network`."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytensor.tensor as T
from synkhronos.extensions import nn


class Network:
    """Expressions of the network's parts, for training, or for validation by running averages."""

    def __init__(self, params: Any, training: bool) -> None:
        self.params = params
        self.training = training
        self.running_updates: list[Any] = []

    def convolve(
        self,
        x: Any,
        name: str,
        channels: int,
        filters: int,
        size: int,
        stride: int = 1,
        gamma: Any = 1,
    ) -> Any:
        """A convolution, normalized."""
        params = partial(self.params, shape=filters)
        scale = params(f"{name}.gamma", init=gamma), params(f"{name}.beta", init=0)
        mean = params(f"{name}.mean", init=0, trainable=False)
        var = params(f"{name}.var", init=1, trainable=False)
        weights = self.params(f"{name}.W", (filters, channels, size, size))
        x = nn.conv2d(x, weights, stride, "same")
        # As on Theano, each device has the mean and variance of its own rows.
        how = {"training": self.training, "over_ranks": False}
        x, updates = nn.batch_norm(x, *scale, mean, var, **how)
        self.running_updates += updates
        return x

    def bottleneck(self, x: Any, name: str, channels: int, filters: int, stride: int) -> Any:
        """Three convolutions, 1 x 1, 3 x 3 and 1 x 1, beside a shortcut."""
        branch = rectify(self.convolve(x, f"{name}.1", channels, filters, 1))
        branch = rectify(self.convolve(branch, f"{name}.2", filters, filters, 3, stride))
        # Blocks begin as nearly the identity: training starts fast and stays stable.
        branch = self.convolve(branch, f"{name}.3", filters, 4 * filters, 1, gamma=0.2)
        if channels != 4 * filters or stride > 1:
            x = self.convolve(x, f"{name}.shortcut", channels, 4 * filters, 1, stride)
        return rectify(branch + x)


def rectify(x: Any) -> Any:
    return T.maximum(x, 0)


def build_network(x: Any, size: Any, network: Any) -> Any:
    """The scores before softmax. `x` has the shape (rows, 3, side, side)."""
    x = rectify(network.convolve(x, "first", 3, size.width, 7, stride=2))
    x = nn.pool2d(x, 3, stride=2, padding=1)
    channels = size.width
    for stage, blocks in enumerate(size.blocks):
        filters = size.width * 2**stage
        for block in range(blocks):
            stride = 2 if stage > 0 and block == 0 else 1
            x = network.bottleneck(x, f"{stage}.{block}", channels, filters, stride)
            channels = 4 * filters
    weights = network.params("last.W", (channels, size.classes), nn.glorot)
    return nn.dense(x.mean(axis=(2, 3)), weights, network.params("last.b", size.classes, 0))


def build(size: Any, seed: int) -> dict[str, Any]:
    """Build what a `ResNetModel` has."""
    x, y = T.ftensor4("x"), T.ivector("y")
    params = nn.Parameters(seed, "float32")
    train, valid = (Network(params, training) for training in (True, False))
    losses, scores = [], None
    for network in (train, valid):
        scores = build_network(x, size, network)
        losses.append(nn.cross_entropy(scores, y).mean())
    accuracy = T.eq(scores.argmax(axis=1), y).mean(dtype="float32")
    return {
        "inputs": [x, y],
        "loss": losses[0],
        "params": params.trainable,
        "running": params.statistics,
        "running_updates": train.running_updates,
        "validation": [losses[1], accuracy],
    }
