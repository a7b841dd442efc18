"""Plain Theano on one device: the program that synkhronos is to make parallel."""

from __future__ import annotations

import platform
import time
from typing import Any

import lasagne
import numpy as np
import theano
import theano.tensor as T

from . import networks
from .clock import Batches, device_wait, rounds
from .job import Report, Settings
from .tables import PLAIN, PLAIN_TAKE

WARM = 5


def main(settings: Settings, report: Report) -> None:
    """Measure training steps: ``x[idx]``, and rows taken into a buffer that is reused."""
    use(settings)
    began = time.perf_counter()
    network = networks.build(settings.network, settings.tiny, settings.images)
    rule = lasagne.updates.nesterov_momentum
    updates = rule(network.loss, network.params, networks.RATE, networks.MOMENTUM)
    train = theano.function(
        network.inputs, network.loss, updates=[*updates.items(), *network.updates]
    )
    part = settings.network
    report.row(part, "theano.function()", PLAIN, time.perf_counter() - began)
    shapes = networks.shapes(network)
    images, labels = np.empty(shapes[0], "float32"), np.empty(shapes[1], "int32")
    networks.fill(network, images, labels)
    arrays = (images, labels)
    buffers = [np.empty((network.batch, *array.shape[1:]), array.dtype) for array in arrays]
    batches = Batches(network.images, network.batch)

    def index() -> Any:
        rows = batches()
        return train(images[rows], labels[rows])

    def take() -> Any:
        rows = batches()
        for array, buffer in zip(arrays, buffers):
            np.take(array, rows, axis=0, out=buffer, mode="clip")
        return train(*buffers)

    report.ready()
    ways = {PLAIN: index, PLAIN_TAKE: take}
    wait = device_wait(network.params[-1])
    times = rounds(ways, wait, settings.rounds, settings.steps, WARM)
    for name, seconds in times.items():
        report.row(part, "step", name, seconds, images=network.batch)
    loss = float(index())
    assert np.isfinite(loss), f"the loss is {loss}"
    if settings.network == "resnet":
        error = convolution_error(settings.tiny)
        report.about(
            "largest error of a 3 x 3 convolution, Theano",
            f"{error:.1e} of the largest value (float32 has 6e-08, TF32 5e-04)",
        )
    _about(settings, report)


def use(settings: Settings) -> None:
    """Initialise the device in this process."""
    if settings.device != "cpu":
        import theano.gpuarray

        theano.gpuarray.use("cuda0" if settings.cuda else settings.device)


def convolution_error(tiny: bool) -> float:
    """How far a convolution of 64 channels is from its float64 result; tells TF32 from float32."""
    generator = np.random.default_rng(3)
    channels, side = (4, 6) if tiny else (64, 28)
    x = generator.standard_normal((8, channels, side, side)).astype("float32")
    w = generator.standard_normal((channels, channels, 3, 3)).astype("float32")
    image, filters = T.ftensor4(), theano.shared(w)
    convolve = theano.function([image], T.nnet.conv2d(image, filters, filter_flip=False))
    inner, exact = side - 2, np.zeros((8, channels, side - 2, side - 2))
    for i in range(3):
        for j in range(3):
            part, factors = x[:, :, i : i + inner, j : j + inner], w[:, :, i, j]
            exact += np.tensordot(factors.astype("f8"), part, (1, 1)).transpose(1, 0, 2, 3)
    return float(np.abs(np.asarray(convolve(x)) - exact).max() / np.abs(exact).max())


def _about(settings: Settings, report: Report) -> None:
    """Versions, and the flags that matter."""
    report.about("Python", platform.python_version())
    report.about("NumPy", np.__version__)
    report.about("Theano", theano.__version__)
    if settings.cuda:
        from theano.gpuarray import dnn

        report.about("Theano's cuDNN", dnn.version(raises=False))
    algorithms = [f"dnn.conv.{name}" for name in ("algo_fwd", "algo_bwd_data", "algo_bwd_filter")]
    for flag in ("gpuarray.preallocate", "allow_gc", *algorithms, "dnn.conv.precision"):
        value: Any = theano.config
        for step in flag.split("."):
            value = getattr(value, step)
        report.about(f"Theano's {flag}", value)
