"""The CUDA stream on which libgpuarray orders all of a context's work."""

from __future__ import annotations

import ctypes
from typing import Any


def stream_of(context: Any) -> int:
    """Return the number of the stream of a pygpu context on a CUDA device.

    CUDA's default stream waits for it, and it for that one.

    Raises:
        RuntimeError: libgpuarray has no such extension.
    """
    import pygpu

    # The symbol is libgpuarray's, on which the extension module depends.
    library = ctypes.CDLL(pygpu.gpuarray.__file__)
    library.gpuarray_get_extension.restype = ctypes.c_void_p
    address = library.gpuarray_get_extension(b"cuda_get_stream")
    if not address:
        raise RuntimeError("libgpuarray has no extension cuda_get_stream, which 0.6 and 0.7 have")
    get = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p)(address)
    return get(context.ptr) or 0
