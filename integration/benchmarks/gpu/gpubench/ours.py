"""A runtime of synkhronos: training steps, the distribution of the functions, the timeline."""

from __future__ import annotations

import itertools
import tempfile
import time
from pathlib import Path
from typing import Any, Callable

import numpy as np

import synkhronos as synk
from synkhronos.extensions import updates
from synkhronos.extensions.train import make_train_function

from . import networks, timeline
from .clock import Batches, device_wait, rounds
from .job import Report, Settings
from .tables import COPY, FROM_MEMORY, OURS, OURS_AHEAD, OURS_SUM

WARM = 5


def main(settings: Settings, report: Report) -> None:
    """Build a training function over all ranks, and measure what is asked for."""
    profile = settings.profile and "timeline" in settings.measures
    synk.fork(**settings.devices(), profile_workers=profile)
    part = settings.network
    synk.distribute()  # returns when the workers have started
    began = time.perf_counter()
    network = networks.build(settings.network, settings.tiny, settings.images)
    train = make_train_function(
        network.loss,
        network.params,
        network.inputs,
        updates.nesterov_momentum,
        learning_rate=networks.RATE,
        momentum=networks.MOMENTUM,
        updates=network.updates,
    )
    report.row(part, "make_train_function()", OURS, time.perf_counter() - began)
    shapes = networks.shapes(network)
    images = synk.data(shape=shapes[0], dtype="float32", ndim=4)
    labels = synk.data(shape=shapes[1], dtype="int32", ndim=1)
    networks.fill(network, images.data, labels.data)
    report.ready()

    began = time.perf_counter()
    synk.distribute()
    seconds = time.perf_counter() - began
    elements = int(np.prod(train.flat_grad.get_value(borrow=True, return_internal_type=True).shape))
    if settings.gpus > 1:
        _distribution(settings, report, seconds, elements)

    batches = Batches(network.images, network.batch * settings.gpus)

    def step() -> Any:
        return train(images, labels, batch=batches())

    steps = train.steps(images, labels, (batches() for _ in itertools.count()))
    ways: dict[str, Callable[[], Any]] = {OURS: step, OURS_AHEAD: lambda: next(steps)}
    wait = device_wait(network.params[-1])
    if "steps" in settings.measures:
        many = network.batch * settings.gpus
        for name, seconds in rounds(ways, wait, settings.rounds, settings.steps, WARM).items():
            note = f"gradient: {synk.stats()['train: gradient'].graph or 'eager'}"
            report.row(part, "step", name, seconds, images=many, note=note)
        if settings.gpus > 1:
            gradient = train.flat_grad
            alone = {OURS: lambda: synk.all_reduce(gradient, op="avg")}
            wait_gradient = device_wait(gradient)
            times = rounds(alone, wait_gradient, settings.rounds, settings.steps)
            what = f"all_reduce of the gradient, {elements:,} float32"
            report.row(part, what, OURS, times[OURS], nbytes=4 * elements)
    loss = float(step())
    assert np.isfinite(loss), f"the loss is {loss}"
    if settings.gpus > 1:
        _same_everywhere(network.params[0])
    if "timeline" in settings.measures:
        timeline.measure(settings, report, network, train, images, labels)
    if "files" in settings.measures:
        _files(settings, report, network, train, steps)
    synk.close()
    if profile:
        timeline.worker_profiles(report)


def _distribution(settings: Settings, report: Report, seconds: float, elements: int) -> None:
    what = f"distribute(), {settings.network}"
    note = f"two functions and their variables; {elements:,} parameters"
    report.row("distribution", what, OURS, seconds, note=note)


def _files(
    settings: Settings, report: Report, network: networks.Network, train: Any, from_memory: Any
) -> None:
    """Steps on a data set in a file, beside the mere copying of its rows, and steps on a `Data`."""
    total = synk.function([network.inputs[0]], network.inputs[0].sum(), name="total")
    synk.distribute()
    (shape, _), many = networks.shapes(network), network.batch * settings.gpus
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "images.npy")
        images = np.lib.format.open_memmap(path, "w+", "float32", shape)
        labels = np.zeros(network.images, "int32")
        networks.fill(network, images, labels)
        target = np.empty((many, *shape[1:]), "float32")
        batches = Batches(network.images, many)
        steps = train.steps(images, labels, (batches() for _ in itertools.count()))
        ways: dict[str, Callable[[], Any]] = {
            COPY: lambda: np.take(images, batches(), 0, target, "clip"),
            OURS_SUM: lambda: total(images, batch=batches()),
            OURS_AHEAD: lambda: next(steps),
            FROM_MEMORY: lambda: next(from_memory),
        }
        wait = device_wait(network.params[-1])
        report.about("the file", f"{images.nbytes / 1e9:.1f} GB")
        for name, seconds in rounds(ways, wait, settings.rounds, settings.steps, WARM).items():
            report.row("files", f"{many} rows", name, seconds, nbytes=target.nbytes)
        steps.close()


def _same_everywhere(variable: Any) -> None:
    """Replicas that drifted apart would make every figure worthless."""
    values = synk.gather(variable)
    assert np.array_equal(values[0], values[-1]), "the ranks' parameters differ"
