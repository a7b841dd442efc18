"""Limits on descriptors, address space, file sizes and entries; a missing /dev/shm."""

from __future__ import annotations

import pytest

from synk_testing import in_private

BACKENDS = pytest.mark.parametrize("backend", ["shm", "memfd"])


@BACKENDS
def test_arrays_per_descriptor(script, backend):
    """Standard library, shared_ndarray: two descriptors for each array."""
    # Memory without a name needs one to be found by; the first few keep another one.
    least, most = (180, 256) if backend == "memfd" else (2000, 2000)
    out = script.run(
        """
        import resource
        backend, wanted = sys.argv[1], int(sys.argv[2])
        resource.setrlimit(resource.RLIMIT_NOFILE, (256, 256))
        arrays = []
        try:
            while len(arrays) < wanted:
                arrays.append(shm.full(2, len(arrays), backend=backend))
        except OSError as error:
            assert error.errno == errno.EMFILE and isinstance(error, shm.ShmError), error
            assert "have 256 (raise it: ulimit -n)" in str(error), error
        count = len(arrays)
        assert [int(a[1]) for a in arrays] == list(range(count))
        if backend == "shm":
            found = [info for info in shm.list() if info.mine]
            assert len(found) == count, (len(found), count)  # no half-made one is left
        arrays[:10] = []
        arrays.append(shm.ones(3, backend=backend))  # and it works again
        print(count)
        """,
        backend,
        most,
    )
    assert least <= int(out) <= most


@BACKENDS
def test_no_descriptor_left(script, backend):
    script.run(
        """
        import resource
        backend = sys.argv[1]
        a, b = shm.ones(3), shm.ones(3, backend=backend)
        made = 0
        for limit in range(max(map(int, os.listdir("/proc/self/fd"))) + 1, 40):
            resource.setrlimit(resource.RLIMIT_NOFILE, (limit, 1024))
            before = len(os.listdir("/proc/self/fd")) if limit > 20 else None
            for act in (lambda: shm.ones(3, backend=backend),
                        lambda: shm.share([1, 2], name="x"),
                        lambda: shm.share([1, 2], backend=backend),
                        lambda: shm.attach(shm.handle(a), readonly=True),
                        lambda: shm.resize(shm.ones(1), 9)):
                try:
                    act()
                    made += 1
                except OSError as error:
                    assert error.errno == errno.EMFILE, error
            if before:
                assert len(os.listdir("/proc/self/fd")) == before
        assert made > 4
        assert len([info for info in shm.list() if info.mine]) == 1 + (backend == "shm")
        """,
        backend,
    )


@BACKENDS
@pytest.mark.parametrize("limit", ["AS", "FSIZE"])
def test_no_address_space_or_file_size_left(script, backend, limit):
    """SharedArray: a create that fails leaves its file."""
    script.run(
        """
        import resource
        backend, limit = sys.argv[1:]
        a = shm.ones(3, capacity=1 << 24, backend=backend)
        big, source = 4 << 20, np.ones(4 << 20)
        bound, number = 1 << 20, errno.EFBIG
        acts = [lambda: shm.empty(big, backend=backend),
                lambda: shm.share(source, backend=backend),
                lambda: shm.share([0.0] * (1 << 18), backend=backend),
                lambda: shm.empty(1, capacity=big, backend=backend)]
        if limit == "AS":
            acts[2:3] = [lambda: shm.resize(a, (1 << 24) + 1),
                         lambda: shm.attach(shm.handle(a), readonly=True)]
            with open("/proc/self/statm") as file:
                bound = int(file.read().split()[0]) * 4096 + (16 << 20)
            number = errno.ENOMEM
        resource.setrlimit(getattr(resource, f"RLIMIT_{limit}"), (bound, bound))
        for error in refused((OSError, MemoryError), *acts):
            assert isinstance(error, shm.ShmFullError) and error.errno == number, repr(error)
            cure = "ulimit -v" if limit == "AS" else f"{bound} (raise it: ulimit -f)"
            assert isinstance(error, MemoryError) and cure in str(error), error
        assert shm.resize(a, 1000)[:3].tolist() == [1, 1, 1]
        assert shm.ones(100, backend=backend).sum() == 100
        assert len(mine()) == (backend == "shm")
        """,
        backend,
        limit,
    )


UNUSABLE = """
    error, = refused(shm.ShmError, lambda: shm.ones(3))
    assert isinstance(error, OSError) and not isinstance(error, FileExistsError)
    print(errno.errorcode[error.errno])
    b = shm.full(3, 2.0, backend="memfd")
    assert shm.attach(shm.handle(b), readonly=True).sum() == 6
    assert shm.list() == [] and shm.cleanup() == []
"""


@pytest.mark.parametrize(
    "mount, code",
    [
        ("mount -t tmpfs -o ro none /dev/shm", ["EROFS"]),
        ("mount -t tmpfs none /dev", ["ENOENT", "ENOSYS", "ENOTSUP", "ENODEV"]),
    ],
    ids=["read-only", "missing"],
)
def test_memfd_needs_no_dev_shm(script, mount, code):
    """Some containers have no /dev/shm that can be written."""
    assert script.run(UNUSABLE, prefix=in_private(mount)) in code


def test_no_entries_left(script):
    """A tmpfs may limit the number of files."""
    script.run(
        """
        from multiprocessing.reduction import ForkingPickler
        arrays = []
        for act in (lambda: shm.ones(3), lambda: ForkingPickler.dumps(arrays[0])):
            error, = refused(shm.ShmError, lambda: [arrays.append(act()) for _ in range(100)])
            assert error.errno == 28, error
        before = set(os.listdir("/dev/shm"))
        for act in (lambda: shm.ones(3, name="x"), lambda: shm.share([1, 2])):
            try:
                act()
            except shm.ShmError as error:
                assert error.errno == 28, error
            assert set(os.listdir("/dev/shm")) == before
        assert all(a.sum() == 3 for a in arrays)
        del arrays[:5]
        assert shm.ones(4).sum() == 4
        """,
        prefix=in_private("mount -t tmpfs -o size=16m,nr_inodes=30 none /dev/shm"),
    )
