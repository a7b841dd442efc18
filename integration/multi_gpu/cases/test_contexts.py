"""Several devices in a rank, by the names of Theano's contexts."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from synk_testing import run

PROGRAM = Path(__file__).parent / "_contexts.py"
LIMIT_S = 300


def of(device_set):
    return list(device_set.devices) or [f"cuda{i}" for i in range(device_set.ranks)]


def groups_of(device_set):
    """Both names on each rank's own device; and all devices in one rank, if there are two."""
    names = of(device_set)
    found = [[[name, name] for name in names]]
    if len(set(names)) > 1:
        found.append([names[:2]])
    return found


@pytest.mark.parametrize("by", ["groups", "flags", "plain Theano"])
def test_a_model_is_divided_over_the_devices_of_a_rank(device_set, by):
    if device_set.kind == "cpu":
        pytest.skip("processors have no contexts")
    if device_set.hosts:
        pytest.skip("a rank sees its own device alone")
    flags = os.environ.get("THEANO_FLAGS", "")
    attempts = [(devices, flags) for devices in groups_of(device_set)]
    if by != "groups":
        first, last = of(device_set)[0], of(device_set)[-1]
        ranks = of(device_set) if by == "flags" else []
        attempts = [(ranks, f"{flags},contexts=dev0->{first};dev1->{last}")]
    for devices, given in attempts:
        # Theano says by the other one that a parent process uses the GPU, and refuses it.
        changes = {"THEANO_FLAGS": given, "THEANO_GPU_IS_ALREADY_ACTIVE": ""}
        done = run(PROGRAM, json.dumps(devices), environment=changes, limit_s=LIMIT_S)
        assert done.out.endswith("right\n"), done.out + done.err
        assert "Traceback" not in done.err, done.err
