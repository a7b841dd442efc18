"""A runtime of synkhronos: training steps, the distribution of the functions, the timeline."""

from __future__ import annotations

import time
from typing import Any, Callable

import numpy as np
from synk_benchmarks.rounds import time_in_turns

import synkhronos as synk
from synkhronos.extensions import updates
from synkhronos.extensions.train import make_train_function

from . import networks
from .clock import batches, device_wait
from .job import OURS, OURS_AHEAD, Report, Settings

WARM = 5


def main(settings: Settings, report: Report) -> None:
    """Build a training function over all ranks, and measure what is asked for."""
    synk.fork(**settings.devices())
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
        proof=False if part == "resnet" else None,  # normalization by rank, as of DDP
    )
    report.row(part, "make_train_function()", OURS, time.perf_counter() - began)
    shapes = networks.shapes(network)
    images = synk.data(shape=shapes[0], dtype="float32", ndim=4)
    labels = synk.data(shape=shapes[1], dtype="int32", ndim=1)
    networks.fill(network, images.data, labels.data)
    began = time.perf_counter()
    synk.distribute()
    seconds = time.perf_counter() - began
    if settings.gpus > 1:
        report.row("distribution", f"distribute(), {part}", OURS, seconds)
    many = network.batch * settings.gpus
    rows = batches(network.images, many)

    def step() -> Any:
        return train(images, labels, batch=next(rows))

    steps = train.steps(images, labels, batches(network.images, many))
    ways: dict[str, Callable[[], Any]] = {OURS: step, OURS_AHEAD: lambda: next(steps)}
    turn = {"calls": settings.steps, "warm": WARM}
    wait = device_wait(network.params[-1])
    for name, taken in time_in_turns(ways, settings.rounds, wait=wait, **turn).items():
        report.row(part, "a step", name, taken, images=many)
    report.about(f"gradient of {part}", synk.stats()["train: gradient"].graph or "eager")
    if settings.gpus > 1:
        gradient = train.flat_grad
        alone = {OURS: lambda: synk.all_reduce(gradient, op="avg")}
        wait = device_wait(gradient)
        times = time_in_turns(alone, settings.rounds, wait=wait, **turn)
        report.row(part, "all_reduce of the gradient", OURS, times[OURS])
    loss = float(step())
    assert np.isfinite(loss), f"the loss is {loss}"
    if settings.gpus > 1:
        # Replicas that drifted apart would make every figure worthless.
        values = synk.gather(network.params[0])
        assert np.array_equal(values[0], values[-1]), "the ranks' parameters differ"
    synk.close()
