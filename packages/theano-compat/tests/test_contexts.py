"""Several CUDA contexts in a process, over a libgpuarray and a driver that are stand-ins."""

from __future__ import annotations

import ctypes
import shutil
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from synk_theano_compat._patches.gpu import contexts

COMPILER = shutil.which("gcc")
CONTEXT_BYTES = 232

pytestmark = pytest.mark.skipif(COMPILER is None, reason="needs gcc")


class Fake:
    def __init__(self, path):
        self.lib = ctypes.CDLL(str(path))
        self.room = [ctypes.create_string_buffer(CONTEXT_BYTES) for _ in "ab"]
        self.contexts = [ctypes.addressof(room) for room in self.room]
        for context, name in zip(self.contexts, (b"a", b"b")):
            self.lib.make(ctypes.c_void_p(context), name)

    def extension(self, name):
        return ctypes.cast(getattr(self.lib, name), ctypes.c_void_p).value

    def mend(self):
        contexts.mend(self.contexts, self.extension, self.lib)

    def copy(self, to, of):
        """Between contexts: the status, and what has happened."""
        blocks = [(ctypes.c_void_p * 2)(1, context) for context in (to, of)]
        number = ctypes.c_size_t
        status = self.lib.copy(blocks[0], number(3), blocks[1], number(4), number(1 << 33))
        events = (ctypes.c_char * 1000).in_dll(self.lib, "events")
        found, events.value = events.value.decode(), b""
        return status, found

    def table(self, context):
        return ctypes.c_size_t.from_address(context).value


@pytest.fixture
def fake(tmp_path, monkeypatch):
    monkeypatch.setattr(contexts, "_tables", {})
    path = tmp_path / "fake.so"
    source = Path(__file__).with_name("fake_gpuarray.c")
    command = [COMPILER, "-std=c11", "-Wall", "-Wextra", "-Wno-pedantic", "-Werror"]
    subprocess.run([*command, "-shared", "-fPIC", str(source), "-o", str(path)], check=True)
    return Fake(path)


@pytest.mark.parametrize("mended", [False, True])
def test_kernels_that_are_known_leave_no_context_entered(fake, mended):
    a, b = map(ctypes.c_void_p, fake.contexts)
    fake.lib.make_current(a)
    if mended:
        fake.mend()
    for context in (a, b):
        assert [fake.lib.new_kernel(context, 3) for _ in range(3)] == [7, 0, 0]
    fake.lib.make_current(a)
    # What libgpuarray does by itself: it launches b's kernels in a's context.
    assert [fake.lib.launches(context) for context in (a, b, a)] == [1, int(mended), 1]


def test_copies_between_devices_wait_for_their_source(fake):
    a, b = fake.contexts
    done = "copy 3 4 8589934592; "
    assert fake.copy(b, a) == (5, done)
    fake.mend()
    there = f"record 1; on a; stream b; waits for 1; {done}"
    back = f"record 2; on b; stream a; waits for 2; {done}"
    for to, of, events in ((b, a, there), (a, b, back), (b, a, there), (b, b, done)):
        assert fake.copy(to, of) == (5, events)
    ctypes.c_int.in_dll(fake.lib, "broken").value = 1
    status, events = fake.copy(b, a)
    assert (status, "copy" in events) == (contexts._FAILED, False)


def test_contexts_are_mended_once_and_later_ones_too(fake):
    first, second = fake.contexts
    contexts.mend([first], fake.extension, fake.lib)
    assert fake.table(first) in contexts._tables
    assert fake.table(second) not in contexts._tables
    fake.mend()
    once = fake.table(first)
    fake.mend()
    # Contexts of different tables copy through host memory.
    assert fake.table(first) == fake.table(second) == once
    assert once in contexts._tables


def test_a_library_that_is_not_known_is_left_alone(fake):
    names = {"cuda_enter": "cuda_get_stream", "cuda_exit": "cuda_get_stream"}
    before = [fake.table(context) for context in fake.contexts]
    with pytest.raises(RuntimeError, match=r"others than those of 0\.7"):
        contexts.mend(fake.contexts, lambda n: fake.extension(names.get(n, n)), fake.lib)
    ctypes.c_size_t.from_address(fake.contexts[0]).value += 8
    with pytest.raises(RuntimeError, match="different functions"):
        fake.mend()
    assert fake.table(fake.contexts[1]) == before[1]


def test_the_second_cuda_context_is_mended(monkeypatch):
    mended = []
    devices = {}

    def init_dev(dev, name=None, preallocate=None):
        kind = b"cuda" if dev.startswith("cuda") else b"opencl"
        devices.setdefault(dev, SimpleNamespace(ptr=len(devices) + 1, kind=kind))

    init_dev.devmap = devices
    package = SimpleNamespace(pygpu=object(), init_dev=init_dev)
    monkeypatch.setitem(sys.modules, "theano.gpuarray", package)
    monkeypatch.setattr(contexts, "mend", lambda found, *_: mended.append(set(found)))
    monkeypatch.setattr(contexts.ctypes, "CDLL", lambda name: name)
    init_dev("cuda0")
    assert contexts.several_devices() == "theano.gpuarray.init_dev"
    package.init_dev("opencl0:0", "other")
    package.init_dev("cuda0", "again")
    assert not mended
    package.init_dev("cuda1", "dev1")
    assert mended == [{1, 3}]
    package.pygpu = None
    assert contexts.several_devices() == "nothing to do"
