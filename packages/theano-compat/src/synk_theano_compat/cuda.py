"""Functions of libgpuarray for CUDA, and the stream on which it orders all of a context's work."""

from __future__ import annotations

import ctypes
from typing import Any


def extension(name: str) -> int:
    """Return the address of a function that libgpuarray has for CUDA.

    Raises:
        RuntimeError: it has none of this name.
    """
    import pygpu

    # The symbol is libgpuarray's, on which the extension module depends.
    library = ctypes.CDLL(pygpu.gpuarray.__file__)
    library.gpuarray_get_extension.restype = ctypes.c_void_p
    address = library.gpuarray_get_extension(name.encode())
    if not address:
        raise RuntimeError(f"libgpuarray has no extension {name}, which 0.6 and 0.7 have")
    return int(address)


def stream_of(context: Any) -> int:
    """Return the number of the stream of a pygpu context on a CUDA device.

    CUDA's default stream waits for it, and it for that one.

    Raises:
        RuntimeError: libgpuarray has no such extension.
    """
    get = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p)(extension("cuda_get_stream"))
    return get(context.ptr) or 0
