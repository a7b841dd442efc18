"""/dev/shm is full, in every state that might want of it: an error that says so, or none needed."""

from __future__ import annotations

import pytest
from _fault_case import PATIENT_S, STALL_S
from _fault_private import private_prefix

OPTIONS = {"n_parallel": 2, "stall_s": STALL_S, "timeout_s": PATIENT_S, "atomic": True}

ACTS = {
    # Known data, and buffers that are there.
    "compute": None,
    "step": None,
    "all_reduce": None,
    "broadcast": None,
    "gather": None,
    "end": None,
    # Room for what the workers do not have yet: a function, one of its forms, rows, indexes.
    "distribute": "ShmFullError",
    "slice": "ShmFullError",
    "grow": "ShmFullError",
    "copy": "ShmFullError",
}
"""By act the error, or None for those that need no room."""


@pytest.fixture(scope="module")
def crowded(hosts):
    """A program that sees a /dev/shm of 16 MiB of its own; what came of a start without room."""
    host = hosts.new(prefix=private_prefix("mount -t tmpfs -o size=16m none /dev/shm"))
    try:
        host.tell("start_full", options=OPTIONS)
        answer = host.answer()
        host.tell("prepare", **OPTIONS)
        host.settle()
        yield host, answer
        left = host.end()["left"]
        assert not any(left.values()), left
    finally:
        host.kill()


def test_booting(crowded, figures):
    _, answer = crowded
    assert answer["error"]["type"] == "ShmFullError", answer["error"]
    assert "MemoryError" in answer["error"]["family"]
    assert not any(answer["left"].values()), answer["left"]
    note(figures, "booting", answer)


@pytest.mark.parametrize("act", ACTS)
def test_in_an_act(crowded, figures, act):
    host, _ = crowded
    host.tell("fill", act=act)
    answer = host.answer()
    error = answer["error"]
    if ACTS[act] is None:
        assert error is None, error["where"]
        assert answer["right"]
    else:
        assert error["type"] == ACTS[act], error
        assert "MemoryError" in error["family"]
    expected = "after" if error is None else "before"
    assert set(answer["ranks"].values()) <= {"same", expected}, answer["ranks"]
    assert answer["again"]
    note(figures, act, answer)


def note(figures, state, answer) -> None:
    error = answer["error"]
    figures.append(
        {
            "state": state,
            "fault": "shm-full",
            "exception": error and error["type"],
            "seconds": round(answer["call_s"], 4),
        }
    )
