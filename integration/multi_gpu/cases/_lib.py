"""What the cases share: values, variables on device or host, and comparison by dtype."""

from __future__ import annotations

from typing import Any, Sequence

import numpy as np
import pytest
import theano

TOLERANCE = {"float16": 1e-2, "float32": 1e-5, "float64": 1e-10}
FLOATS = list(TOLERANCE)
INTEGERS = ["int8", "int16", "int32", "int64", "uint8"]


def values(dtype: str, shape: Sequence[int], seed: int = 0) -> np.ndarray:
    """Floats from 0.5 to 1.5 with both signs, small integers, truth values."""
    random = np.random.RandomState(seed + 7 * len(shape) + sum(shape))
    if dtype.startswith("float"):
        signs = random.choice([-1.0, 1.0], size=tuple(shape))
        return np.asarray(signs * random.uniform(0.5, 1.5, tuple(shape)), dtype)
    if dtype == "bool":
        return np.asarray(random.uniform(size=tuple(shape)) < 0.5)
    lowest = 0 if dtype.startswith("u") else -2
    return np.asarray(random.randint(lowest, 3, tuple(shape)), dtype)


def exact(array: Any) -> np.ndarray:
    array = np.asarray(array)
    return array.astype("float64") if array.dtype.kind == "f" else array


def same(got: Any, expected: Any, dtype: str | None = None, what: str = "") -> None:
    """Assert that an array for the user is what was computed in NumPy, to its dtype's rounding.

    Its dtype is by default that of `expected`, or any if that is float64.
    """
    assert isinstance(got, (np.ndarray, np.generic)), f"{what}: got a {type(got)}"
    expected = np.asarray(expected)
    assert got.shape == expected.shape, f"{what}: got shape {got.shape}, not {expected.shape}"
    if dtype is not None:
        assert str(got.dtype) == dtype, f"{what}: got {got.dtype}, not {dtype}"
    if got.dtype.kind != "f" and expected.dtype.kind != "f":
        np.testing.assert_array_equal(got, expected, err_msg=what)
        return
    # What was added up is about 1 in magnitude, also where terms cancel.
    scale = float(np.max(np.abs(expected), initial=1.0))
    np.testing.assert_allclose(
        got.astype("float64"),
        expected,
        rtol=0,
        atol=TOLERANCE[str(got.dtype)] * scale,
        err_msg=what,
    )


def shared(value: Any, place: str, name: str = "s") -> Any:
    """A shared variable on the device or on the host, whatever its dtype."""
    value = np.asarray(value)
    if place == "host":
        return theano.shared(value, name=name, target="cpu")
    from theano.gpuarray import GpuArraySharedVariable, gpuarray_shared_constructor

    variable = gpuarray_shared_constructor(value, name=name, target=None)
    assert isinstance(variable, GpuArraySharedVariable)
    return variable


def still_there(variable: Any, place: str) -> None:
    """Assert that the master's value still lies where the variable's values lie."""
    held = variable.get_value(borrow=True, return_internal_type=True)
    assert isinstance(held, np.ndarray) == (place == "host"), f"{variable}: {type(held)}"


def spread(synk: Any, n: int, value: Any, place: str, name: str = "s") -> tuple[Any, list[Any]]:
    """A shared variable with another value on each rank, and these values."""
    value = np.asarray(value)
    variable = shared(value, place, name)
    held = [value if r == 0 else different(value, r) for r in range(n)]
    for rank in range(n):
        synk.set_value(rank, variable, held[rank])
    return variable, held


def different(value: np.ndarray, rank: int) -> np.ndarray:
    if value.dtype == bool:
        return np.roll(value, rank) ^ (rank % 2 == 1)
    return np.asarray(values(str(value.dtype), value.shape, seed=100 * rank))


def needs_reductions(device_set: Any, dtype: str) -> None:
    if device_set.kind == "opencl" and dtype == "float16":
        pytest.skip("pygpu does not reduce float16 on OpenCL")


def on_all(synk: Any, n: int, variable: Any) -> list[Any]:
    return [synk.get_value(rank, variable) for rank in range(n)]


def ranks_have(synk: Any, n: int, variable: Any, wanted: Any, dtype: str | None = None) -> None:
    """Assert the value of all ranks, or of each in a list: exact, or to the rounding of `dtype`."""
    each = wanted if isinstance(wanted, list) else [wanted] * n
    for rank, (got, want) in enumerate(zip(on_all(synk, n, variable), each)):
        if dtype is None:
            np.testing.assert_array_equal(got, want, err_msg=f"{variable} of rank {rank}")
        else:
            same(got, want, dtype, f"{variable} of rank {rank}")
