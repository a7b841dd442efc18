"""Every back-end keeps the contract; see ``contract``. Whole on shm, of the others a theme each."""

from __future__ import annotations

import os

import pytest
from _fake_nccl import open_group
from _jobs import FOLDER, job
from contract.checks import THEMES, check_all, check_theme

from synk_comm import local_group
from synk_comm.testing import run_ranks, thread_group

LIMIT_S = 200
ALL = os.environ.get("SYNK_TESTS") == "all"
GROUPS = {
    "shm": lambda size: thread_group(size, timeout_s=LIMIT_S),
    "zmq": lambda size: thread_group(size, "zmq", timeout_s=LIMIT_S),
    "local": lambda size: local_group(size, timeout_s=LIMIT_S),
    "nccl": lambda size: open_group(size)[1],  # arrays in host memory go the host's way
}
SIZES = {"shm": (2, 3, 4, 5), "zmq": (2, 3, 5), "local": (1,), "nccl": (2, 3)}
BY_DAY = {
    *(("shm", theme, 3) for theme in [*THEMES, "ends"]),
    ("zmq", "letters", 3),
    ("zmq", "ends", 2),
    ("local", "moves", 1),
    ("nccl", "groups", 2),
}
CASES = [
    (backend, theme, size)
    for backend, sizes in SIZES.items()
    for size in sizes
    for theme in [*THEMES, *(["ends"] if size > 1 else [])]
    if ALL or size <= 3
]


@pytest.mark.parametrize(
    ("backend", "theme", "size"),
    [
        pytest.param(
            *case, marks=() if case in BY_DAY else pytest.mark.nightly, id="-".join(map(str, case))
        )
        for case in CASES
    ],
)
def test_theme(backend, theme, size):
    check_theme(GROUPS[backend], theme, size)


@pytest.mark.nightly
@pytest.mark.parametrize("backend", ["shm", "zmq"])
def test_all_of_it_in_processes(backend):
    run_ranks(2, check_all, backend=backend, timeout_s=LIMIT_S)


@pytest.mark.parametrize(
    ("size", "themes"),
    [
        (2, ["reductions", "letters", "again"]),
        pytest.param(2, [], marks=pytest.mark.nightly),
        pytest.param(3, [], marks=pytest.mark.nightly),
    ],
)
def test_mpi(size, themes):
    """Two of more than two ranks share a host, and see each other's process."""
    program = FOLDER / "contract_job.py"
    hosts = min(size, 2)
    with job(
        program, "mpi", *themes, size=size, on_a_host=1 if size < 3 else 2, limit_s=300.0
    ) as ranks:
        done = ranks.finish()
    assert done.status == 0, done.out + done.err
    assert done.out.count("keeps the contract") == size
    assert done.out.count(f"{size} rank(s) on {hosts} machine(s)") == size
