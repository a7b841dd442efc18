"""The least that a device array can be, on real devices and on fake ones."""

from __future__ import annotations

import contextlib
import math
from typing import Any

import numpy as np

from synk_comm._backends.nccl.arrays import BFLOAT16
from synk_comm._core.calls import dtype_text, text_dtype
from synk_comm._core.ops import Array
from synk_comm.cuda import CudaError


class _Memory:
    """Device memory that is freed with its last array."""

    def __init__(self, driver: Any, device: int, nbytes: int) -> None:
        self._driver, self._device = driver, device
        with driver.entered(device):
            self.pointer = driver.allocate_on(0, nbytes)

    def __del__(self) -> None:
        if hasattr(self, "pointer"):
            with contextlib.suppress(CudaError), self._driver.entered(self._device):
                self._driver.free_on(0, self.pointer)


class CudaArray:
    """Memory, and ``__cuda_array_interface__``. bfloat16 is held as its bits, in uint16."""

    def __init__(
        self,
        driver: Any,
        shape: tuple[int, ...],
        dtype: str,
        device: int = 0,
        *,
        stream: int | None = None,
        readonly: bool = False,
        memory: _Memory | None = None,
        offset: int = 0,
        strides: tuple[int, ...] | None = None,
    ) -> None:
        self.shape, self.dtype = tuple(shape), dtype
        self.device, self.stream, self.readonly, self.strides = device, stream, readonly, strides
        self._driver, self._offset = driver, offset
        self._bits = np.dtype(np.uint16) if dtype == BFLOAT16 else text_dtype(dtype)
        nbytes = math.prod(self.shape) * self._bits.itemsize
        self._memory = memory or _Memory(driver, device, nbytes)
        described = {}
        if self._bits.names:
            described = {"descr": np.lib.format.dtype_to_descr(self._bits)}
        self.__cuda_array_interface__ = {
            "shape": self.shape,
            "typestr": "<V2" if dtype == BFLOAT16 else self._bits.str,
            "data": (self._memory.pointer + offset, readonly),
            "strides": strides,
            "stream": stream,
            "version": 3,
            **described,
        }

    @classmethod
    def of(cls, driver: Any, values: Any, device: int = 0, **options: Any) -> CudaArray:
        host = np.asarray(values, order="C")
        dtype = options.pop("dtype", None)
        if dtype is None:
            dtype = dtype_text(host.dtype)
        made = cls(driver, host.shape, dtype, device, **options)
        address = int(host.__array_interface__["data"][0])
        with driver.entered(device):
            driver.upload_on(0, made._memory.pointer, address, host.nbytes)
        return made

    def host(self) -> Array:
        """Copy to the host, after all that the default stream has to do."""
        values = np.empty(self.shape, self._bits)
        address = int(values.__array_interface__["data"][0])
        pointer = self._memory.pointer + self._offset
        if values.nbytes:
            with self._driver.entered(self.device):
                # Into pages that are not locked, so it is done when this returns.
                self._driver.download_on(0, address, pointer, values.nbytes)
        return values

    def new_empty(self, shape: tuple[int, ...]) -> CudaArray:
        return CudaArray(self._driver, tuple(shape), self.dtype, self.device, stream=self.stream)

    def __getitem__(self, row: int) -> CudaArray:
        step = math.prod(self.shape[1:]) * self._bits.itemsize
        return CudaArray(
            self._driver,
            self.shape[1:],
            self.dtype,
            self.device,
            stream=self.stream,
            readonly=self.readonly,
            memory=self._memory,
            offset=self._offset + row * step,
        )
