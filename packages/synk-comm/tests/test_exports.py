"""The public names, their errors, and the heads that travel."""

from __future__ import annotations

import pickle
import subprocess
import sys

import pytest

import synk_comm
from synk_comm import exceptions


def test_all_lists_what_is_there():
    assert synk_comm.__all__ == sorted(synk_comm.__all__)
    for name in synk_comm.__all__:
        assert getattr(synk_comm, name) is not None
    assert set(exceptions.__all__) < set(synk_comm.__all__)


def test_completion_shows_what_is_public():
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
