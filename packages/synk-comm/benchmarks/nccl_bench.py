"""Measure all_reduce of device arrays: synk-comm with all its checks, beside NCCL without any.

    python nccl_bench.py [--ranks 2] [--rounds 11] [--out FILE]

Needs one GPU for each rank, and nccl4py. Contenders run in turns in the same processes, on the
same array, in place, ``avg``; what is not installed is left out. A round is a number of calls
back to back and a wait for the GPU at the end; the table shows the slowest rank, and the median
of the rounds. *Host* is how long a call takes to return.
"""

# ruff: noqa: T201, S101 - a command line tool prints, and refuses to report wrong results

from __future__ import annotations

import argparse
import importlib.util
import os
import platform
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, Callable

import numpy as np

from synk_comm._backends.nccl.arrays import resolve
from synk_comm._backends.nccl.communicator import nccl
from synk_comm._backends.nccl.start import load_binding
from synk_comm.abc import Communicator
from synk_comm.cuda import Driver
from synk_comm.testing import run_ranks

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests"))

from _cuda_array import CudaArray

CASES = [
    # label, float32 elements, calls in a round
    ("1 KB, waiting for each", 256, 1),
    ("1 KB", 256, 300),
    ("1 MB", 1 << 18, 200),
    ("64 KB", 1 << 14, 300),
    ("16 MB", 1 << 22, 100),
    ("102 MB (25.6 M)", 25_600_000, 20),
    ("256 MB", 1 << 26, 10),
]
_FLOAT32, _AVG = 7, 4


def bare(host: Communicator, driver: Driver, device: int, blocking: int) -> Callable[[Any], None]:
    """Return an all_reduce that is one call of nccl4py's low-level binding, and nothing else."""
    binding = load_binding()
    said = bytes(binding.get_unique_id()) if host.rank == 0 else b""
    unique_id = bytearray(host.broadcast_object(said))
    with driver.entered(device):
        config = binding.Config()
        config.blocking = blocking
        comm = binding.comm_init_rank_config(host.size, unique_id, host.rank, config.ptr)
    ask = binding.comm_get_async_error
    while ask(comm) == 7:
        time.sleep(0.001)

    def call(where: Any) -> None:
        pointer = where.pointer
        binding.all_reduce(pointer, pointer, where.elements, _FLOAT32, _AVG, comm, 0)
        if not blocking:
            while ask(comm) == 7:
                pass

    return call


def measure(host: Communicator, rounds: int, folder: str) -> dict[str, Any]:
    """Measure on one rank; return the times by case and contender, and what was used."""
    device, driver = host.rank, Driver()
    about = {"python": platform.python_version(), "numpy": np.__version__}
    torch: Any = None
    if importlib.util.find_spec("torch") is not None:
        import torch

        torch.cuda.set_device(device)
        torch.distributed.init_process_group(
            "nccl",
            init_method=f"file://{folder}/meet",
            rank=host.rank,
            world_size=host.size,
            device_id=torch.device("cuda", device),
        )
        about["torch"] = torch.__version__
        about["torch's NCCL"] = ".".join(map(str, torch.cuda.nccl.version()))
        about["GPU"] = torch.cuda.get_device_name(device)
    binding = load_binding()
    about["NCCL"] = str(binding.get_version())
    comm = nccl(host, device=device)
    loops = {
        "bare nccl4py, blocking": bare(host, driver, device, 1),
        "bare nccl4py, non-blocking": bare(host, driver, device, 0),
    }

    def wait() -> None:
        with driver.entered(device):
            while not driver.is_done(0):
                pass

    times: dict[str, dict[str, Any]] = {}
    for label, elements, calls in CASES:
        values = np.full(elements, host.rank + 1.0, np.float32)
        x: Any
        if torch is not None:
            x = torch.from_numpy(values).cuda(device)
        else:
            x = CudaArray.of(driver, values, device)
        where = resolve(x, driver.device_of)
        contenders: dict[str, Callable[[], Any]] = {
            "synk-comm": lambda x=x: comm.all_reduce(x, "avg", out=x)  # type: ignore[misc]
        }
        for name, loop in loops.items():
            contenders[name] = lambda loop=loop, where=where: loop(where)  # type: ignore[misc]
        if torch is not None:
            contenders["torch.distributed"] = lambda x=x: torch.distributed.all_reduce(
                x, torch.distributed.ReduceOp.AVG
            )
        times[label] = {name: [] for name in contenders}
        for number in range(rounds + 2):
            for name, call in contenders.items():
                host.barrier()
                began = time.perf_counter()
                for _ in range(calls):
                    call()
                returned = time.perf_counter()
                wait()
                ended = time.perf_counter()
                if number >= 2:  # the first rounds warm up
                    took = (ended - began) / calls, (returned - began) / calls
                    times[label][name].append(took)
        result = x.cpu().numpy() if torch is not None else x.host()
        assert np.allclose(result, (host.size + 1) / 2), "wrong results"
    comm.synchronize()
    if torch is not None:
        torch.distributed.destroy_process_group()
    comm.close()
    return {"times": times, "about": about}


def report(results: list[dict[str, Any]]) -> str:
    """Return a table of the slowest rank's medians, in microseconds."""
    first = results[0]
    lines = [f"{name}: {value}  " for name, value in first["about"].items()]
    names = list(next(iter(first["times"].values())))
    lines += ["", "| all_reduce avg, in place | " + " | ".join(f"{name}, us" for name in names)]
    lines[-1] += " | synk-comm's host, us | synk-comm / bare blocking |"
    lines.append("|---" * (len(names) + 3) + "|")
    for label in first["times"]:
        cells: list[float] = []
        hosts: list[float] = []
        for name in names:
            rounds = zip(*(result["times"][label][name] for result in results))
            slowest = [
                (max(took for took, _ in ranks), max(back for _, back in ranks)) for ranks in rounds
            ]
            cells.append(statistics.median(took for took, _ in slowest) * 1e6)
            hosts.append(statistics.median(back for _, back in slowest) * 1e6)
        row = [label, *(f"{cell:.1f}" for cell in cells), f"{hosts[0]:.1f}"]
        lines.append("| " + " | ".join([*row, f"{cells[0] / cells[1]:.2f}"]) + " |")
    return "\n".join(lines)


def main() -> None:
    """Run from the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=11)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    sys.path.insert(0, os.fspath(Path(__file__).parent))
    import nccl_bench

    with tempfile.TemporaryDirectory() as folder:
        results = run_ranks(
            options.ranks, nccl_bench.measure, options.rounds, folder, timeout_s=300
        )
    text = report(results)
    print(text)
    if options.out:
        options.out.write_text(text + "\n")


if __name__ == "__main__":
    main()
