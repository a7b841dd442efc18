"""Frames that ZeroMQ sends from this process's own memory, without a copy.

pyzmq can do that too, but starts a thread and a second context to find out when ZeroMQ has
finished. Here the rounds themselves show when a slot has arrived everywhere.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import importlib
from typing import Any

import numpy as np
import zmq

from synk_comm._core.ops import Array

_WORTH = 1 << 16
"""Below this length a copy is quicker."""


class _ZmqMsg(ctypes.Structure):
    _fields_ = (("opaque", ctypes.c_uint64 * 8),)  # zmq_msg_t


class Lender:
    """Makes arrays, and lends their memory to ZeroMQ.

    Where pyzmq's library cannot be reached it copies instead.
    """

    def __init__(self) -> None:
        self._library = _library()
        self._kept: list[Array] = []
        self._message = _ZmqMsg()

    def make(self, nbytes: int) -> Array:
        """Return memory that lives until ``release``, even if the process forgets it."""
        array = np.empty(nbytes, np.uint8)
        if self._library is not None:
            ctypes.pythonapi.Py_IncRef(ctypes.py_object(array))
            self._kept.append(array)
        return array

    def send(self, socket: Any, data: Array, flags: int = 0) -> None:
        """Send part of an array made here; it must not change before the receiver has it.

        Raises:
            zmq.Again: it could not be sent.
        """
        library = self._library
        if library is None or data.nbytes < _WORTH:
            socket.send(data, flags)
            return
        message = ctypes.byref(self._message)
        # Without a function to free it, ZeroMQ takes the memory for a constant.
        library.zmq_msg_init_data(message, data.ctypes.data, data.nbytes, None, None)
        while library.zmq_msg_send(message, socket.underlying, flags) < 0:
            code = zmq.zmq_errno()
            if code != errno.EINTR:
                library.zmq_msg_close(message)
                raise zmq.Again() if code == zmq.EAGAIN else zmq.ZMQError(code)

    def release(self) -> None:
        """Let the memory go, once no context uses it any more."""
        while self._kept:
            ctypes.pythonapi.Py_DecRef(ctypes.py_object(self._kept.pop()))


def _library() -> Any:
    """Return libzmq as pyzmq has loaded it; None if that cannot be done here."""
    with contextlib.suppress(ImportError, OSError, AttributeError):
        module: Any
        try:
            module = importlib.import_module("zmq.backend.cython._zmq")
        except ImportError:  # before pyzmq 26
            module = importlib.import_module("zmq.backend.cython.message")
        library = ctypes.CDLL(module.__file__)
        library.zmq_msg_init_data.argtypes = [
            ctypes.c_void_p,
            ctypes.c_void_p,
            ctypes.c_size_t,
            ctypes.c_void_p,
            ctypes.c_void_p,
        ]
        library.zmq_msg_send.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int]
        library.zmq_msg_close.argtypes = [ctypes.c_void_p]
        ctypes.pythonapi.Py_IncRef  # noqa: B018 - CPython only
        return library
    return None
