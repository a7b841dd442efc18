"""No room in /dev/shm is no error; no room at all is one that says what and how much."""

from __future__ import annotations

import contextlib
import copy
import errno
import logging
import os
import resource

import numpy as np
import pytest
from _leaks import no_ranks_left

import synk_shm
from synk_core import Runtime, SharedMemoryFull, SynkError
from synk_core._text import with_cure
from synk_core._wire.arrays import new_array
from synk_testing.engine import T

FULL = "asked for 38.2 MiB in /dev/shm: 1.0 MiB are free of 16.0 MiB in total"


@pytest.fixture
def refuse(monkeypatch):
    """A function: from now on /dev/shm gives this error, and a file in memory the other, if any."""
    empty = synk_shm.empty

    def begin(error, other=None):
        def refusing(shape, dtype, backend="shm"):
            refused = error if backend == "shm" else other
            if refused is not None:
                raise copy.copy(refused)  # one error would keep the frames of all calls
            return empty(shape, dtype, backend=backend)

        monkeypatch.setattr(synk_shm, "empty", refusing)

    return begin


def full():
    return synk_shm.ShmFullError(errno.ENOSPC, FULL + '; use backend="memfd"', "/dev/shm")


def files_in_memory(pid):
    folder = f"/proc/{pid}/fd"
    count = 0
    for fd in os.listdir(folder):
        with contextlib.suppress(FileNotFoundError):  # what has listed this folder of its own
            count += os.readlink(os.path.join(folder, fd)).startswith("/memfd:synk-shm")
    return count


@pytest.mark.parametrize(
    "code", [errno.ENOSPC, pytest.param(errno.EROFS, marks=pytest.mark.nightly)]
)
def test_named_arrays_without_room_in_dev_shm_lie_beside_it(refuse, caplog, code):
    refuse(full() if code == errno.ENOSPC else synk_shm.ShmError(code, os.strerror(code), "/x"))
    with caplog.at_level(logging.DEBUG, "synk_core"):
        array = new_array(3, np.dtype(float), "'kept'")
    assert "'kept'" in caplog.text
    assert ("1.0 MiB are free" if code == errno.ENOSPC else os.strerror(code)) in caplog.text
    assert synk_shm.segment(array).backend == "memfd"


@pytest.mark.parametrize("backend", ["memfd", "shm"])
def test_arrays_lie_where_there_is_room(refuse, backend):
    """Each act without room in /dev/shm is in faults/test_fault_memory.py."""
    x = T.matrix("x")
    before = files_in_memory(os.getpid())
    refuse(*((full(), None) if backend == "memfd" else (None, full())))
    rows = np.random.RandomState(0).uniform(size=(11, 3))
    with no_ranks_left(), Runtime(2, use_gpu=False) as runtime:
        f = runtime.function([x], [(x.sum(axis=0), "sum"), (x * 2, "gather")], name="f")
        data = runtime.data(rows, name="kept")
        assert synk_shm.segment(data.data).backend == backend
        for given in (rows, data):
            summed, doubled = f(given, batch=[3, 1, 7, 7])
            np.testing.assert_allclose(summed, rows[[3, 1, 7, 7]].sum(axis=0))
            np.testing.assert_array_equal(doubled, rows[[3, 1, 7, 7]] * 2)
        pids = (os.getpid(), *runtime.worker_pids)
        held = [files_in_memory(pid) for pid in pids]
        del data, given
        f(rows)  # an order, with which workers learn of it
        now = [files_in_memory(pid) for pid in pids]
        assert all(few < many for few, many in zip(now, held)) or backend == "shm", (now, held)
    assert files_in_memory(os.getpid()) == before


def test_no_room_at_all_names_the_input_and_the_function(pair):
    x = T.matrix("x")
    f = pair.function([x], (x.sum(), "sum"), name="total")
    huge = np.broadcast_to(1.0, (10**6, 10**6))
    with pytest.raises(
        SharedMemoryFull, match=r"input x of function 'total': asked for 7\.3 TiB"
    ) as caught:
        f(huge)
    error = caught.value
    assert all(isinstance(error, kind) for kind in (SynkError, MemoryError, OSError))
    assert error.errno in (errno.ENOSPC, errno.ENOMEM)
    text = str(error)
    assert "by batch=" in text
    assert "backend=" not in text
    assert f(huge[:, :2], batch=slice(0, 5)) == 10.0
    with pytest.raises(SharedMemoryFull, match=r"<Data 'big' float64 shape=\(0, 0\)>: asked for"):
        pair.data(shape=(10**6, 10**6), dtype="float64", name="big")
    data = pair.data(np.arange(4.0))
    with pytest.raises(SharedMemoryFull, match=r"asked for.*free.*--(shm-size|memory)"):
        data.set_length(10**12)
    assert data.data.sum() == 6


def test_a_limit_on_memory_is_named_with_its_cure(pair):
    x, large = T.dvector("x"), np.broadcast_to(1.0, 8 << 20)
    f = pair.function([x], x.mean())
    f(np.ones(4))
    with open("/proc/self/statm") as file:
        used = int(file.read().split()[0]) * resource.getpagesize()
    before = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (used + (24 << 20), before[1]))
    try:
        for act in (lambda: pair.data(large), lambda: f(large)):
            with pytest.raises(SharedMemoryFull, match="ulimit -v"):
                act()
    finally:
        resource.setrlimit(resource.RLIMIT_AS, before)
    assert f(large) == 1


def test_a_limit_of_the_system_is_named_with_its_cure():
    for error, cure in (
        (OSError(errno.EMFILE, "Too many open files"), "ulimit -n"),
        (OSError(errno.EAGAIN, "Resource temporarily unavailable"), "ulimit -u"),
        (RuntimeError("can't start new thread"), "ulimit -u"),
        (OSError(errno.ENOMEM, "Cannot allocate memory"), "ulimit -v"),
    ):
        assert cure in with_cure(error)
