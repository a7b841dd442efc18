"""Random work on a runtime for a long time: is memory flat, and every result right?

    python integration/endurance/soak.py --seconds 3600 --json results.json

The work is that of `_soak_work.py`; all calls are proved, and now and then the runtime is closed,
and another one started. Once a second, between two calls and after a garbage collection, it
measures how much of each resource the master and its workers have. Exits with status 1 if one is
not flat: see `BOUNDS`.
"""

from __future__ import annotations

import argparse
import gc
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any, Optional

import _results
import numpy as np
import psutil
from _soak_work import Life

import synk_shm

MIB = 2**20
SAMPLE_S = 1.0
_PLACES = 12.0
"""Functions that Python has not collected yet, Data that are there, and what is just new."""
BOUNDS = {
    # free()d pieces between others in use stay with a process; a leak of one row of each call would
    # be more in an hour.
    "master's memory": (6.0, 0.03),
    "largest worker's memory": (6.0, 0.03),
    "master's descriptors": (_PLACES, 0.0),
    "most of a worker's descriptors": (_PLACES, 0.0),
    # They end a moment after their work.
    "master's threads": (0.5, 0.0),
    "workers' threads": (0.5, 0.0),
    "segments": (_PLACES, 0.0),
    # Data of up to 1 MiB, half as much again to grow into, come and go.
    "shared memory": (4.0, 0.0),
}
"""How much each resource may grow over the second half of the time, and over the second half of the
longest runtime: a number, or MiB; and a share of the median level besides.

The first half is for what programs take once: compiled forms, caches, the allocator's arenas. The
growth is the robust slope (Theil and Sen: the median of the slopes between all pairs of samples)
times the seconds, so that neither single samples nor the sizes of a moment matter.
"""


def sample(life: Life, number: int, began: float) -> dict[str, float]:
    """Return how much of each resource is in use, in the runtime of this number."""
    gc.collect()
    master = psutil.Process()
    workers = [psutil.Process(pid) for pid in life.runtime.worker_pids]
    mine = [info for info in synk_shm.list() if info.mine]
    return {
        "seconds": round(time.monotonic() - began, 2),
        "runtime": number,
        "master's memory": _memory(master),
        "largest worker's memory": max(_memory(worker) for worker in workers),
        "master's descriptors": master.num_fds(),
        "most of a worker's descriptors": max(worker.num_fds() for worker in workers),
        "master's threads": master.num_threads(),
        "workers' threads": sum(worker.num_threads() for worker in workers),
        "segments": len(mine),
        "shared memory": round(sum(info.nbytes for info in mine) / MIB, 3),
    }


def _memory(process: psutil.Process) -> float:
    """Return MiB of private memory: shared memory is counted apart, once."""
    info = process.memory_info()
    return round((info.rss - info.shared) / MIB, 2)


def slope(x: np.ndarray, y: np.ndarray) -> float:
    """Return the median of the slopes between all pairs of points; 0 for a single one."""
    i, j = np.triu_indices(len(x), 1)
    return float(np.median((y[j] - y[i]) / (x[j] - x[i]))) if len(x) > 1 else 0.0


def growths(samples: list[dict[str, float]]) -> dict[str, dict[str, float]]:
    """Return each resource's level and growth over the second half, and what is allowed."""
    middle = (samples[0]["seconds"] + samples[-1]["seconds"]) / 2
    half = [one for one in samples if one["seconds"] >= middle]
    half = half if len(half) > 1 else samples
    # All pairs of an hour's samples are some millions; more would not be more exact.
    half = half[:: max(len(half) // 1000, 1)]
    x = np.array([one["seconds"] for one in half])
    found = {}
    for name, (growth, share) in BOUNDS.items():
        y = np.array([one[name] for one in half])
        level = float(np.median(y))
        found[name] = {
            "level": round(level, 2),
            "growth": round(slope(x, y) * float(x[-1] - x[0]), 2),
            "allowed": round(growth + share * level, 2),
        }
    return found


def in_one_runtime(samples: list[dict[str, float]]) -> list[dict[str, float]]:
    """Return the samples of the runtime that has most of them: its end frees what it leaks."""
    numbers = Counter(one["runtime"] for one in samples)
    longest = numbers.most_common(1)[0][0]
    return [one for one in samples if one["runtime"] == longest]


def growing(result: dict[str, Any]) -> list[str]:
    """Return the resources that are not flat, over all or in the longest runtime."""
    found = []
    for name in BOUNDS:
        rows = (result["growths"][name], result["growths_in_one_runtime"][name])
        if any(row["growth"] > row["allowed"] for row in rows):
            found.append(name)
    return found


def show(result: dict[str, Any]) -> None:
    wrong = growing(result)
    print(
        f"{result['calls']} acts in {result['seconds']} s and {result['lives']} runtimes; close()"
    )
    print(f"took {result['close_s']['worst']} s at most.")
    print(f"{'':<30} {'level':>8} {'growth':>8} {'of one':>8} {'allowed':>8}")
    for name, row in result["growths"].items():
        alone = result["growths_in_one_runtime"][name]["growth"]
        numbers = (row["level"], row["growth"], alone, row["allowed"])
        text = " ".join(f"{number:>8g}" for number in numbers)
        print(f"{name:<30} {text}  {'GROWS' if name in wrong else 'flat'}")


def soak(seconds: float, least: int, seed: int, size: int, backend: str) -> dict[str, Any]:
    """Work for so long, and until there were at least so many acts; return what was found."""
    rng = np.random.default_rng(seed)
    acts: Counter[str] = Counter()
    samples: list[dict[str, float]] = []
    closes: list[float] = []
    life: Optional[Life] = None
    began = said = time.monotonic()
    end, life_end, next_sample = began + seconds, 0.0, 0.0
    with tempfile.TemporaryDirectory(prefix="soak-") as folder:
        try:
            while (now := time.monotonic()) < end or sum(acts.values()) < least:
                if life is None:
                    life = Life(size, int(rng.integers(size)), backend, rng, Path(folder))
                    # Long ones, too: what grows with the calls has to show.
                    life_end = time.monotonic() + seconds * rng.uniform(0.05, 0.3)
                acts[life.act()] += 1
                if now >= next_sample:
                    samples.append(sample(life, len(closes), began))
                    next_sample = time.monotonic() + SAMPLE_S
                if now - said > 30.0:
                    said = now
                    print(f"{now - began:5.0f} s  {sum(acts.values())} acts", flush=True)
                if now > life_end:
                    closes.append(life.close())
                    life = None
        finally:
            if life is not None:
                closes.append(life.close())
    return {
        "seconds": round(time.monotonic() - began, 1),
        "seed": seed,
        "ranks": size,
        "backend": backend,
        "calls": sum(acts.values()),
        "lives": len(closes),
        "acts": dict(acts.most_common()),
        "close_s": {"median": round(float(np.median(closes)), 4), "worst": round(max(closes), 4)},
        "growths": growths(samples),
        "growths_in_one_runtime": growths(in_one_runtime(samples)),
        "samples": samples,
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--acts", type=int, default=1, help="go on until there were so many")
    parser.add_argument("--ranks", type=int, default=3)
    parser.add_argument("--backend", choices=["shm", "zmq"], default="shm")
    arguments = _results.begin(parser)
    kind = (arguments.seed, arguments.ranks, arguments.backend)
    result = soak(arguments.seconds, arguments.acts, *kind)
    show(result)
    _results.write(arguments.json, result)
    return int(bool(growing(result)))


if __name__ == "__main__":
    sys.exit(main())
