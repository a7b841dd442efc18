"""Faults of other libraries with arrays, sizes and headers.

Each docstring names the library and its fault, which was reproduced. Each test fails if synk_shm
has the fault. Code that might kill the process runs in a process of its own.
"""

from __future__ import annotations

import os
import re

import numpy as np
import pytest

import synk_shm as shm

FAITHFUL = [
    np.arange(6, dtype=">i4").reshape(2, 3),
    np.arange(6, dtype="<u2").reshape(2, 3, order="F"),
    np.array(["2026-01-01", "NaT"], "M8[25s]"),
    np.array([3, -4], ">m8[D]"),
    np.array([(1, 2.5, b"ab"), (3, 4.5, b"c")], [("n", ">i2"), ("x", "f8"), ("s", "S3")]),
    np.array([(1, 2.5)], np.dtype([("a", "i1"), ("b", "f8")], align=True)),
    np.array(["é", "text"], ">U5"),
    np.array([True, False]),
    np.array(1 + 2j),
    np.zeros((0, 3), "f4"),
    np.zeros((2, 0, 5)),
]


def test_another_program_sees_the_same(script):
    """SharedArray, shared_ndarray: byte order, struct fields, units, F order, size 0 are lost."""
    arrays = [shm.share(source) for source in FAITHFUL]
    out = script.run(
        """
        for name in sys.argv[1:]:
            a = shm.attach(name)
            facts = a.shape, a.strides, repr(a.dtype), a.flags.f_contiguous
            print(*facts, a.tobytes().hex(), sep=";")
        """,
        *(shm.segment(a).name for a in arrays),
    )
    lines = out.splitlines()
    assert len(lines) == len(FAITHFUL)
    for a, line in zip(FAITHFUL, lines):
        shape, strides, dtype, fortran, data = line.split(";")
        assert (shape, dtype) == (str(a.shape), repr(a.dtype))
        assert fortran == str(a.flags.f_contiguous)
        assert strides == str(a.strides) or not a.size
        assert data == a.tobytes().hex()


def test_empty_and_0d_arrays_travel(program, daily_method):
    """Standard library: size 0 is refused; shared_ndarray: it crashes in the constructor."""
    program(
        """
        def look(arrays):
            assert [a.shape for a in arrays] == [(0,), (3, 0, 2), (), (2,)]
            assert [str(a.dtype) for a in arrays] == [">i4", "float64", "float32", "float64"]
            arrays[2][...] = 5
            return arrays

        def main(context):
            arrays = [
                shm.zeros(0, ">i4"), shm.zeros((3, 0, 2)), shm.zeros((), "f4"), shm.ones(9)[3:5],
            ]
            with pool_of(context, 1) as pool:
                back = pool.apply(look, (arrays,))
            assert arrays[2] == 5 and all(shm.is_shared(a) for a in back)
            with ProcessPoolExecutor(1, mp_context=context) as pool:
                assert len(pool.submit(look, arrays).result(60)) == 4
            queue = context.Queue()
            queue.put(arrays)
            assert look(queue.get(timeout=60))[2] == 5
            queue.close()
            queue.join_thread()
        """,
        daily_method,
    )


@pytest.mark.parametrize("backend", ["shm", "memfd"])
def test_no_array_dangles(script, backend):
    """Standard library: an array on `buf` takes no export; returned from a function, it crashes."""
    script.run(
        """
        def inner(kind):
            a = shm.full((50, 40), 7.0, backend=sys.argv[1])
            if kind == "handle":
                return shm.attach(shm.handle(a[5:]))
            return {
                "array": a, "view": a[3:, ::2].T, "memoryview": memoryview(a), "data": a.data,
                "frombuffer": np.frombuffer(a.data.cast("B")), "asarray": np.asarray(a),
                "strided": np.lib.stride_tricks.as_strided(a, (9, 9), (8, 8)), "flat": a.flat,
                "matrix": a.view(np.matrix), "iter": iter(a), "ctypes": np.ctypeslib.as_ctypes(a),
                "dlpack": np.from_dlpack(a) if hasattr(np, "from_dlpack") else a,
            }[kind]

        def other():
            with shm.scope() as s:
                a = s.full(100, 7.0, backend=sys.argv[1])
                b = shm.resize(a, 10000)
            shm.unlink(a, missing_ok=True)
            return a[1:], b[:100]

        kinds = "array view memoryview data frombuffer asarray strided flat matrix iter ctypes"
        for kind in [*kinds.split(), "handle", "dlpack"]:
            kept = inner(kind)
            gc.collect()
            filler = [shm.full(2000, 3.0, backend=sys.argv[1]) for _ in range(20)]
            values = np.array(list(kept) if kind in ("flat", "iter") else kept)
            assert values.size and (values == 7).all(), kind
            del kept, values, filler
        a, b = other()
        gc.collect()
        assert (a == 7).all() and (b == 7).all()
        """,
        backend,
    )


@pytest.mark.parametrize("backend", ["shm", "memfd"])
def test_views_that_are_alive_at_exit_are_silent(script, backend):
    """Standard library: `BufferError: cannot close exported pointers exist` from finalizers."""
    out = script.run(
        """
        import types
        a = shm.zeros(1000, backend=sys.argv[1])
        view, buffer, iterator = a[1:], memoryview(a), iter(a)
        cycle = types.SimpleNamespace(a=shm.ones(3, backend=sys.argv[1]))
        cycle.me = cycle
        sys.modules["holder"] = types.SimpleNamespace(a=shm.attach(shm.handle(a)))

        class Late:
            def __init__(self):
                self.a = shm.ones(3, backend=sys.argv[1])

            def __del__(self, out=sys.stdout):
                out.write(str(float(self.a[0])))

        late = Late()
        threading.local().a = shm.full(3, 2.0)
        assert len(shm.list()) >= 0
        """,
        backend,
    )
    assert out == "1.0"


def test_writable_everywhere_unless_asked(program, daily_method):
    """ray, joblib: arrays arrive read-only in workers, where sorting in place then fails."""
    program(
        """
        def initialize(a):
            a[0] = 100
            globals()["kept"] = a

        def work(a=None):
            a = kept if a is None else a
            assert a.flags.writeable
            a.sort()
            np.add(a, 1, out=a)
            return a

        def main(context):
            a = shm.share([9.0, 3.0, 2.0, 1.0])
            with pool_of(context, 1, initialize, (a,)) as pool:
                assert np.shares_memory(pool.apply(work), a)
                assert a.tolist() == [2, 3, 4, 101]
                pool.apply(work, (a[::-1],))
                assert a.tolist() == [102, 5, 4, 3]
            with ProcessPoolExecutor(1, context, initialize, (a,)) as p:
                assert np.shares_memory(p.submit(work).result(60), a)
                assert a.tolist() == [4, 5, 6, 101]
        """,
        daily_method,
    )


@pytest.mark.parametrize(
    "shape, dtype",
    [
        (1 << 64, "u1"),
        ((1 << 64) + 10, "u1"),
        ((1 << 32, 1 << 32), "u1"),
        ((1 << 33, 1 << 31), "u1"),
        ((1 << 61), "f8"),
        ((1 << 62) + 1, "i4"),
        ((1 << 32, (1 << 32) + 1), "f8"),
        (1 << 34, "V1073741824"),
        ((1 << 63) - 1, "u1"),
    ],
)
def test_sizes_do_not_wrap(shape, dtype, given):
    """posix_ipc, SharedArray: sizes are taken modulo 2**64, and then written beyond."""
    name = given("wraps")
    for act in (
        lambda: shm.empty(shape, dtype, name=name),
        lambda: shm.empty(shape, dtype, backend="memfd"),
        lambda: shm.empty(1, dtype, capacity=np.prod(np.array(shape, object))),
    ):
        with pytest.raises(ValueError, match="address space"):
            act()
    with pytest.raises(FileNotFoundError):
        shm.attach(name)
    a = shm.zeros((1, 2), "u1")
    for length in (1 << 63, 1 << 64, (1 << 64) + 1):
        with pytest.raises(ValueError, match="address space"):
            shm.resize(a, length)
    assert shm.segment(a).shape == (1, 2)


@pytest.mark.parametrize(
    "again",
    [
        "shm.zeros(9, name=name)",
        "shm.zeros(1, 'u1', name=name)",
        "shm.share(range(5), name=name)",
        "shm.zeros(1 << 62, 'u1', name=name)",
        "shm.zeros(1, 'u1', capacity=1 << 62, name=name)",
        "shm.empty(1 << 56, 'u1', name=name)",
    ],
)
def test_creating_what_exists_changes_nothing(given, again):
    """posix_ipc: opening with a size resizes an existing segment, or unlinks it if that fails."""
    name = given("exists")
    a = shm.full(3000, 7.0, name=name)
    path = f"/dev/shm{shm.segment(a).name}"
    before = os.stat(path)
    with pytest.raises((FileExistsError, MemoryError, OSError)):
        eval(again)
    assert [info.shape for info in shm.list() if name in info.name] == [(3000,)]
    assert len([info for info in shm.list() if info.mine]) == 1
    after = os.stat(path)
    assert (after.st_size, after.st_ino, after.st_nlink) == (
        before.st_size,
        before.st_ino,
        before.st_nlink,
    )
    assert (shm.attach(name) == 7).all()


def test_errors_are_subclasses_of_the_usual_ones(given):
    """posix_ipc: its errors are not OSError, and have neither errno nor file name."""
    name = given("error")
    a = shm.ones(3, name=name)
    with pytest.raises(FileExistsError) as exists:
        shm.ones(3, name=name)
    assert name in str(exists.value)
    with pytest.raises(FileNotFoundError) as missing:
        shm.attach(name + "x")
    with pytest.raises(FileNotFoundError) as unlinked:
        shm.unlink(name + "x")
    address = shm.handle(a)
    shm.close(a)
    with pytest.raises(FileNotFoundError) as gone:
        address.attach()
    for caught, number, word in [
        (exists, 17, name),
        (missing, 2, f"/synk.u.{name}x"),
        (unlinked, 2, f"/synk.u.{name}x"),
        (gone, 2, address.name),
    ]:
        assert isinstance(caught.value, shm.ShmError)
        assert caught.value.errno == number
        assert word in caught.value.filename
        assert re.search(r"\w+ \w+ \w+", caught.value.strerror)


def test_failures_keep_no_descriptor(descriptors, given):
    """posix_ipc: it has no finalizer, each failed call and forgotten array costs a descriptor."""
    name = given("kept")
    a = shm.zeros((4, 3), name=name, capacity=8)
    address = shm.handle(a)
    before = descriptors()
    for _ in range(30):
        for act in (
            lambda: shm.zeros(9, name=name),
            lambda: shm.zeros(1 << 56, "u1"),
            lambda: shm.zeros(1 << 56, "u1", backend="memfd"),
            lambda: shm.attach(given("missing")),
            lambda: shm.attach(shm.segment(a).name, owner_uid=12345, readonly=True),
            lambda: shm.resize(a, 1 << 55),
            lambda: shm.zeros(3, object),
        ):
            with pytest.raises((OSError, TypeError, MemoryError)):
                act()
        shm.attach(address, readonly=True)
        shm.attach(shm.segment(a).name)
        shm.share(range(9), backend="memfd")
        with shm.lock(a):
            pass
    assert descriptors() == before


DAMAGE = """
    import struct

    path = "/dev/shm/synk.u." + sys.argv[1]
    made = shm.share(np.zeros((3, 4), [("x", "f8"), ("y", ">i2")]))
    with open("/dev/shm" + shm.segment(made).name, "rb") as file:
        good = file.read()
    refused = taken = 0

    def attach(content):
        global refused, taken
        with open(path, "wb") as file:
            file.write(content)
        inode = os.stat(path).st_ino
        try:
            a = shm.attach(sys.argv[1], readonly=True, timeout_s=0)
            total = len(a.tobytes())  # reads every byte of the array
            assert total == shm.segment(a).nbytes <= shm.segment(a).capacity <= len(content)
            assert not a.dtype.hasobject
            taken += 1
            del a
        except (shm.ShmFormatError, TimeoutError):
            refused += 1
        shm.list()
        assert os.stat(path).st_ino == inode and os.path.getsize(path) == len(content)
        os.unlink(path)

"""


PRINT = "    print(refused, taken)\n"
FORGED = """
    for offset in range(0, 256, 4):
        for value in (0, 1, 3, 1 << 12, (1 << 31) - 1, 1 << 31, (1 << 32) - 1):
            attach(good[:offset] + struct.pack("I", value) + good[offset + 4 :])
        for value in (1 << 40, (1 << 63) - 8, (1 << 64) - 1):
            attach(good[:offset] + struct.pack("Q", value) + good[offset + 8 :])
"""
TRUNCATED = """
    attach(good)
    for size in [*range(0, 300, 3), *range(300, len(good), 97)]:
        attach(good[:size])
"""
RANDOM = """
    import random
    chance = random.Random(0)
    for _ in range(550):
        content = bytearray(good)
        for _ in range(chance.randint(1, 6)):
            offset = chance.randrange(8, chance.choice([256, len(content)]))
            content[offset] = chance.choice([0, 1, 255, chance.randrange(256)])
        attach(bytes(content[: chance.choice([len(good), chance.randrange(len(good))])]))
    assert refused + taken == 550
"""


@pytest.mark.parametrize(
    "code, least_refused, least_taken",
    [(FORGED, 101, 11), (TRUNCATED, 81, 1), (RANDOM, 101, 0)],
    ids=["forged", "truncated", "random"],
)
def test_damaged_files_do_no_harm(script, given, code, least_refused, least_taken):
    """SharedArray: forged dimensions in a header crash the program that attaches it.

    np.memmap, SharedArray: a file shorter than its header claims kills its readers by SIGBUS.
    """
    name = given("damage")
    try:
        refused, taken = map(int, script.run(DAMAGE + code + PRINT, name).split())
    finally:
        if os.path.exists(f"/dev/shm/synk.u.{name}"):
            os.unlink(f"/dev/shm/synk.u.{name}")
    assert refused >= least_refused
    assert taken >= least_taken
