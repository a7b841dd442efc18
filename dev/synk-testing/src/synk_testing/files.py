"""Arrays in files, as the tests of data that are not in memory read them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

KINDS = ("stand-in", "memory map", "h5py", "zarr")


class StandIn:
    """An array of which only rows can be read, as HDF5 gives them; `read` counts them."""

    def __init__(self, array: Any) -> None:
        self._array = array
        self.shape, self.dtype = array.shape, array.dtype
        self.read: list[int] = []

    def __getitem__(self, rows: Any) -> Any:
        if not isinstance(rows, slice):
            assert rows.tolist() == sorted(set(rows.tolist())), "not ascending"
        self.read.append(len(self._array[rows]))
        return self._array[rows]


def in_file(kind: str, array: Any, folder: Path) -> Any:
    """Return what reads a file of this array; the test is skipped without the library."""
    if kind == "memory map":
        np = pytest.importorskip("numpy")
        np.save(folder / "array.npy", array)
        return np.load(folder / "array.npy", mmap_mode="r")
    if kind == "h5py":
        h5py = pytest.importorskip("h5py")
        with h5py.File(folder / "array.h5", "w") as file:
            file.create_dataset("rows", data=array, chunks=(7, *array.shape[1:]))
        return h5py.File(folder / "array.h5")["rows"]
    if kind == "zarr":
        zarr = pytest.importorskip("zarr")
        chunks = (7, *array.shape[1:])
        made = zarr.open(
            str(folder / "array.zarr"),
            mode="w",
            shape=array.shape,
            chunks=chunks,
            dtype=array.dtype,
        )
        made[:] = array
        return zarr.open(str(folder / "array.zarr"), mode="r")
    return StandIn(array)
