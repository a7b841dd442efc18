"""Where the time of a step goes that is not compute: each part by itself, at the step's sizes."""

from __future__ import annotations

import cProfile
import ctypes
import pstats
from pathlib import Path
from typing import Any, Callable

import numpy as np
import theano

import synkhronos as synk

from .clock import Batches, device_wait, rounds
from .job import Report, Settings
from .networks import Network

ROUNDS, CALLS = 7, 10
RANKS, HOST = "all ranks", "the master alone"
LINES = 25


def measure(
    settings: Settings, report: Report, network: Network, train: Any, images: Any, labels: Any
) -> None:
    """Measure whole steps, their acts, and the parts of an act."""
    count, calls = (2, 2) if settings.tiny else (ROUNDS, CALLS)
    many = network.batch * settings.gpus
    batches = Batches(network.images, many)
    wait = device_wait(network.params[-1])

    def step() -> Any:
        return train(images, labels, batch=batches())

    def write(ways: dict[str, Callable[[], Any]], who: str, notes: dict[str, str]) -> None:
        for name, seconds in rounds(ways, wait, count, calls).items():
            report.row("timeline", name, who, seconds, note=notes.get(name, ""))

    gradient, update, vector = train.grad_function, train.update_function, train.flat_grad
    idle = synk.function([], updates=None, outputs=None, name="nothing")
    synk.distribute()
    acts: dict[str, Callable[[], Any]] = {
        "a step, rows by index": step,
        "a step, rows by slice": lambda: train(images, labels, batch=slice(0, many)),
        "gradient alone": lambda: gradient(images, labels, batch=batches()),
        "all_reduce alone": _waited(lambda: synk.all_reduce(vector, "avg"), vector),
        "update alone": _waited(update, network.params[-1]),
        "an order of nothing": idle,
        "a step of three nothings": lambda: synk.step(idle, idle, idle),
    }
    write(
        acts,
        RANKS,
        {
            "a step, rows by index": "the whole: what follows are parts of it",
            "a step, rows by slice": "less the excerpt of rows",
            "all_reduce alone": "waited for each",
            "update alone": "waited for each",
            "a step of three nothings": "orders, barriers: no data",
        },
    )
    host = [np.array(array.data[: network.batch]) for array in (images, labels)]
    parts, notes = _parts(settings, network, gradient, images.data, host)
    write(parts, HOST, notes)
    _figures(report, step, calls)
    _master_profile(report, step, calls)


def _waited(call: Callable[[], Any], variable: Any) -> Callable[[], None]:
    wait = device_wait(variable)

    def both() -> None:
        call()
        wait()

    return both


def _parts(
    settings: Settings, network: Network, gradient: Any, data: Any, host: list[Any]
) -> tuple[dict[str, Callable[[], Any]], dict[str, str]]:
    """Return what the master can do by itself while the workers wait."""
    rows, buffer = Batches(network.images, network.batch), np.empty_like(host[0])
    alone = gradient.as_theano
    ways: dict[str, Callable[[], Any]] = {
        "gradient, rows given": lambda: alone(*host),
        "excerpt, x[idx]": lambda: data[rows()],
        "excerpt, np.take(out=)": lambda: np.take(data, rows(), axis=0, out=buffer, mode="clip"),
    }
    size = f"{host[0].nbytes / 1e6:.1f} MB"
    notes = {
        "gradient, rows given": "compute, and the copy of pageable rows to the device",
        "excerpt, x[idx]": size,
        "excerpt, np.take(out=)": size,
    }
    if settings.device == "cpu":
        return ways, notes
    device = theano.shared(host[0])
    target = device.get_value(borrow=True, return_internal_type=True)
    loss = theano.shared(np.ones(1, "float32")).get_value(borrow=True, return_internal_type=True)

    wait = device_wait(device)

    def copy_from(source: Any) -> Callable[[], None]:
        def copy() -> None:
            target.write(source)
            wait()

        return copy

    ways["host to device, pageable"] = copy_from(host[0])
    ways["loss to host"] = lambda: np.asarray(loss)
    notes["host to device, pageable"] = size
    if settings.cuda:
        _lock_pages(target.context, buffer)
        ways["host to device, page-locked"] = copy_from(buffer)
        notes["host to device, page-locked"] = size
    return ways, notes


def _lock_pages(context: Any, array: Any) -> None:
    with context:
        pointer, length = ctypes.c_void_p(array.ctypes.data), ctypes.c_size_t(array.nbytes)
        status = ctypes.CDLL("libcuda.so.1").cuMemHostRegister_v2(pointer, length, 0)
    assert status == 0, f"cuMemHostRegister: {status}"


def _figures(report: Report, step: Callable[[], Any], calls: int) -> None:
    """What the runtime counts itself, per step."""
    synk.stats(reset=True)
    for _ in range(calls):
        step()
    for name, item in synk.stats().items():
        for figure in ("scatter_s", "compute_s", "wait_s", "reduce_s"):
            seconds = getattr(item, figure) / calls
            if seconds:
                report.row("timeline", f"stats: {figure[:-2]}, {name}", RANKS, seconds)


def _master_profile(report: Report, step: Callable[[], Any], calls: int) -> None:
    profile = cProfile.Profile()
    profile.enable()
    for _ in range(calls):
        step()
    profile.disable()
    _write_profile(report.beside("profile-master.txt"), profile, f"{calls} steps")


def worker_profiles(report: Report) -> None:
    """Write the profiles that workers left in the current folder as text."""
    for path in sorted(Path().glob("synkhronos_profile_rank*.prof")):
        _write_profile(report.beside(f"{path.stem}.txt"), str(path), "the whole process")
        path.unlink()


def _write_profile(path: Path, profile: Any, what: str) -> None:
    with path.open("w", encoding="utf-8") as file:
        file.write(f"{what}\n")
        pstats.Stats(profile, stream=file).strip_dirs().sort_stats("tottime").print_stats(LINES)
