"""The public names, their errors, and the heads that travel."""

from __future__ import annotations

import pickle
import subprocess
import sys

import numpy as np
import pytest

import synk_comm
from synk_comm import exceptions
from synk_comm._core import calls


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


@pytest.mark.parametrize(
    "dtype",
    [
        "f4",
        ">i2",
        "?",
        "M8[25us]",
        "U7",
        "S0",
        "V3",
        [("a", "i4"), ("b", "f8", (2, 3))],
        np.dtype([("a", "i1"), ("b", "f8")], align=True),
    ],
)
def test_dtypes_survive_description(dtype):
    dtype = np.dtype(dtype)
    assert calls.text_dtype(calls.dtype_text(dtype)) == dtype


def test_heads_survive_encoding():
    arrays = (("<f4", (3, 0)), ("|b1", ()))
    outs = (("<f4", (3, 0)), None)
    call = calls.CollectiveCall(
        "gather", "", 1, arrays, outs, 0.1, True, "2+64", "text \N{SNOWMAN} \"'|"
    )
    assert calls.decode(calls.encode(call)) == call
    long = calls.CollectiveCall("scatter", arrays=(("<f4", (1,) * 9),) * 2000)
    assert len(calls.encode(long)) < 4096
    assert calls.decode(calls.encode(long)) == long
    with pytest.raises(ValueError, match="can be sent"):
        calls.encode(
            calls.CollectiveCall("scatter", arrays=tuple(("<f4", (n**5,)) for n in range(5000)))
        )
    assert len(calls.encode_decline("\N{SNOWMAN}" * 10**6)) <= calls.HEAD_BYTES
