"""Which rank gets which device."""

from __future__ import annotations

import os

import pytest

from synk_core import InputTypeError, InputValueError, Runtime, StartError
from synk_core._graph.devices import assignment
from synk_testing.engine import theano_only

has_gpus = theano_only("PyTensor computes on no GPU")


@pytest.fixture
def gpus(monkeypatch):
    monkeypatch.delenv(assignment.USE_GPU, raising=False)

    def tell(count, problem="", held=None):
        monkeypatch.setattr(assignment, "usable_gpus", lambda: (count, problem))
        monkeypatch.setattr(assignment, "device_in_use", lambda: held)

    tell(2)
    return tell


def test_all_gpus_are_taken_if_there_are_any(gpus):
    ranks = assignment.choose(None, None, 0, None)
    assert (ranks.devices, ranks.noun) == (("cuda0", "cuda1"), "2 GPUs")
    assert ranks.lines == ("Synkhronos attempting to use 2 of 2 detected GPUs...",)
    assert ranks.distinct_gpus
    ranks = assignment.choose(1, True, 0, None)
    assert (ranks.devices, ranks.noun) == (("cuda0",), "1 GPU")
    assert assignment.choose(None, False, 0, None).size == len(os.sched_getaffinity(0))
    gpus(0, "no GPU is visible")
    ranks = assignment.choose(3, None, 2, None)
    assert (ranks.devices, ranks.noun) == ((), "3 CPU processes")
    assert len(ranks.lines) == 1


def test_the_environment_decides_if_the_program_does_not(gpus, monkeypatch):
    monkeypatch.setenv(assignment.USE_GPU, "0")
    assert assignment.choose(2, None, 0, None).devices == ()
    assert assignment.choose(2, True, 0, None).devices == ("cuda0", "cuda1")
    assert assignment.choose(None, None, 0, ["cuda1"]).devices == ("cuda1",)
    monkeypatch.setenv(assignment.USE_GPU, "1")
    gpus(0, "no GPU is visible")
    with pytest.raises(StartError, match="no GPU is visible"):
        assignment.choose(2, None, 0, None)
    monkeypatch.setenv(assignment.USE_GPU, "maybe")
    with pytest.raises(InputValueError, match="got 'maybe', expected 0 or 1"):
        assignment.choose(2, None, 0, None)


@has_gpus
def test_gpus_that_cannot_be_used_are_mentioned_or_refused(gpus):
    gpus(2, "Theano's GPU back end needs pygpu, which cannot be imported (gone)")
    ranks = assignment.choose(2, None, 0, None)
    assert ranks.devices == ()
    assert "pygpu" in ranks.lines[0]
    assert "doctor" in ranks.lines[0]
    with pytest.raises(StartError, match=r"use_gpu=True: .*pygpu.*synkhronos doctor"):
        assignment.choose(2, True, 0, None)


def test_the_device_in_use_stays_the_masters(gpus):
    gpus(4, held="cuda2")
    ranks = assignment.choose(3, None, 1, None)
    assert ranks.devices == ("cuda0", "cuda2", "cuda1")
    assert "uses cuda2 already" in ranks.lines[1]
    with pytest.raises(StartError, match=r"uses cuda2 already.*devices=\['cuda2'"):
        assignment.choose(2, False, 0, None)
    gpus(4, held="cuda1")
    assert assignment.choose(2, None, 1, None).lines[1:] == ()


def test_bad_arguments(gpus):
    for arguments, error, text in (
        ((3, None, 0, None), InputValueError, "n_parallel: got 3, expected an int from 1 to 2"),
        ((10**30, False, 0, None), InputValueError, "n_parallel: .* from 1 to 1024"),
        ((2, None, 2, None), InputValueError, "master_rank: got 2"),
        ((None, None, 0, "cuda0"), InputTypeError, "expected a list of names"),
        ((None, None, 0, [0, 1]), InputTypeError, "expected a list of names"),
        ((None, None, 0, [("cuda0",), ()]), InputTypeError, "of groups of names"),
        ((None, None, 0, [("cuda0", "cpu")]), InputValueError, "expected a name such as 'cuda0'"),
        ((None, None, 0, ["cuda"]), InputValueError, "expected a name such as 'cuda0'"),
        ((None, None, 0, ["cpu"]), InputValueError, "use_gpu=False"),
        ((3, None, 0, ["cuda0"]), InputValueError, "give devices alone"),
    ):
        with pytest.raises(error, match=text):
            assignment.choose(*arguments)


@has_gpus
def test_named_devices_one_or_several_for_each_rank(gpus, monkeypatch):
    ranks = assignment.choose(None, None, 1, [("cuda0", "cuda1"), ["cuda2", "cuda3"], "cuda4"])
    assert (ranks.size, ranks.devices) == (3, ("cuda0", "cuda2", "cuda4"))
    assert (ranks.noun, ranks.distinct_gpus) == ("5 GPUs", True)
    (line,) = ranks.lines
    assert line == "Synkhronos attempting to use cuda0 with cuda1, cuda2 with cuda3, cuda4..."
    assert ranks.contexts(1) == {None: "cuda2", "dev0": "cuda2", "dev1": "cuda3"}
    monkeypatch.setattr(assignment.DEVICES, "named_in_options", lambda: ["dev0", "other"])
    assert ranks.contexts(2) == {None: "cuda4", "dev0": "cuda4", "other": "cuda4"}
    assert assignment.choose(2, False, 0, None).contexts(1) == {}
    ranks = assignment.choose(None, None, 1, ["cuda1", "cuda0"])
    assert (ranks.devices, ranks.distinct_gpus) == (("cuda1", "cuda0"), True)
    assert ranks.contexts(0) == {None: "cuda1", "dev0": "cuda1", "other": "cuda1"}
    assert not assignment.choose(None, None, 0, ["cuda0", "cuda0"]).distinct_gpus
    other = assignment.choose(None, None, 0, ["opencl0:0"] * 2)
    assert (other.noun, other.distinct_gpus) == ("2 devices", False)


def test_nccl_is_taken_where_it_can_be(gpus, monkeypatch):
    pair = assignment.choose(None, None, 0, None)
    shared = assignment.choose(None, None, 0, ["cuda0", "cuda0"])
    alone = assignment.choose(1, None, 0, None)
    monkeypatch.setattr("synk_comm.why_no_nccl", lambda: "", raising=False)
    assert assignment.choose_nccl(pair, None) == (True, ())
    assert assignment.choose_nccl(pair, False) == (False, ())
    assert assignment.choose_nccl(alone, True) == (False, ())
    taken, (line,) = assignment.choose_nccl(shared, None)
    assert not taken
    assert "NCCL needs a GPU for each rank" in line
    with pytest.raises(StartError, match="nccl=True: NCCL needs a GPU for each rank"):
        assignment.choose_nccl(shared, True)
    monkeypatch.setattr("synk_comm.why_no_nccl", lambda: "nccl4py is missing", raising=False)
    assert "nccl4py is missing" in assignment.choose_nccl(pair, None)[1][0]
    with pytest.raises(StartError, match="no GPUs"):
        assignment.choose_nccl(assignment.choose(2, False, 0, None), True)


def test_without_gpus_they_cannot_be_demanded():
    if not assignment.usable_gpus()[1]:
        pytest.skip("there are GPUs that can be used")
    with pytest.raises(StartError, match="use_gpu=True"):
        Runtime(2, use_gpu=True)
    with pytest.raises(StartError, match="device cuda7"):
        Runtime(devices=["cuda7"])


def test_a_device_that_the_master_cannot_take_ends_its_start(monkeypatch):
    def refuse(*_):
        raise StartError("planted")

    monkeypatch.setattr("synk_core._master.lifecycle.take", refuse)
    with pytest.raises(StartError, match="planted"):
        Runtime(1, use_gpu=False)
