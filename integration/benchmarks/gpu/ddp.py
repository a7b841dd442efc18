"""PyTorch's own data parallelism on the same work; started by run.py, by the Python with torch.

The same batches, data in host memory, and rule: shuffled rows are excerpted by each rank, by
several threads, into a page-locked buffer, copied to its GPU, and the loss is read back in each
step, since a Theano function returns it. One GPU runs the bare network, without DDP. Memory format
and precision stay the defaults, except where a contender's name says otherwise.
"""

from __future__ import annotations

import gc
import json
import os
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Callable

import numpy as np
import torch
import torchvision
from torch import distributed
from torch.nn.parallel import DistributedDataParallel

sys.path.append(str(Path(__file__).resolve().parents[3] / "benchmarks"))

from synk_benchmarks.results import row_of, write_row

ROWS, ABOUT = "rows.jsonl", "about.jsonl"  # as in gpubench.job
RATE, MOMENTUM = 1e-4, 0.9
WARM = 5
THREADS = 8  # that excerpt rows in a rank: with one for each core, ranks slow each other
BATCH = {"resnet": 64, "vgg": 16}
CONTENDERS = {
    # name: (TF32 in convolutions, cuDNN's algorithms chosen by timing them, prefetching)
    "PyTorch DDP, defaults": (True, False, False),
    "PyTorch DDP, cudnn.benchmark": (True, True, False),
    "PyTorch DDP, cudnn.benchmark, prefetching": (True, True, True),
    "PyTorch DDP, cudnn.benchmark, no TF32": (False, True, False),
}


def main() -> None:
    settings = json.loads(sys.argv[1])
    side, classes = (32, 10) if settings["tiny"] else (224, 1000)
    images = settings["images"]
    data = torch.rand((images, 3, side, side)).share_memory_()
    labels = torch.randint(classes, (images,)).share_memory_()
    with tempfile.TemporaryDirectory() as folder:
        arguments = (settings, sys.argv[2], folder, data, labels)
        torch.multiprocessing.spawn(rank_main, arguments, nprocs=settings["gpus"])


def rank_main(
    rank: int, settings: dict[str, Any], out: str, folder: str, data: Any, labels: Any
) -> None:
    gpus, cuda = settings["gpus"], settings["device"] == "cuda"
    device = torch.device("cuda", rank) if cuda else torch.device("cpu")
    if cuda:
        torch.cuda.set_device(device)
    cores = max(1, (os.cpu_count() or 1) // gpus)
    torch.set_num_threads(min(THREADS, cores) if cuda else cores)
    distributed.init_process_group(
        "nccl" if cuda else "gloo", init_method=f"file://{folder}/meet", rank=rank, world_size=gpus
    )
    try:
        for network, size in BATCH.items():
            for name, (tf32, by_timing, prefetches) in CONTENDERS.items():
                torch.backends.cudnn.allow_tf32 = tf32
                torch.backends.cudnn.benchmark = by_timing
                batch = 4 if settings["tiny"] else size
                model = _network(network, settings["tiny"]).to(device)
                loader = Loader(device, (rank, gpus), batch, data, labels, prefetches)
                step = _step(model, device, rank, gpus, loader)
                times = _measure(step, device, settings["rounds"], settings["steps"])
                if rank == 0:
                    label = f"a step, {gpus} GPU{'s' if gpus > 1 else ''}"
                    more = {"ranks": gpus, "images": batch * gpus}
                    write_row(Path(out, ROWS), row_of(network, label, {name: times}, **more))
                loader.close()
                del model, step, loader
                gc.collect()
                if cuda:
                    torch.cuda.empty_cache()
        if rank == 0:
            about = json.dumps(_versions(device)) + "\n"
            Path(out, ABOUT).write_text(about, encoding="utf-8")
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


class Loader:
    """Batches of one rank on its device; each stays as it is until the next but one is asked for.

    If it is `ahead`, it excerpts and copies the next batch while this one is used.
    """

    def __init__(
        self, device: Any, share: tuple[int, int], batch: int, data: Any, labels: Any, ahead: bool
    ) -> None:
        self._device, self._batch = device, batch
        self._rank, self._gpus = share
        self._data, self._labels = data, labels
        self._order: Any = np.empty(0, np.int64)
        self._generator = np.random.default_rng(2)  # the same on all ranks, which take shares
        cuda = device.type == "cuda"

        def locked(like: Any) -> Any:
            return torch.empty((batch, *like.shape[1:]), dtype=like.dtype, pin_memory=cuda)

        self._locked = [(locked(data), locked(labels)) for _ in range(2)]
        self._turn = 0
        self._stream = torch.cuda.Stream(device) if cuda and ahead else None
        self._thread = None
        if ahead:
            threads = (torch.get_num_threads(),)  # the thread's own default would be all cores
            self._thread = ThreadPoolExecutor(1, "loader", torch.set_num_threads, threads)
        self._next = self._thread.submit(self._take) if self._thread else None

    def __call__(self) -> tuple[Any, Any]:
        if self._thread is None or self._next is None:
            return self._take()
        arrays = self._next.result()
        if self._stream is not None:
            current = torch.cuda.current_stream(self._device)
            current.wait_stream(self._stream)
            for array in arrays:
                array.record_stream(current)
        self._next = self._thread.submit(self._take)
        return arrays

    def close(self) -> None:
        if self._thread is not None:
            self._thread.shutdown()

    def _take(self) -> tuple[Any, Any]:
        many, rank, batch = self._batch * self._gpus, self._rank, self._batch
        if len(self._order) < many:
            self._order = self._generator.permutation(len(self._data))
        rows = torch.from_numpy(self._order[rank * batch : (rank + 1) * batch])
        self._order = self._order[many:]
        x, y = self._locked[self._turn]
        self._turn = 1 - self._turn
        if self._stream is not None:
            self._stream.synchronize()  # what was copied from there last has been read
        torch.index_select(self._data, 0, rows, out=x)
        torch.index_select(self._labels, 0, rows, out=y)
        with torch.cuda.stream(self._stream):
            return tuple(array.to(self._device, non_blocking=True) for array in (x, y))


def _step(model: Any, device: Any, rank: int, gpus: int, loader: Loader) -> Callable[[], float]:
    if gpus > 1:
        model = DistributedDataParallel(model, device_ids=[rank] if device.type == "cuda" else None)
    optimizer = torch.optim.SGD(model.parameters(), RATE, momentum=MOMENTUM, nesterov=True)
    entropy = torch.nn.CrossEntropyLoss()

    def step() -> float:
        x, y = loader()
        loss = entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return float(loss.item())  # waits, so that the batch's memory can be filled anew

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


def _versions(device: Any) -> dict[str, str]:
    about = {"torch": torch.__version__, "torchvision": torchvision.__version__}
    about["torch's matrix products"] = (
        "TF32" if torch.backends.cuda.matmul.allow_tf32 else "float32"
    )
    if device.type == "cuda":
        about["torch's cuDNN"] = str(torch.backends.cudnn.version())
    return about


if __name__ == "__main__":
    main()
