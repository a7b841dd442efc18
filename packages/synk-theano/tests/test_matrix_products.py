"""The precision of cuBLAS's products, which is set in libgpuarray's context: stand-ins for both."""

from __future__ import annotations

import contextlib
import ctypes
import sys
import types

import pytest

from synk_core.exceptions import StartError
from synk_theano import _devices

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


class Libraries:
    """Stands for ctypes.CDLL: libgpuarray, by its extension module, and cuBLAS."""

    def __init__(self, context, stream=STREAM, status=0):
        self.modes = []

        def setup(_):
            context.set_up()
            return 0

        def get_stream(handle, found):
            assert handle.value == 0xABC0
            found._obj.value = stream
            return 0

        def set_mode(handle, mode):
            self.modes.append(mode)
            return status

        self._gpuarray = types.SimpleNamespace(gpublas_setup=setup)
        self._cublas = types.SimpleNamespace(
            cublasGetStream_v2=get_stream, cublasSetMathMode=set_mode
        )

    def __call__(self, name):
        return self._cublas if "cublas" in name else self._gpuarray


@pytest.fixture
def install(monkeypatch):
    module = types.SimpleNamespace(gpuarray=types.SimpleNamespace(__file__="pygpu/gpuarray.so"))
    monkeypatch.setitem(sys.modules, "pygpu", module)
    monkeypatch.setattr(_devices, "stream_of", lambda _: STREAM)

    def installed(context, **options):
        libraries = Libraries(context, **options)
        monkeypatch.setattr(_devices.ctypes, "CDLL", libraries)
        return libraries

    return installed


@pytest.mark.parametrize("used", [False, True])
def test_matrix_products_are_told_by_the_contexts_own_handle(install, used):
    context = Context(used)
    libraries = install(context)
    _devices.set_matrix_products(context, True)
    _devices.set_matrix_products(context, False)
    assert libraries.modes == [3, 0]


def test_nothing_is_made_of_cublas_where_there_is_nothing_to_set(install):
    context = Context(used=False)
    libraries = install(context)
    _devices.set_matrix_products(context, False)
    assert (libraries.modes, context.words[3]) == ([], 0)


@pytest.mark.parametrize("wrong", [{"stream": STREAM + 1}, {"status": 7}])
def test_a_cublas_that_is_not_known_is_an_error(install, wrong):
    context = Context(used=True)
    install(context, **wrong)
    with pytest.raises(StartError, match=r"cuBLAS is not where libgpuarray 0\.7 keeps it"):
        _devices.set_matrix_products(context, True)
