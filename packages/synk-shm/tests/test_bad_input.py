"""Whatever is wrong is refused before it does harm, by an error that says so."""

from __future__ import annotations

import dataclasses
import os
import pickle
import struct
import warnings

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import synk_shm as shm
from synk_shm import _header

STRANGE = f"strange{os.getpid()}"


@pytest.fixture
def raw():
    """Files in shared memory that were not made by this package."""
    made = []

    def make(content: bytes, name: str = STRANGE) -> str:
        path = f"/dev/shm/synk.u.{name}"
        with open(path, "wb") as file:
            file.write(content)
        if path not in made:
            made.append(path)
        return name

    yield make
    for path in made:
        os.unlink(path)


@pytest.mark.parametrize(
    "name, error",
    [
        ("a\0b", ValueError),
        ("a/b", ValueError),
        ("/a", ValueError),
        ("/synk.u.a/b", ValueError),
        ("/synk.u.a\0", ValueError),
        ("/synk.u.", ValueError),
        ("", ValueError),
        (".", ValueError),
        ("..", ValueError),
        ("\ud800", ValueError),
        ("x" * 23, ValueError),
        ("é" * 12, ValueError),
        (b"bytes", TypeError),
        (3, TypeError),
    ],
)
def test_names(name, error):
    for act in (shm.attach, lambda name: shm.ones(1, name=name)):
        with pytest.raises(error):
            act(name)
    if isinstance(name, str):
        with pytest.raises(error):
            shm.unlink(name)


def test_longest_name_works():
    a = shm.ones(2, name="x" * 22)
    assert shm.attach("x" * 22).sum() == a.sum()


def test_existing_name_is_left_alone():
    a = shm.full(3, 7.0, name="taken")
    with pytest.raises(FileExistsError) as caught:
        shm.zeros(9, name="taken")
    assert isinstance(caught.value, shm.ShmError)
    assert caught.value.errno == 17
    assert "taken" in str(caught.value)
    assert shm.attach("taken").tolist() == a.tolist()
    assert [info.nbytes for info in shm.list() if info.name == "taken"] == [4096]


@pytest.mark.parametrize(
    "shape, error",
    [
        (-1, ValueError),
        ((2, -3), ValueError),
        (2.0, TypeError),
        ((2.0,), TypeError),
        (True, TypeError),
        ((2, False), TypeError),
        ("3", TypeError),
        (None, TypeError),
        ((1,) * 65, ValueError),
        ((1 << 32, 1 << 32), ValueError),
        ((1 << 62, 1 << 62, 0), ValueError),
        (1 << 60, ValueError),
        (1 << 64, ValueError),
    ],
)
def test_shapes(shape, error):
    with pytest.raises(error):
        shm.empty(shape)


@pytest.mark.parametrize(
    "dtype, error",
    [
        (object, TypeError),
        ([("a", "i4"), ("b", "O")], TypeError),
        ("S", ValueError),
        ("U0", ValueError),
        ("V0", ValueError),
        ([], ValueError),
        ("no such", TypeError),
    ],
)
def test_dtypes(dtype, error):
    with pytest.raises(error):
        shm.empty(3, dtype)


@pytest.mark.skipif(
    not hasattr(np.dtypes, "StringDType") if hasattr(np, "dtypes") else True, reason="NumPy 2 only"
)
def test_variable_length_strings():
    with pytest.raises(TypeError, match="fixed-size"):
        shm.share(np.array(["a", "bcd"], dtype=np.dtypes.StringDType()))


def test_other_arguments():
    for options in (
        {"order": "K"},
        {"backend": "disk"},
        {"backend": "memfd", "name": "x"},
        {"capacity": 2},
        {"capacity": 5, "order": "F"},
        {"capacity": -1},
        {"mode": 0o1777},
        {"mode": -1},
        {"mode": 0o060},
        {"mode": True},
    ):
        with pytest.raises(ValueError):
            shm.empty(3, **options)
    with pytest.raises(ValueError, match="capacity"):
        shm.empty((), capacity=3)
    with pytest.raises(TypeError, match="masked"):
        shm.share(np.ma.masked_array([1, 2], mask=[0, 1]))


def test_modes_are_exact():
    old = os.umask(0o077)
    try:
        for mode in (0o600, 0o660, 0o644):
            a = shm.empty(1, mode=mode)
            path = "/dev/shm" + shm.segment(a).name
            assert os.stat(path).st_mode & 0o777 == mode
    finally:
        os.umask(old)


def test_metadata_are_lost_with_a_warning():
    dtype = np.dtype("f8", metadata={"unit": "m"})
    with pytest.warns(UserWarning, match="metadata"):
        a = shm.zeros(2, dtype)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert shm.attach(shm.segment(a).name).dtype == np.float64


def test_attach_what_is_not_there():
    with pytest.raises(FileNotFoundError) as caught:
        shm.attach("nobody")
    assert (caught.value.errno, caught.value.filename) == (2, "/synk.u.nobody")
    address = shm.handle(shm.ones(3))
    with pytest.raises(shm.ShmNotFoundError):
        address.attach()


def test_a_segment_that_took_the_name_of_another():
    a, b = shm.ones(3), shm.ones(3)
    wrong = dataclasses.replace(shm.handle(a), nonce=b"different")
    with pytest.raises(FileNotFoundError, match="taken this name"):
        wrong.attach()
    for backend in ("shm", "memfd"):
        a = shm.ones(3, backend=backend)
        address = shm.handle(a)
        del a
        b = shm.ones(3, backend=backend)  # memfd: probably the same number
        with pytest.raises(FileNotFoundError):
            address.attach()
        assert b.sum() == 3


def test_memfd_number_that_became_something_else():
    a = shm.ones(3, backend="memfd")
    address, number = shm.handle(a), shm.segment(a).fd
    del a
    for opened in (os.open("/dev/null", os.O_RDWR), *os.pipe()):
        if opened != number:
            os.dup2(opened, number)
            os.close(opened)
        with pytest.raises(FileNotFoundError):
            address.attach()
    os.close(number)


@pytest.mark.parametrize("content", [b"x" * 100, b"not a segment at all".ljust(5000)])
def test_foreign_files(raw, content):
    name = raw(content)
    with pytest.raises(shm.ShmFormatError) as caught:
        shm.attach(name)
    assert isinstance(caught.value, ValueError)
    assert os.path.exists(f"/dev/shm/synk.u.{STRANGE}")
    assert [info.shape for info in shm.list() if info.name == STRANGE] == [None]


@pytest.mark.parametrize("content", [b"", b"x", bytes(4096)])
def test_segments_that_never_become_ready(raw, content):
    name = raw(content)
    with pytest.raises(TimeoutError):
        shm.attach(name, timeout_s=0.05)


def test_attach_waits_for_a_segment_that_is_being_made(raw):
    import threading

    complete = segment_bytes()
    raw(b"")
    timer = threading.Timer(0.1, raw, [complete])
    timer.start()
    try:
        assert shm.attach(STRANGE, timeout_s=30).tolist() == [1, 1, 1]
    finally:
        timer.join()


def segment_bytes() -> bytes:
    a = shm.ones(3)
    with open("/dev/shm" + shm.segment(a).name, "rb") as file:
        return file.read()


FIELDS = {
    "version": (8, "I"),
    "flags": (12, "I"),
    "data": (32, "Q"),
    "capacity": (40, "Q"),
    "reserved": (48, "Q"),
    "ndim": (56, "I"),
    "text": (60, "I"),
    "shape": (64, "q"),
}


@pytest.mark.parametrize("field", FIELDS)
@pytest.mark.parametrize("value", [3, 1000, 1 << 30])
def test_forged_numbers(raw, field, value):
    offset, kind = FIELDS[field]
    content = bytearray(segment_bytes())
    if struct.unpack_from(kind, content, offset)[0] == value:
        return
    struct.pack_into(kind, content, offset, value)
    with pytest.raises(shm.ShmFormatError):
        shm.attach(raw(bytes(content)))


@pytest.mark.parametrize("family", [b"../../..", b"ABCDEFGH", b"\xff" * 8])
def test_forged_family(raw, family):
    content = bytearray(segment_bytes())
    content[24:32] = family
    with pytest.raises(shm.ShmFormatError):
        shm.attach(raw(bytes(content)))


@settings(max_examples=150, deadline=None)
@given(st.data())
def test_damaged_headers_never_crash(data):
    """Any bytes of the header may be anything: it parses to something safe, or is refused."""
    a = shm.zeros((3, 2), [("x", "f8"), ("y", "i2")])
    with open("/dev/shm" + shm.segment(a).name, "rb") as file:
        content = bytearray(file.read())
    for _ in range(data.draw(st.integers(1, 4))):
        where = data.draw(st.integers(8, len(content) - 1))
        content[where] = data.draw(st.integers(0, 255))
    try:
        header = _header.parse(bytes(content), len(content), "damaged")
    except shm.ShmFormatError:
        return
    nbytes = int(np.prod(header.shape)) * header.dtype.itemsize
    assert 0 <= nbytes <= header.reserved <= header.capacity
    assert header.data_offset + header.capacity <= len(content)
    assert not header.dtype.hasobject


@pytest.mark.parametrize(
    "text",
    ["O", "|O", "('array', 'O', (2,))", "(1", "((((", "('struct',)", "('x', 1)", "__import__('os')",
     "(" * 5000, "('struct', ('a',), ('O',), (0,), (None,), 8, False)", "f8,O", "", "V0"],
)  # fmt: skip
def test_forged_dtypes(text):
    with pytest.raises((TypeError, ValueError)):
        _header.decode_dtype(text)


def test_handles_that_leave_the_segment():
    a = shm.zeros((4, 4), capacity=100)
    good = shm.handle(a)
    for changes in (
        {"offset": -8},
        {"offset": 8},
        {"offset": 1 << 40},
        {"shape": (5, 4)},
        {"shape": (-1, 4)},
        {"shape": (1 << 40, 1 << 40)},
        {"strides": (32, -8)},
        {"strides": (1 << 40, 8)},
        {"strides": (32,)},
        {"dtype_text": "O"},
        {"dtype_text": ">c16"},
    ):
        with pytest.raises(shm.ShmFormatError):
            dataclasses.replace(good, **changes).attach()
    for name in ("/etc/passwd", "/proc/self/fd/0", "/proc/1/root", "/dev/shm/x", "a\0b", 3):
        with pytest.raises((ValueError, TypeError)):
            dataclasses.replace(good, name=name).attach()


def test_handle_needs_a_shared_array():
    with pytest.raises(ValueError, match="share"):
        shm.handle(np.ones(3))
    with pytest.raises(TypeError):
        shm.handle([1, 2])
    for act in (shm.close, shm.unlink):
        with pytest.raises(ValueError, match="not in shared memory"):
            act(np.ones(3))


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to become somebody else")
def test_other_users(script):
    a = shm.ones(3, name="private")
    b = shm.full(3, 2.0, name="public", mode=0o666)
    out = script.run(
        """
        import os, sys, synk_shm as shm
        shm.ones(1)  # loads all that an interpreter in root's home hides from others
        os.setgid(65534); os.setuid(65534)
        for name, options in [("private", {}), ("public", {}), ("public", {"owner_uid": 0})]:
            try:
                print(shm.attach(name, **options).sum())
            except PermissionError as error:
                print(type(error).__name__, "owner_uid" in str(error))
        print(shm.list(), shm.cleanup())
        try:
            shm.unlink("public")
        except OSError as error:
            print(type(error).__name__)
        """
    )
    assert out.splitlines() == [
        "ShmPermissionError False",
        "ShmPermissionError True",
        "6.0",
        "[] []",
        "ShmNotFoundError",
    ]
    assert (a.sum(), shm.attach("public").sum()) == (3, b.sum())


def test_failed_attach_leaves_the_segment(script):
    a = shm.ones(1 << 20)
    out = script.run(
        """
        import resource, sys, synk_shm as shm
        with open("/proc/self/statm") as file:
            used = int(file.read().split()[0]) * 4096
        resource.setrlimit(resource.RLIMIT_AS, (used + (6 << 20), used + (6 << 20)))
        try:
            shm.attach(sys.argv[1])
        except OSError as error:
            print(error.errno, isinstance(error, shm.ShmError))
        """,
        shm.segment(a).name,
    )
    assert out == "12 True"
    assert shm.attach(shm.segment(a).name).sum() == 1 << 20


def test_errors_can_be_pickled():
    error = shm.ShmFullError(28, "full", "/dev/shm")
    again = pickle.loads(pickle.dumps(error))
    assert (type(again), again.errno, again.filename) == (shm.ShmFullError, 28, "/dev/shm")
    assert isinstance(error, MemoryError)
    assert isinstance(error, OSError)
