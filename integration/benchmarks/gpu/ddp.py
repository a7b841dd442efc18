"""PyTorch's own data parallelism on the same work; started by run.py, by the Python with torch.

The same batches, data in host memory, and rule: shuffled rows are excerpted by each rank into a
page-locked buffer, copied to its GPU, and the loss is read back in each step, since a Theano
function returns it. Networks are torchvision's. One GPU runs the bare network, without DDP.
Memory format and precision stay the defaults, except where a contender's name says otherwise:
by default cuDNN may round the factors of convolutions to TF32, matrix products are float32, and
cuDNN's algorithms are chosen by rule, not by timing them.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, Callable

import numpy as np
import torch
import torchvision
from torch import distributed
from torch.nn.parallel import DistributedDataParallel

RATE, MOMENTUM = 1e-4, 0.9
WARM = 5
BATCH = {"resnet": 64, "vgg": 16}
CONTENDERS = {
    # name: (TF32 in convolutions, cuDNN's algorithms chosen by timing them)
    "PyTorch DDP, defaults": (True, False),
    "PyTorch DDP, cudnn.benchmark": (True, True),
    "PyTorch DDP, cudnn.benchmark, no TF32": (False, True),
}


def main() -> None:
    """Prepare the data, wait for the turn, and have all ranks measure."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--settings", required=True)
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    settings = json.loads(options.settings)
    side, classes = (32, 10) if settings["tiny"] else (224, 1000)
    images = settings["images"]
    data = torch.rand((images, 3, side, side)).share_memory_()
    labels = torch.randint(classes, (images,)).share_memory_()
    sys.stdout.write("ready\n")
    sys.stdout.flush()
    if not sys.stdin.readline():
        sys.exit("it was not to measure")
    with tempfile.TemporaryDirectory() as folder:
        arguments = (settings, str(options.out), folder, data, labels)
        torch.multiprocessing.spawn(rank_main, arguments, nprocs=settings["gpus"])


def rank_main(
    rank: int, settings: dict[str, Any], out: str, folder: str, data: Any, labels: Any
) -> None:
    """One rank: every network with every contender."""
    gpus, cuda = settings["gpus"], settings["device"] == "cuda"
    device = torch.device("cuda", rank) if cuda else torch.device("cpu")
    if cuda:
        torch.cuda.set_device(device)
    else:
        torch.set_num_threads(max(1, (os.cpu_count() or 1) // gpus))
    distributed.init_process_group(
        "nccl" if cuda else "gloo", init_method=f"file://{folder}/meet", rank=rank, world_size=gpus
    )
    try:
        for network, size in BATCH.items():
            for name, (tf32, by_timing) in CONTENDERS.items():
                torch.backends.cudnn.allow_tf32 = tf32
                torch.backends.cudnn.benchmark = by_timing
                batch = 4 if settings["tiny"] else size
                model = _network(network, settings["tiny"]).to(device)
                step = _step(model, device, rank, gpus, batch, data, labels)
                times = _measure(step, device, settings["rounds"], settings["steps"])
                if rank == 0:
                    about = {"part": network, "what": "step", "contender": name, "gpus": gpus}
                    row = {**about, "rounds": times, "images": batch * gpus}
                    _write(out, row)
                del model, step
                gc.collect()
                if cuda:
                    torch.cuda.empty_cache()
        if rank == 0:
            _write(out, {"about": _versions(device, settings["tiny"])})
    finally:
        distributed.destroy_process_group()


def _network(name: str, tiny: bool) -> Any:
    torch.manual_seed(0)
    if tiny:
        nn = torch.nn
        return nn.Sequential(
            nn.Conv2d(3, 8, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 10)
        )
    return torchvision.models.resnet50() if name == "resnet" else torchvision.models.vgg16()


def _step(
    model: Any, device: Any, rank: int, gpus: int, batch: int, data: Any, labels: Any
) -> Callable[[], float]:
    if gpus > 1:
        model = DistributedDataParallel(model, device_ids=[rank] if device.type == "cuda" else None)
    optimizer = torch.optim.SGD(model.parameters(), RATE, momentum=MOMENTUM, nesterov=True)
    locked = device.type == "cuda"
    x = torch.empty((batch, *data.shape[1:]), pin_memory=locked)
    y = torch.empty(batch, dtype=labels.dtype, pin_memory=locked)
    generator = np.random.default_rng(2)  # the same on all ranks, each of which takes its share
    order: list[Any] = [np.empty(0, np.int64)]
    entropy = torch.nn.CrossEntropyLoss()

    def step() -> float:
        if len(order[0]) < batch * gpus:
            order[0] = generator.permutation(len(data))
        rows = torch.from_numpy(order[0][rank * batch : (rank + 1) * batch])
        order[0] = order[0][batch * gpus :]
        torch.index_select(data, 0, rows, out=x)
        torch.index_select(labels, 0, rows, out=y)
        loss = entropy(model(x.to(device, non_blocking=True)), y.to(device, non_blocking=True))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return float(loss.item())  # waits, so that x and y can be filled anew

    return step


def _measure(step: Callable[[], float], device: Any, rounds: int, steps: int) -> list[float]:
    def wait() -> None:
        if device.type == "cuda":
            torch.cuda.synchronize(device)

    for _ in range(WARM):
        step()
    times = []
    for _ in range(rounds):
        wait()
        distributed.barrier()
        began = time.perf_counter()
        for _ in range(steps):
            step()
        wait()
        times.append((time.perf_counter() - began) / steps)
    return times


def _versions(device: Any, tiny: bool) -> dict[str, str]:
    about = {"torch": torch.__version__, "torchvision": torchvision.__version__}
    about["torch's matrix products"] = (
        "TF32" if torch.backends.cuda.matmul.allow_tf32 else "float32"
    )
    if device.type == "cuda":
        about["torch's cuDNN"] = str(torch.backends.cudnn.version())
        for tf32 in (True, False):
            torch.backends.cudnn.allow_tf32 = tf32
            name = f"largest error of a 3 x 3 convolution, torch, allow_tf32={tf32}"
            about[name] = f"{_convolution_error(device, tiny):.1e} of the largest value"
    return about


def _convolution_error(device: Any, tiny: bool) -> float:
    """As `gpubench.plain.convolution_error`, with the same numbers."""
    generator = np.random.default_rng(3)
    channels, side = (4, 6) if tiny else (64, 28)
    x = torch.from_numpy(generator.standard_normal((8, channels, side, side)).astype("float32"))
    w = torch.from_numpy(generator.standard_normal((channels, channels, 3, 3)).astype("float32"))
    exact = torch.nn.functional.conv2d(x.double(), w.double())
    result = torch.nn.functional.conv2d(x.to(device), w.to(device)).cpu().double()
    return float((result - exact).abs().max() / exact.abs().max())


def _write(path: str, content: dict[str, Any]) -> None:
    with open(path, "a", encoding="utf-8") as file:
        file.write(json.dumps(content) + "\n")


if __name__ == "__main__":
    main()
