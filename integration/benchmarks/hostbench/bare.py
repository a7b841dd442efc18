"""What synkhronos's calls are compared with, by the same ranks: mpi4py's, and synk-comm's alone.

Between two orders the ranks are in synkhronos's loop. So these calls are an op, which an order has
all ranks compute: it times so many of them, after a barrier, and returns the seconds of one.
"""

from __future__ import annotations

import functools
import time
from typing import Any, Callable

import numpy as np
import theano.tensor as T
from theano.compile.ops import as_op

import synk_comm

ORDER_NBYTES = 128
"""Bytes of an order."""


@functools.cache
def _communicator() -> Any:
    from mpi4py import MPI

    return MPI.COMM_WORLD.Dup()


@functools.cache
def _array(name: str, nbytes: int) -> np.ndarray:
    return np.ones(nbytes // 4, np.float32)


def _order(comm: Any, _nbytes: int) -> Callable[[], None]:
    words = np.zeros(ORDER_NBYTES, np.uint8)

    def call() -> None:
        comm.Bcast(words, 0)
        comm.Barrier()

    return call


def _all_reduce(comm: Any, nbytes: int) -> Callable[[], None]:
    source, target = _array("source", nbytes), _array("target", nbytes)
    return lambda: comm.Allreduce(source, target)


def _broadcast(comm: Any, nbytes: int) -> Callable[[], None]:
    source = _array("source", nbytes)
    return lambda: comm.Bcast(source, 0)


def _whole(comm: Any, nbytes: int) -> Callable[[], None]:
    """To one other host: a message; to several: a broadcast."""
    if comm.size > 2:
        return _broadcast(comm, nbytes)
    source, answer = _array("source", nbytes), np.zeros(1, np.uint8)

    def call() -> None:
        if comm.rank == 0:
            comm.Send(source, 1)
            comm.Recv(answer, 1)
        else:
            comm.Recv(source, 0)
            comm.Send(answer, 0)

    return call


def _rows(comm: Any, nbytes: int) -> Callable[[], None]:
    part = nbytes // 4 // comm.size
    source, target = _array("source", nbytes), _array("target", nbytes)
    sent = source[: part * comm.size] if comm.rank == 0 else None

    def call() -> None:
        comm.Scatter(sent, target[:part], 0)
        comm.Barrier()

    return call


def _link(comm: Any, nbytes: int) -> Callable[[], None]:
    """There and back between the first two ranks."""
    buffer = np.zeros(nbytes, np.uint8)

    def call() -> None:
        if comm.rank == 0:
            comm.Send(buffer, 1)
            comm.Recv(buffer, 1)
        elif comm.rank == 1:
            comm.Recv(buffer, 0)
            comm.Send(buffer, 0)

    return call


@functools.cache
def _group() -> synk_comm.Communicator:
    from mpi4py import MPI

    return synk_comm.mpi(MPI.COMM_WORLD)


def _comm_order(_comm: Any, _nbytes: int) -> Callable[[], None]:
    group, words = _group(), np.zeros(ORDER_NBYTES, np.uint8)

    def call() -> None:
        group.broadcast(words, 0)
        group.barrier()

    return call


def _comm_all_reduce(_comm: Any, nbytes: int) -> Callable[[], Any]:
    group, source, target = _group(), _array("source", nbytes), _array("target", nbytes)
    return lambda: group.all_reduce(source, out=target)


def _comm_broadcast(_comm: Any, nbytes: int) -> Callable[[], Any]:
    group, source = _group(), _array("source", nbytes)
    return lambda: group.broadcast(source, 0)


_WAYS = (_order, _all_reduce, _broadcast, _whole, _rows, _link)
_COMM_WAYS = (_comm_order, _comm_all_reduce, _comm_broadcast)
WAYS = {way.__name__[1:]: way for way in (*_WAYS, *_COMM_WAYS)}
"""By name, each of which has its place as a number that the op takes."""


@functools.cache
def _call(number: int, nbytes: int) -> Callable[[], Any]:
    return list(WAYS.values())[number](_communicator(), nbytes)


@as_op(itypes=[T.lscalar, T.lscalar, T.lscalar], otypes=[T.dscalar])
def seconds_of(number: np.ndarray, nbytes: np.ndarray, calls: np.ndarray) -> np.ndarray:
    """Return the seconds of one call of mpi4py on this rank."""
    call = _call(int(number), int(nbytes))
    _communicator().Barrier()
    began = time.perf_counter()
    for _ in range(int(calls)):
        call()
    return np.array((time.perf_counter() - began) / int(calls))
