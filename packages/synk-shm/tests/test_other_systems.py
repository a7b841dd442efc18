"""Systems that lack things: macOS, old kernels, sandboxes; Python loses these things here."""

from __future__ import annotations

import errno

import numpy as np
import pytest

import synk_shm as shm
from synk_shm._segments import memory

# As XNU: segments are not files and cannot be written or allocated through a descriptor, and there
# are neither memory files nor CPU sets.


POOR = """
    import errno, os, sys
    isdir = os.path.isdir
    os.path.isdir = lambda path: path != "/dev/shm" and isdir(path)
    for name in ("posix_fallocate", "memfd_create", "MFD_CLOEXEC", "MFD_ALLOW_SEALING",
                 "sched_getaffinity"):
        delattr(os, name)
    def refuse(*_):
        raise OSError(errno.ENOTSUP, "not on a shared memory object")
    os.pwrite = os.pread = os.link = refuse
    os.path.isdir(".")
    import numpy as np
    import synk_shm as shm
"""


def test_arrays_without_a_visible_directory(bare_script, given):
    name = given("poor")
    out = bare_script.run(
        POOR
        + """
    import pickle, subprocess
    a = shm.share(np.arange(12.0).reshape(3, 4), name=sys.argv[1])
    b = shm.full((5, 2), 7, ">i4", capacity=100)
    large = shm.ones(5_000_000)
    assert large.sum() == 5_000_000 and shm.share(large, copy=True).sum() == large.sum()
    assert shm.attach(sys.argv[1]) is not None and (shm.handle(a[1:]).attach() == a[1:]).all()
    assert pickle.loads(pickle.dumps(shm.handle(a.T))).attach().tolist() == a.T.tolist()
    b = shm.resize(b, 80)
    assert b[4:6].tolist() == [[7, 7], [0, 0]]
    readonly = shm.attach(sys.argv[1], readonly=True)
    assert not readonly.flags.writeable and readonly[2, 3] == 11
    for act in (lambda: shm.zeros(3, name=sys.argv[1]), lambda: shm.attach("nowhere"),
                lambda: shm.free_space(),
                lambda: shm.zeros(3, backend="memfd"), lambda: shm.zeros(3, dtype=object)):
        try:
            act()
        except (OSError, ValueError, TypeError) as error:
            print(type(error).__name__)
    assert shm.list() == shm.cleanup() == []
    child = subprocess.run([sys.executable, "-c", sys.argv[2], sys.argv[1]], check=True)
    assert a[0, 0] == 42
    shm.close(b)
    shm.unlink(a)
    shm.unlink(a, missing_ok=True)
    """,
        name,
        "import sys, synk_shm as shm; shm.attach('/synk.u.' + sys.argv[1])[0, 0] = 42",
    )
    assert out == "ShmExistsError\nShmNotFoundError\nShmError\nValueError\nTypeError"


def test_exit_without_a_visible_directory_removes_the_name(bare_script, given):
    name = given("gone")
    bare_script.run(POOR + "    a = shm.ones(3, name=sys.argv[1])", name)
    with pytest.raises(FileNotFoundError):
        shm.attach(name)


def test_large_arrays_on_a_kernel_that_cannot_populate(monkeypatch):
    """Before Linux 5.14, and under some sandboxes, madvise refuses."""
    source = np.arange(6_000_000)
    monkeypatch.setattr(memory, "_advise", lambda *_: errno.EINVAL)
    assert (shm.share(source) == source).all()
    a = shm.empty(10, capacity=6_000_000)
    a = shm.resize(a, 6_000_000)
    a[:] = 1
    assert shm.zeros(5_000_000).sum() == 0
    monkeypatch.setattr(memory, "_c_function", lambda _: None)  # nor mmap in C
    assert shm.ones(5_000_000).sum() == 5_000_000
    shm.unlink(a)
    assert shm.resize(a, 10).sum() == 10
