"""The public names, the errors, and the table of collectives, of which all rows are documented."""

from __future__ import annotations

import inspect
import pickle
import re
import subprocess
import sys
from pathlib import Path

import pytest
from contract.nonblocking import calls_of
from contract.steps import MOVES, REDUCTIONS

import synk_comm
from synk_comm import Communicator, exceptions, local_group
from synk_comm._core.table import TABLE

OF_ARRAYS = [row for row in TABLE.values() if not row.is_of_objects]
README = (Path(__file__).parent.parent / "README.md").read_text(encoding="utf-8")


def test_all_lists_existing_names():
    assert synk_comm.__all__ == sorted(synk_comm.__all__)
    for name in synk_comm.__all__:
        assert getattr(synk_comm, name) is not None
    assert set(exceptions.__all__) < set(synk_comm.__all__)


def test_completion_shows_public_names():
    assert {*dir(synk_comm)} == {*synk_comm.__all__, "abc", "cuda", "exceptions"}


def test_importing_needs_nothing_optional():
    optional = ("zmq", "mpi4py", "pytest", "synk_shm", "theano")
    code = f"import sys, synk_comm; sys.exit(any(name in sys.modules for name in {optional}))"
    assert subprocess.run([sys.executable, "-c", code], timeout=60, check=False).returncode == 0


@pytest.mark.parametrize(
    "error, kind",
    [
        (synk_comm.PeerLost("m", rank=3), ConnectionError),
        (synk_comm.CommTimeout("m", missing={1: "x"}), TimeoutError),
        (synk_comm.MismatchError("m", calls={0: "a"}), ValueError),
        (synk_comm.PeerDeclined("m", reasons={0: "a"}), RuntimeError),
        (synk_comm.AbortedError("m", rank=1, reason="r"), RuntimeError),
        (synk_comm.MisuseError("m"), RuntimeError),
        (synk_comm.JoinError("m"), ConnectionError),
        (synk_comm.ClosedError("m"), RuntimeError),
    ],
)
def test_errors_travel_with_all_they_know(error, kind):
    assert isinstance(error, kind)
    assert isinstance(error, synk_comm.CommError)
    copy = pickle.loads(pickle.dumps(error))
    assert type(copy) is type(error)
    assert str(copy) == str(error) == "m"
    assert vars(copy) == vars(error)


def parameters(name):
    return inspect.signature(getattr(Communicator, name)).parameters


@pytest.mark.parametrize("row", TABLE.values(), ids=lambda row: row.name)
def test_the_front_takes_the_arguments_of_its_row(row):
    names = set(parameters(row.name)) - {"self"}
    given = {name for name in names if name in ("x", "xs", "obj", "objs")}
    assert len(given) == bool(row.sends)
    expected = {"timeout_s"}
    expected |= {"root"} if row.root else set()
    expected |= {"op", "weight"} if row.makes == "fold" else set()
    has_room = row.makes and row.makes != "fill" and not row.is_of_objects
    expected |= {"out"} if has_room else set()
    assert names - given == expected
    assert getattr(Communicator, row.name).__doc__


@pytest.mark.parametrize("row", OF_ARRAYS, ids=lambda row: row.name)
def test_each_has_a_form_that_does_not_wait(row):
    blocking, begun = parameters(row.name), parameters(f"i{row.name}")
    assert list(begun.values()) == [p for p in blocking.values() if p.name != "timeout_s"]
    method = getattr(Communicator, f"i{row.name}")
    assert method.__name__ == f"i{row.name}"
    assert row.name in method.__doc__
    (comm,) = local_group()
    with comm, pytest.raises(TypeError, match="give it to wait"):
        getattr(comm, f"i{row.name}")(timeout_s=1)


def test_the_readme_and_the_contract_have_every_row():
    listed = set(re.findall(r"`(\w+)[`(]", README))
    assert {row.name for row in OF_ARRAYS} <= listed
    assert {f"i{row.name}" for row in OF_ARRAYS} <= listed
    assert {row.name for row in OF_ARRAYS if row.sends} <= {*REDUCTIONS, *MOVES}
    (comm,) = local_group()
    with comm:
        assert {method for method, *_ in calls_of(comm, 3, "f4")} == {r.name for r in OF_ARRAYS}
