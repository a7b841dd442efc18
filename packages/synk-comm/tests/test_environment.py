"""What the environment tells ``connect``: nothing, a ticket, or that there should be one."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest
from _helpers import run_python

from synk_comm import connect, create_group


@pytest.fixture(autouse=True)
def no_group_around(monkeypatch):
    for name in ("TICKET", "RANK", "SIZE", "SHM"):
        monkeypatch.delenv(f"SYNK_COMM_{name}", raising=False)


SCRIPT = """
import synk_comm
with synk_comm.connect(timeout_s=20) as comm:
    print(comm.rank, comm.size, comm.backend, "|", comm.why, "|", comm.all_reduce(comm.rank + 1))
"""


def said(**variables):
    done = run_python("-W", "error", "-c", SCRIPT, **variables)
    return done.stdout.strip() or done.stderr.strip().splitlines()[-1]


def test_a_ticket_in_the_environment():
    with create_group(2, "zmq") as group:
        tickets = [{"SYNK_COMM_TICKET": group.ticket(rank)} for rank in range(2)]
        with ThreadPoolExecutor() as pool:
            told = [*pool.map(lambda ticket: said(**ticket), tickets)]
        assert told == [
            f"{rank} 2 zmq | zmq: the group was made without shared memory | 3" for rank in range(2)
        ]


def test_by_itself_a_script_is_a_group_of_one():
    assert said() == (
        "0 1 local | local: no variable SYNK_COMM_* is set, so this process is a group of one | 1"
    )


@pytest.mark.parametrize("name", ["RANK", "SIZE"])
def test_half_an_environment_is_an_error_that_tells_the_cure(name):
    told = said(**{f"SYNK_COMM_{name}": "0"})
    assert f"SYNK_COMM_{name} is set, but not SYNK_COMM_TICKET" in told
    assert "python -m synk_comm.run -n 4 script.py" in told


@pytest.mark.parametrize("backend", ["auto", "shm", "zmq"])
def test_a_group_of_one_needs_nothing(backend):
    with connect(backend=backend) as comm:
        assert comm.backend == ("local" if backend == "auto" else backend)
        assert float(comm.all_reduce(2.0)) == 2.0
        assert comm.why.startswith(f"{comm.backend}: ")
    with pytest.raises(ValueError, match="timeout_s"):
        connect(backend=backend, timeout_s=-1)
