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
    """How many of synk_shm's a process has open."""
    folder = f"/proc/{pid}/fd"
    count = 0
    for fd in os.listdir(folder):
        with contextlib.suppress(FileNotFoundError):  # what has listed this folder of its own
            count += os.readlink(os.path.join(folder, fd)).startswith("/memfd:synk-shm")
    return count


@pytest.mark.parametrize(
    "code", [errno.ENOSPC, pytest.param(errno.EROFS, marks=pytest.mark.nightly)]
)
def test_without_room_in_dev_shm_arrays_lie_beside_it(refuse, caplog, code):
    """It is told, and given back. Each act without room is in faults/test_fault_memory.py."""
    x = T.matrix("x")
    before = files_in_memory(os.getpid())
    refuse(full() if code == errno.ENOSPC else synk_shm.ShmError(code, os.strerror(code), "/x"))
    rows = np.random.RandomState(0).uniform(size=(11, 3))
    with no_ranks_left(), Runtime(2, use_gpu=False) as runtime:
        f = runtime.function([x], [(x.sum(axis=0), "sum"), (x * 2, "gather")], name="f")
        with caplog.at_level(logging.DEBUG, "synk_core"):
            data = runtime.data(rows, name="kept")
        assert "'kept'" in caplog.text
        why = "1.0 MiB are free" if code == errno.ENOSPC else os.strerror(code)
        assert why in caplog.text
        assert synk_shm.segment(data.data).backend == "memfd"
        for given in (rows, data):
            summed, doubled = f(given, batch=[3, 1, 7, 7])
            np.testing.assert_allclose(summed, rows[[3, 1, 7, 7]].sum(axis=0))
            np.testing.assert_array_equal(doubled, rows[[3, 1, 7, 7]] * 2)
        pids = (os.getpid(), *runtime.worker_pids)
        held = [files_in_memory(pid) for pid in pids]
        del data, given
        f(rows)  # an order, with which workers learn of it
        now = [files_in_memory(pid) for pid in pids]
        assert all(few < many for few, many in zip(now, held)), (now, held)
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
    # The cure of the message.
    assert f(huge[:, :2], batch=slice(0, 5)) == 10.0
    with pytest.raises(SharedMemoryFull, match=r"<Data 'big' float64 shape=\(0, 0\)>: asked for"):
        pair.data(shape=(10**6, 10**6), dtype="float64", name="big")
    data = pair.data(np.arange(4.0))
    with pytest.raises(SharedMemoryFull, match=r"asked for.*free.*--(shm-size|memory)"):
        data.set_length(10**12)
    assert data.data.sum() == 6


def test_where_nothing_but_dev_shm_can_be_had_it_is_to_be_larger(pair, refuse):
    refuse(full(), ValueError('backend="memfd" exists on Linux only; use backend="shm"'))
    with pytest.raises(
        SharedMemoryFull, match=r"16.0 MiB in total; .*docker run --shm-size="
    ) as caught:
        pair.data(np.ones(3))
    assert caught.value.errno == errno.ENOSPC


def test_what_is_no_want_of_room_stays_what_it_is(pair, refuse):
    refused = synk_shm.ShmError(errno.EMFILE, "Too many open files", "/x")
    refuse(refused, synk_shm.ShmError(errno.EMFILE, "Too many open files", "/y"))
    with pytest.raises(synk_shm.ShmError) as caught:
        pair.data(np.ones(3))
    assert caught.value.filename == "/x"


@contextlib.contextmanager
def limited(name, soft):
    kind = getattr(resource, "RLIMIT_" + name)
    before = resource.getrlimit(kind)
    resource.setrlimit(kind, (soft, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(kind, before)


def test_a_limit_on_memory_is_named_with_its_cure(pair):
    x, large = T.dvector("x"), np.broadcast_to(1.0, 8 << 20)
    f = pair.function([x], x.mean())
    f(np.ones(4))
    with open("/proc/self/statm") as file:
        used = int(file.read().split()[0]) * resource.getpagesize()
    with limited("AS", used + (24 << 20)):
        for act in (lambda: pair.data(large), lambda: f(large)):
            with pytest.raises(SharedMemoryFull, match="ulimit -v") as caught:
                act()
            assert isinstance(caught.value, MemoryError)
    assert f(large) == 1


LIMITS = """
import gc, os, resource, sys
from synk_core import Runtime
from synk_core.exceptions import SharedMemoryFull, StartError

def open_files():
    gc.collect()  # errors keep frames, and these what they have
    return len(os.listdir("/proc/self/fd"))

kind, cure = getattr(resource, sys.argv[1]), sys.argv[2]
with Runtime(2, use_gpu=False) as runtime:  # what stays open after the first one
    runtime.distribute()
before = open_files()
hard = resource.getrlimit(kind)[1]
limits = range(before, before + 8) if "NOFILE" in sys.argv[1] else [0, 1 << 16, 1 << 20]
for limit in limits:
    resource.setrlimit(kind, (limit, hard))
    try:
        Runtime(2, use_gpu=False)
    except (StartError, SharedMemoryFull) as error:
        assert cure in str(error), error
    else:
        raise AssertionError(f"{limit}: it has started")
    resource.setrlimit(kind, (hard, hard))
    assert open_files() == before, (open_files(), before)
Runtime(2, use_gpu=False).close()
"""


@pytest.mark.nightly
@pytest.mark.parametrize(
    ("kind", "cure"), [("RLIMIT_NOFILE", "ulimit -n"), ("RLIMIT_FSIZE", "ulimit -f")]
)
def test_a_limit_of_the_process_is_named_with_its_cure(run_script, kind, cure):
    status, _, err = run_script(LIMITS, kind, cure)
    assert status == 0, err


@pytest.mark.nightly
def test_many_arrays_need_few_descriptors():
    with limited("NOFILE", 256):
        for size in (1, 2):
            with no_ranks_left(), Runtime(size, use_gpu=False) as runtime:
                x = T.dvector()
                total = runtime.function([x], (x.sum(), "sum"))
                several = [runtime.data(np.full(2, float(i))) for i in range(600)]
                assert [total(one) for one in several] == [2.0 * i for i in range(600)]
                del several
