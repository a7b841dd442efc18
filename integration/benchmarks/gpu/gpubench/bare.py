"""A bare NCCL loop inside the processes of a runtime, in turns with its collectives.

Workers obey orders and nothing else: a Theano operation makes them run a loop of their own.
"""

from __future__ import annotations

import ctypes
import importlib
import time
from typing import Any

import numpy as np
import theano
import theano.tensor as T

FLOAT32, AVG, IN_PROGRESS = 7, 4, 7  # of nccl.h
BINDING = "nccl.bindings.nccl"
WARM = 3


def available() -> str:
    """Why there can be no bare loop; empty if there can."""
    try:
        binding().get_version()
    except Exception as error:
        return f"nccl4py cannot be used: {type(error).__name__}: {error}"
    return ""


def binding() -> Any:
    return importlib.import_module(BINDING)


class BareAllReduce(theano.Op):  # type: ignore[misc]
    """Seconds per call of an averaging all_reduce, in place, of float32, by NCCL alone.

    Inputs: the rank, as a vector of one number; NCCL's unique id as uint8; a vector of the number
    of ranks, elements, and calls. Output: a vector of one number.
    """

    __props__ = ()

    def __init__(self) -> None:
        self._comm: Any = None
        self._buffers: dict[int, Any] = {}

    def __getstate__(self) -> dict[str, Any]:
        return {"_comm": None, "_buffers": {}}  # a communicator is a process's own

    def make_node(self, rank: Any, unique_id: Any, how: Any) -> Any:
        inputs = [T.as_tensor_variable(value) for value in (rank, unique_id, how)]
        return theano.Apply(self, inputs, [T.dvector()])

    def perform(self, _node: Any, inputs: Any, outputs: Any) -> None:
        from theano.gpuarray.type import get_context

        rank, unique_id, (size, elements, calls) = inputs
        context = get_context(None)
        with context:
            if self._comm is None:
                self._comm = _connect(int(rank[0]), int(size), unique_id.tobytes())
            array = self._buffer(context, int(elements), float(rank[0]) + 1)
            pointer = int(array.gpudata)
            seconds = _loop(self._comm, pointer, int(elements), int(calls))
        first = float(np.asarray(array[:1])[0])
        assert np.isclose(first, (size + 1) / 2), f"bare NCCL: {first}"
        outputs[0][0] = np.array([seconds])

    def infer_shape(self, _node: Any, shapes: Any) -> Any:
        return [shapes[0]]

    def _buffer(self, context: Any, elements: int, value: float) -> Any:
        import pygpu

        if elements not in self._buffers:
            values = np.full(elements, value, np.float32)
            self._buffers[elements] = pygpu.array(values, context=context)
            self._buffers[elements].sync()
        return self._buffers[elements]


def _connect(rank: int, size: int, unique_id: bytes) -> Any:
    nccl = binding()
    config = nccl.Config()
    config.blocking = 1
    comm = nccl.comm_init_rank_config(size, bytearray(unique_id), rank, config.ptr)
    while nccl.comm_get_async_error(comm) == IN_PROGRESS:
        time.sleep(0.001)
    return comm


def _loop(comm: Any, pointer: int, elements: int, calls: int) -> float:
    nccl, driver = binding(), ctypes.CDLL("libcuda.so.1")
    for count in (WARM, calls):
        assert driver.cuCtxSynchronize() == 0
        began = time.perf_counter()
        for _ in range(count):
            nccl.all_reduce(pointer, pointer, elements, FLOAT32, AVG, comm, 0)
        assert driver.cuCtxSynchronize() == 0
        seconds = (time.perf_counter() - began) / count
    return seconds
