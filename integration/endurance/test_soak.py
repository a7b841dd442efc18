"""Random work leaves memory, descriptors, threads and segments as they were."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import numpy as np
import pytest
from _checkout import ran

sys.path.insert(0, str(Path(__file__).parent))

import soak
from _soak_work import ACTS

SECONDS = 60
LIMIT_S = 240


@pytest.mark.nightly
def test_random_work_is_right_and_flat(tmp_path: Path) -> None:
    path = tmp_path / "soak.json"
    program = (soak.__file__, "--seconds", SECONDS, "--acts", "40", "--json", path)
    changes = {"SYNKHRONOS_USE_GPU": "0", "THEANO_FLAGS": "mode=FAST_COMPILE"}
    done = ran(sys.executable, *program, env={**os.environ, **changes}, timeout=LIMIT_S)
    printed = done.stdout + done.stderr
    # A wrong result raises, and then no file is written.
    assert path.exists(), printed
    result = json.loads(path.read_text(encoding="utf-8"))
    assert result["seconds"] >= SECONDS
    assert set(result["growths"]) == set(soak.BOUNDS)
    assert (done.returncode, soak.growing(result)) == (0, []), printed
    assert len(result["acts"]) >= len(ACTS) // 2
    assert len(result["samples"]) >= SECONDS // 10


def samples(leak: float = 0.0) -> list[dict[str, float]]:
    """Ten minutes of a program whose resources go up and down, and grow by so many percent."""
    rng = np.random.default_rng(0)
    levels = dict.fromkeys(soak.BOUNDS, 40.0)
    levels.update({name: 150.0 for name in levels if "memory" in name})
    levels.update({name: 3.0 for name in levels if "threads" in name})
    found = []
    for second in range(600):
        one = {"seconds": float(second), "runtime": second // 70}
        saw = (second % 70) / 70  # what comes with each runtime, and goes with it
        for name, level in levels.items():
            noise = 0 if "threads" in name else 0.03 * rng.normal() + 0.1 * saw
            one[name] = level * (1 + leak / 100 * second / 60 + noise)
        found.append(one)
    return found


def grows(one: dict[str, float]) -> bool:
    return one["growth"] > one["allowed"]


def test_growth_with_calls_is_found_and_ups_and_downs_are_flat() -> None:
    assert not any(map(grows, soak.growths(samples()).values()))
    leaking = soak.growths(samples(leak=8.0))
    assert all(map(grows, leaking.values())), leaking


def test_a_leak_that_ends_with_its_runtime_is_found() -> None:
    found = samples()
    for one in found:
        one["runtime"] = 0 if one["seconds"] < 350 else one["seconds"] // 70
        one["largest worker's memory"] = 150.0
        if one["runtime"] == 0:
            one["largest worker's memory"] += one["seconds"] / 10
    alone = soak.in_one_runtime(found)
    assert (len(alone), alone[-1]["seconds"]) == (350, 349.0)
    result = {"growths": soak.growths(found), "growths_in_one_runtime": soak.growths(alone)}
    assert not any(map(grows, result["growths"].values()))
    assert soak.growing(result) == ["largest worker's memory"]
