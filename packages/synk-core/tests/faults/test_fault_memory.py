"""/dev/shm is full, in every state that might want of it: memory beside it serves, and no error."""

from __future__ import annotations

import pytest
from _fault_case import PATIENT_S, STALL_S
from _fault_private import private_prefix

OPTIONS = {"n_parallel": 2, "stall_s": STALL_S, "timeout_s": PATIENT_S, "atomic": True}

ACTS = [
    # Known data, and buffers that are there.
    "compute",
    "step",
    "all_reduce",
    "broadcast",
    "gather",
    "end",
    # Room for what the workers do not have yet: a function, one of its forms, rows, indexes.
    "distribute",
    "slice",
    "copy",
]


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


def test_booting(crowded):
    _, answer = crowded
    assert answer["error"] is None, answer["error"]["where"]
    assert not any(answer["left"].values()), answer["left"]


@pytest.mark.parametrize(
    "act", ["grow", *(pytest.param(act, marks=pytest.mark.nightly) for act in ACTS)]
)
def test_in_an_act(crowded, act):
    host, _ = crowded
    host.tell("fill", act=act)
    answer = host.answer()
    assert answer["error"] is None, answer["error"]["where"]
    assert answer["right"]
    assert set(answer["ranks"].values()) <= {"same", "after"}, answer["ranks"]
    assert answer["again"]
