"""The mpi back-end: ways in, failures, deaths. Ranks are processes that mpiexec starts."""

from __future__ import annotations

import json
import sys
import types

import pytest
from _jobs import FOLDER, SETTINGS, job, require_mpi

import synk_comm
from synk_comm import JoinError
from synk_testing import Program

RANK = FOLDER / "_mpi_rank.py"


def seen(case, size, *, status=0, by=None, **how):
    """Run a case on all ranks of a job; return by rank what they saw, and the job's errors."""
    with job(RANK, case, size=size, **how) as program:
        done = program.finish()
    lines = [json.loads(line) for line in done.out.splitlines() if line.startswith("[")]
    said = dict(lines)
    assert done.status == status, done.out + done.err
    assert sorted(said) == (list(range(size)) if by is None else by), done.out + done.err
    return [said[rank] for rank in sorted(said)], done.err


def test_auto_never_takes_it():
    require_mpi()
    code = "import synk_comm; print(synk_comm.connect().why)"
    with job(code, size=2) as program:
        assert program.finish().out.count("local:") == 2


def test_without_mpi4py_the_error_says_how_to_get_it(monkeypatch):
    monkeypatch.setitem(sys.modules, "mpi4py", None)
    with pytest.raises(JoinError, match=r'pip install "synk-comm\[mpi\]"'):
        synk_comm.connect(backend="mpi")


def test_without_a_library_of_mpi_the_error_says_how_to_get_one(monkeypatch):
    class Broken(types.ModuleType):
        def __getattr__(self, name):
            raise RuntimeError("cannot load MPI library")

    monkeypatch.setitem(sys.modules, "mpi4py", Broken("mpi4py"))
    with pytest.raises(JoinError, match=r"cannot load MPI library; .*pip install mpich"):
        synk_comm.mpi()


def test_a_group_that_this_process_starts_cannot_be_mpis():
    with pytest.raises(ValueError, match="mpiexec or srun"):
        synk_comm.create_group(2, "mpi")
    with pytest.raises(ValueError, match="mpiexec or srun"):
        synk_comm.launch(2, print, backend="mpi")


def test_a_process_of_its_own_is_a_group_of_one():
    require_mpi()
    with Program(RANK, "alone", environment=SETTINGS) as program:
        assert json.loads(program.finish().out) == [0, 1]


def test_the_launcher_of_another_mpi_is_noticed():
    require_mpi()
    environment = {"OMPI_COMM_WORLD_SIZE": "4", **SETTINGS}
    with Program(RANK, "alone", environment=environment) as program:
        _, said = json.loads(program.finish().out)
    assert said.startswith("OMPI_COMM_WORLD_SIZE is 4, but MPI has started 1 rank(s)")
    assert "srun --mpi=list" in said


def test_mpi_for_one_thread_is_refused():
    said, _ = seen("one_thread", 1)
    assert "mpi4py.rc.thread_level" in said[0]


def test_nonblocking_collectives_need_an_mpi_for_several_threads():
    said, _ = seen("threads_in_turn", 2)
    for text, total in said:
        assert "mpi4py.rc.thread_level" in text
        assert total == 2


def test_a_rank_that_does_not_join_is_a_timeout():
    said, _ = seen("late", 3)
    for rank in (0, 2):
        assert said[rank][0] == "CommTimeout"
        assert 1 in said[rank][1]
        assert "not all of the 3 ranks have called connect" in said[rank][2]


def test_the_users_own_mpi_goes_on_beside_it():
    said, _ = seen("apart", 4, on_a_host=2)
    assert [got for got, _, _ in said] == [3.0, 0.0, 1.0, 2.0]
    for _, why, ordered in said:
        assert why.startswith("mpi: 4 rank(s) on 2 machine(s), by MPICH ")
        assert ordered == 1 << 18


@pytest.mark.nightly
def test_closed_groups_leave_nothing_in_mpi():
    said, _ = seen("many", 2)
    assert said == [[0, True]] * 2


def test_an_exception_on_one_rank_ends_the_job_and_all_learn_of_it():
    said, err = seen("exception", 3, status=1, by=[0, 2])
    for kind, rank, text in said:
        assert (kind, rank) == ("AbortedError", 1)
        assert "KeyError: 'weights'" in text
    assert "KeyError: 'weights'" in err


def test_a_rank_that_ends_without_a_word_is_lost():
    said, _ = seen("left", 3, status=3, by=[0, 2])
    for kind, rank, _ in said:
        assert (kind, rank) == ("PeerLost", 1)


def test_an_error_of_the_watch_ends_the_group():
    said, _ = seen("watched", 2)
    assert said[0] == ["RuntimeError", None, "the watch has seen it"]
    assert said[1][:2] == ["AbortedError", 0]
    assert "the watch has seen it" in said[1][2]


def test_survivors_name_the_killed_rank_if_the_launcher_lets_them_live():
    options = ["-disable-auto-cleanup"]
    with job(RANK, "killed", size=4, on_a_host=2, options=options, outlives=True) as program:
        done = program.finish()
    said = dict(json.loads(line) for line in done.out.splitlines() if line.startswith("["))
    assert set(said) == {0, 1, 2}, done.out + done.err
    for first, again, is_lost in said.values():
        assert first[:2] == ["PeerLost", 3]
        assert again == "PeerLost"
        assert is_lost
