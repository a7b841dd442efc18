"""The precision of cuBLAS's products, which is set in libgpuarray's context: stand-ins for both."""

from __future__ import annotations

import contextlib
import ctypes
import os
import sys
import types

import pytest

from synk_core.device import TF32_OVERRIDE
from synk_core.exceptions import StartError
from synk_theano._gpu import precision

STREAM = 0x7F1234567890


class Context(contextlib.nullcontext):
    """libgpuarray's context, of which the fourth word tells where cuBLAS's handle is."""

    def __init__(self, used):
        super().__init__()
        self.handle = (ctypes.c_size_t * 1)(0xABC0)
        self.words = (ctypes.c_size_t * 8)()
        self.ptr = ctypes.addressof(self.words)
        if used:
            self.set_up()

    def set_up(self):
        self.words[3] = ctypes.addressof(self.handle)


def libraries(context, stream=STREAM, status=0):
    """Return what stands for ctypes.CDLL, and the modes that are set through it."""
    modes = []

    def get_stream(handle, found):
        assert handle.value == 0xABC0
        found._obj.value = stream
        return 0

    def set_mode(handle, mode):
        modes.append(mode)
        return status

    cublas = types.SimpleNamespace(cublasGetStream_v2=get_stream, cublasSetMathMode=set_mode)
    gpuarray = types.SimpleNamespace(gpublas_setup=lambda _: context.set_up() or 0)
    return (lambda name: cublas if "cublas" in name else gpuarray), modes


@pytest.fixture
def install(monkeypatch):
    module = types.SimpleNamespace(gpuarray=types.SimpleNamespace(__file__="pygpu/gpuarray.so"))
    monkeypatch.setitem(sys.modules, "pygpu", module)
    monkeypatch.setattr(precision, "stream_of", lambda _: STREAM)

    def installed(context, **options):
        load, modes = libraries(context, **options)
        monkeypatch.setattr(precision.ctypes, "CDLL", load)
        return modes

    return installed


@pytest.mark.parametrize("used", [False, True])
def test_the_contexts_handle_sets_the_precision_of_products(install, used):
    context = Context(used)
    modes = install(context)
    if not used:  # nothing is made of cuBLAS where there is nothing to set
        precision.set_matrix_products(context, False)
        assert (modes, context.words[3]) == ([], 0)
    precision.set_matrix_products(context, True)
    precision.set_matrix_products(context, False)
    assert modes == [3, 0]


@pytest.mark.parametrize("wrong", [{"stream": STREAM + 1}, {"status": 7}])
def test_a_cublas_that_is_not_known_is_an_error(install, wrong):
    context = Context(used=True)
    install(context, **wrong)
    with pytest.raises(StartError, match=r"cuBLAS is not where libgpuarray 0\.7 keeps it"):
        precision.set_matrix_products(context, True)


def test_tf32_is_excluded_before_a_device_is_used_or_not_at_all(monkeypatch):
    # Set first, so that what this test leaves in the environment goes, too.
    monkeypatch.setenv(TF32_OVERRIDE, "")
    monkeypatch.delenv(TF32_OVERRIDE)
    with pytest.raises(StartError, match="this process uses cuda0 already"):
        precision.exclude_tf32("cuda0")
    assert TF32_OVERRIDE not in os.environ
    precision.exclude_tf32(None)
    assert os.environ[TF32_OVERRIDE] == "0"
    precision.exclude_tf32("cuda0")  # it was excluded before
