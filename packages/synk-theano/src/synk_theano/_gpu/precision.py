"""The precision of float32 on a CUDA device: which factors cuBLAS and cuDNN round to TF32."""

from __future__ import annotations

import ctypes
import os
from typing import Any

from synk_core.device import TF32_OVERRIDE
from synk_core.exceptions import StartError
from synk_theano_compat.cuda import stream_of

_BLAS = 3
"""Word of libgpuarray's context (0.6 and 0.7, GPUCONTEXT_HEAD in its private.h) with the address of
its record of cuBLAS, which begins with cuBLAS's handle."""

_PLAIN_MATH, _TF32_MATH = 0, 3
"""CUBLAS_DEFAULT_MATH and CUBLAS_TF32_TENSOR_OP_MATH."""


def exclude_tf32(in_use: Any) -> None:
    """Exclude TF32 from this process; StartError if it uses a device (`in_use`) already."""
    if os.environ.get(TF32_OVERRIDE) == "0":
        return
    if in_use is not None:
        raise StartError(
            f"precision='float32': this process uses {in_use} already, and CUDA's libraries have "
            f"read their settings; call fork() before it does, or set {TF32_OVERRIDE}=0 in the "
            f"environment before the program starts"
        )
    os.environ[TF32_OVERRIDE] = "0"


def set_matrix_products(context: Any, tf32: bool) -> None:
    """Make cuBLAS round the factors of this context's matrix products to TF32, or not.

    Raises:
        StartError: an unknown libgpuarray or cuBLAS.
    """
    import pygpu

    words = (ctypes.c_size_t * (_BLAS + 1)).from_address(context.ptr)
    if not tf32 and not words[_BLAS]:
        return  # cuBLAS has not been used in this context
    problem = StartError(
        "precision='tf32': cuBLAS is not where libgpuarray 0.7 keeps it; use 'default', which "
        "rounds factors of convolutions alone"
    )
    # The symbol is libgpuarray's, on which the extension module depends.
    setup = getattr(ctypes.CDLL(pygpu.gpuarray.__file__), "gpublas_setup", None)
    if setup is None:
        raise problem
    setup.argtypes = [ctypes.c_void_p]
    if setup(context.ptr) or not words[_BLAS]:
        raise problem
    handle = ctypes.c_void_p(ctypes.c_size_t.from_address(words[_BLAS]).value)
    cublas = ctypes.CDLL("libcublas.so")
    used = ctypes.c_void_p()
    with context:
        # A handle on another stream is none of libgpuarray's.
        status = cublas.cublasGetStream_v2(handle, ctypes.byref(used))
        if status or (used.value or 0) != stream_of(context):
            raise problem
        if cublas.cublasSetMathMode(handle, _TF32_MATH if tf32 else _PLAIN_MATH):
            raise problem
