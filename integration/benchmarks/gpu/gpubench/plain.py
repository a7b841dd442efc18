"""Plain Theano on one device: the program that synkhronos is to make parallel."""

from __future__ import annotations

import time
from typing import Any

import lasagne
import numpy as np
import theano
from synk_benchmarks.rounds import time_in_turns

from . import networks
from .clock import batches, device_wait
from .job import PLAIN, PLAIN_TAKE, Report, Settings

WARM = 5


def main(settings: Settings, report: Report) -> None:
    """Measure training steps: ``x[idx]``, and rows taken into a buffer that is reused."""
    if settings.device != "cpu":
        from theano import gpuarray

        gpuarray.use("cuda0" if settings.cuda else settings.device)
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
    numbers = batches(network.images, network.batch)

    def index() -> Any:
        rows = next(numbers)
        return train(images[rows], labels[rows])

    def take() -> Any:
        rows = next(numbers)
        for array, buffer in zip(arrays, buffers):
            np.take(array, rows, axis=0, out=buffer, mode="clip")
        return train(*buffers)

    ways = {PLAIN: index, PLAIN_TAKE: take}
    wait = device_wait(network.params[-1])
    times = time_in_turns(ways, settings.rounds, calls=settings.steps, warm=WARM, wait=wait)
    for name, seconds in times.items():
        report.row(part, "a step", name, seconds, images=network.batch)
    loss = float(index())
    assert np.isfinite(loss), f"the loss is {loss}"
    if settings.cuda:
        from theano.gpuarray import dnn

        report.about("Theano's cuDNN", dnn.version(raises=False))
