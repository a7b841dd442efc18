"""ResNet-50 in Lasagne, and what the two trainings share: data, options, a meter.

The network is that of He et al., "Deep residual learning for image recognition" (2015), as in
Lasagne's Recipes. Lasagne 0.1 has no batch normalization; a layer for it is here, on Theano's own,
which is cuDNN's on a GPU.
"""

from __future__ import annotations

import argparse
import time
from statistics import median
from typing import Any, NamedTuple, Sequence

import numpy as np
import theano
import theano.tensor as T
from lasagne import init, layers, nonlinearities, objectives
from lasagne import random as lasagne_random
from theano.tensor.nnet import bn

from synkhronos_examples.demos.options import add_options, fork_arguments

__all__ = ["fork_arguments"]
# Best for GPUs, and half the memory. Lasagne creates its parameters with this type.
theano.config.floatX = "float32"


class Size(NamedTuple):
    """A network: of images with `side` pixels, and stages of so many bottleneck blocks."""

    side: int = 224
    classes: int = 1000
    width: int = 64
    blocks: Sequence[int] = (3, 4, 6, 3)


RESNET50 = Size()
TINY = Size(side=32, classes=10, width=8, blocks=(1, 1))


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


def build_network(x: Any, size: Size = RESNET50) -> Any:
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


class ResNetModel(NamedTuple):
    """Expressions and variables of a network, to make training functions of."""

    inputs: list[Any]  # images and labels
    loss: Any  # in training: normalized by each batch's own mean and variance
    params: list[Any]
    running: list[Any]  # the averages of means and variances that validation normalizes by
    running_updates: list[Any]
    validation: list[Any]  # loss and accuracy


def build_model(size: Size = RESNET50, seed: int = 1) -> ResNetModel:
    """Build a network, always with the same parameters for the same seed."""
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
    return ResNetModel(
        inputs=[x, y],
        loss=objectives.categorical_crossentropy(training, y).mean(),
        params=layers.get_all_params(network, trainable=True),
        running=layers.get_all_params(network, trainable=False),
        running_updates=updates,
        validation=[objectives.categorical_crossentropy(validation, y).mean(), accuracy],
    )


def synthetic_images(number: int, size: Size = RESNET50, seed: int = 2) -> tuple[Any, Any]:
    """Images and labels: ten coarse patterns, one for each of the first ten classes, and noise."""
    rng = np.random.default_rng(seed)
    classes = min(size.classes, 10)
    coarse = rng.standard_normal((classes, 3, 4, 4), dtype=np.float32)
    patterns = coarse.repeat(size.side // 4, axis=2).repeat(size.side // 4, axis=3)
    labels = rng.integers(classes, size=number).astype("int32")
    images = rng.standard_normal((number, 3, size.side, size.side), dtype=np.float32)
    images += patterns[labels]
    return images, labels


class Meter:
    """Prints loss and images per second, for each interval of steps."""

    def __init__(self, steps: int, interval: int) -> None:
        self._steps, self._interval = steps, interval
        self._step = 0
        self._speeds: list[float] = []
        self._start()

    def _start(self) -> None:
        self._images, self._losses, self._begin = 0, [], time.perf_counter()

    def step(self, images: int, loss: Any) -> None:
        """Count a step over so many images."""
        self._step += 1
        self._images += images
        self._losses.append(float(loss))
        if self._step == 1:
            # The first step also chooses algorithms and takes memory: it is shown by itself.
            print(f"step 1 of {self._steps}: loss {loss:.4f}", flush=True)
            self._start()
        elif len(self._losses) == self._interval or self._step == self._steps:
            self._speeds.append(self._images / (time.perf_counter() - self._begin))
            state = f"loss {np.mean(self._losses):.4f}, {self._speeds[-1]:.1f} images/s"
            print(f"step {self._step} of {self._steps}: {state}", flush=True)
            self._start()

    @property
    def speed(self) -> float:
        """Images per second: the median over the intervals."""
        return median(self._speeds) if self._speeds else float("nan")


def parse(about: str | None) -> argparse.Namespace:
    """The options of both trainings."""
    parser = argparse.ArgumentParser(
        description=about, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("--tiny", action="store_true", help="a small network on small images, for CPUs")
    add("--batch-size", type=int, help="images per step and device (default: 64; tiny: 32)")
    add("--steps", type=int, help="how many (default: 200; tiny: 40)")
    add("--interval", type=int, default=10, help="steps per line (default: %(default)s)")
    add("--images", type=int, help="of the data set (default: 1280; tiny: 640)")
    add("--learning-rate", type=float, help="default: 0.02; tiny: 0.05")
    add_options(parser)
    full = {"batch_size": 64, "steps": 200, "images": 1280, "learning_rate": 0.02}
    tiny = {"batch_size": 32, "steps": 40, "images": 640, "learning_rate": 0.05}
    parser.set_defaults(**full)
    if parser.parse_args().tiny:
        parser.set_defaults(**tiny)
    options = parser.parse_args()
    options.size = TINY if options.tiny else RESNET50
    for name, least in {"batch_size": 1, "steps": 1, "interval": 1, "images": 2}.items():
        if getattr(options, name) < least:
            parser.error(f"--{name.replace('_', '-')}: expected at least {least}")
    return options


def use_device(options: argparse.Namespace) -> None:
    """Let Theano compute on the one device of the options, without which it follows its flags."""
    if options.processes not in (None, 1) or "," in (options.devices or ""):
        raise SystemExit("this program uses one device; expected one in --devices, no --processes")
    if options.devices not in (None, "cpu"):
        import theano.gpuarray

        theano.gpuarray.use(options.devices)
