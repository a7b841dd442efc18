"""Wrong arguments are refused before they do harm, by an error that names what is wrong."""

from __future__ import annotations

import os
import pickle
import warnings

import numpy as np
import pytest

import synk_shm as shm


@pytest.mark.parametrize(
    "error, names",
    [
        (
            ValueError,
            ["a\0b", "a/b", "/a", "/synk.u.a/b", "/synk.u.a\0", "/synk.u.", "", ".", "..", "\ud800",
             "x" * 23, "é" * 12],
        ),
        (TypeError, [b"bytes", 3, ("a",), np.array("a")]),
    ],
)  # fmt: skip
def test_names(error, names):
    plain = [shm.ones, shm.empty, shm.zeros, lambda *args, **kw: shm.full(*args, 1, **kw)]
    for name in names:
        for make, what in (*((make, 1) for make in plain), (shm.share, [1]), (shm.zeros_like, [1])):
            with pytest.raises(error):
                make(what, name=name)
        with pytest.raises(error):
            shm.attach(name)
        for missing_ok in (False, True):
            with pytest.raises((ValueError, TypeError) if error is TypeError else error):
                shm.unlink(name, missing_ok=missing_ok)


def test_attach_takes_names_and_handles_only():
    for wrong in (None, 0, shm.ones(1), shm.segment(shm.ones(1)), object()):
        with pytest.raises(TypeError):
            shm.attach(wrong)


@pytest.mark.parametrize(
    "error, shapes",
    [
        (
            ValueError,
            [-1, (2, -3), np.int64(-1), (1,) * 65, (1 << 32, 1 << 32), (1 << 62, 1 << 62, 0),
             (1 << 33, 1 << 31), (1 << 32, (1 << 32) + 1), 1 << 60, (1 << 63) - 1, 1 << 64],
        ),
        (
            TypeError,
            [2.0, (2.0,), True, (2, False), "3", None, np.float64(2), float("nan"), 2 + 0j,
             (np.bool_(True), 2), (2, None), ((2, 3), 4), [2, "3"], b"23", np.array([2.0]),
             object()],
        ),
    ],
)  # fmt: skip
def test_shapes(error, shapes):
    makers = [shm.zeros, shm.ones, shm.empty, lambda shape: shm.full(shape, 1)]
    for shape in shapes:
        for make in (*makers, lambda shape: shm.empty(shape, backend="memfd")):
            with pytest.raises(error):
                make(shape)
    assert not [info for info in shm.list() if info.mine]


def test_shapes_of_any_kind_of_integers():
    for shape in (3, (3,), [2, 3], np.int8(3), (np.uint16(2), 3), range(1, 4), ()):
        assert shm.zeros(shape).shape == np.zeros(shape).shape
    assert shm.zeros(iter([2, 3])).shape == (2, 3)


@pytest.mark.parametrize(
    "error, dtypes",
    [
        (ValueError, ["S", "U0", "V0", [], [("a", "V0"), ("b", "S0")]]),
        (
            TypeError,
            [object, [("a", "i4"), ("b", "O")], "no such", [("a", [("b", "O", (2,))])],
             ("O", (2,)), 3],
        ),
    ],
)  # fmt: skip
def test_dtypes(error, dtypes):
    for dtype in dtypes:
        for make in (
            lambda dtype: shm.empty(3, dtype),
            lambda dtype: shm.zeros((), dtype, backend="memfd"),
            lambda dtype: shm.zeros_like([1, 2], dtype),
            lambda dtype: shm.full(3, 0, dtype),
        ):
            with pytest.raises(error):
                make(dtype)


@pytest.mark.parametrize(
    "source, error",
    [
        (np.array([{}, None]), TypeError),
        (object(), TypeError),
        (None, TypeError),
        ([1, None], TypeError),
        (np.zeros(2, [("x", "f8"), ("o", "O")]), TypeError),
        (np.zeros(2, "V0"), ValueError),
        ([[1, 2], [3]], (TypeError, ValueError)),
    ],
)
def test_sources_that_cannot_be_shared(source, error):
    with pytest.raises(error), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # older NumPy makes objects of ragged lists
        shm.share(source)
    assert not [info for info in shm.list() if info.mine]


def test_variable_length_strings():
    kind = getattr(getattr(np, "dtypes", None), "StringDType", None)
    if kind is None:
        pytest.skip("NumPy 2 only")
    with pytest.raises(TypeError, match="fixed-size"):
        shm.share(np.array(["a", "bcd"], dtype=kind()))


def test_other_arguments():
    for error, option, values in (
        (ValueError, "capacity", [2, -1, 1 << 61, 1 << 64]),
        (ValueError, "mode", [0o1777, -1, 0o060, True, 1 << 70]),
        (ValueError, "order", ["K"]),
        (ValueError, "backend", ["disk"]),
        (TypeError, "capacity", [5.0, True, "5"]),
        (TypeError, "mode", [0o600 + 0.0, "600", None]),
        ((TypeError, ValueError), "order", ["c", None]),
        ((TypeError, ValueError), "backend", [None, b"shm"]),
    ):
        for value in values:
            with pytest.raises(error):
                shm.empty(3, **{option: value})
    for options in ({"backend": "memfd", "name": "x"}, {"capacity": 5, "order": "F"}):
        with pytest.raises(ValueError):
            shm.empty(3, **options)
    assert not [info for info in shm.list() if info.mine]
    with pytest.raises(ValueError, match="capacity"):
        shm.empty((), capacity=3)
    with pytest.raises(TypeError, match="masked"):
        shm.share(np.ma.masked_array([1, 2], mask=[0, 1]))


@pytest.mark.parametrize(
    "error, lengths",
    [(ValueError, [-1, 1 << 62, 1 << 63, 1 << 64]), (TypeError, [2.0, True, None, "3", (3,)])],
)
def test_lengths(error, lengths):
    a = shm.ones((2, 3), capacity=5)
    for length in lengths:
        with pytest.raises(error):
            shm.resize(a, length)
    assert a.shape == shm.segment(a).shape == (2, 3)
    assert a.sum() == 6


def test_modes_are_exact():
    old = os.umask(0o077)
    try:
        for mode in (0o600, 0o660, 0o644):
            a = shm.empty(1, mode=mode)
            path = "/dev/shm" + shm.segment(a).name
            assert os.stat(path).st_mode & 0o777 == mode
    finally:
        os.umask(old)


def test_metadata_are_dropped_with_a_warning():
    dtype = np.dtype("f8", metadata={"unit": "m"})
    with pytest.warns(UserWarning, match="metadata"):
        a = shm.zeros(2, dtype)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert shm.attach(shm.segment(a).name).dtype == np.float64


def test_a_segment_that_took_the_name_of_another():
    a, b = shm.ones(3), shm.ones(3)
    wrong = shm.handle(a)._replace(nonce=b"different")
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


def test_handle_needs_a_shared_array():
    with pytest.raises(ValueError, match="share"):
        shm.handle(np.ones(3))
    with pytest.raises(TypeError):
        shm.handle([1, 2])
    for act in (shm.close, shm.unlink):
        with pytest.raises(ValueError, match="not in shared memory"):
            act(np.ones(3))


def test_errors_can_be_pickled():
    kinds = {
        shm.ShmExistsError: FileExistsError,
        shm.ShmFormatError: ValueError,
        shm.ShmFullError: MemoryError,
        shm.ShmNotFoundError: FileNotFoundError,
        shm.ShmPermissionError: PermissionError,
        shm.ShmTimeoutError: TimeoutError,
    }
    for ours, kind in kinds.items():
        error = ours(28, "why", "/dev/shm")
        again = pickle.loads(pickle.dumps(error))
        assert (type(again), again.errno, again.filename) == (ours, 28, "/dev/shm")
        assert isinstance(error, kind)
        assert isinstance(error, shm.ShmError)
        assert isinstance(error, OSError)
