"""Other names for libraries in a running process, with a library of our own: no CUDA is needed."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

COMPILER = shutil.which("g++")
pytestmark = pytest.mark.skipif(COMPILER is None, reason="needs a C++ compiler (g++)")

# As libgpuarray does: open by the plain name, look for a symbol.
ASK = """
import ctypes, os, sys
from pathlib import Path
from synk_theano_compat._cuda import links
library, cache = sys.argv[1:]
os.environ["XDG_CACHE_HOME"] = cache
libc = ctypes.CDLL(None)
libc.dlopen.restype = ctypes.c_void_p
libc.dlsym.restype = ctypes.c_void_p
assert not libc.dlopen(b"libsynkfoo.so", 2)
assert not links.loads("libsynkfoo.so")
"""
ALIAS = """
built = links.alias("libsynkfoo.so", library, {compiler!r})
handle = libc.dlopen(b"libsynkfoo.so", 2)
assert handle
address = libc.dlsym(ctypes.c_void_p(handle), b"synkfoo_answer")
assert ctypes.CFUNCTYPE(ctypes.c_int)(address)() == 49
print(built)
"""


@pytest.fixture
def library(tmp_path: Path, build) -> Path:
    """A library with a version in its name, which needs another one that lies beside it."""
    other, library = tmp_path / "lib/libsynkbar.so.3", tmp_path / "lib/libsynkfoo.so.7"
    other.parent.mkdir()
    build(other, 'extern "C" int synkbar() { return 7; }')
    source = 'extern "C" int synkbar(); extern "C" int synkfoo_answer() { return 7 * synkbar(); }'
    build(library, source, other, "-Wl,-rpath,$ORIGIN")
    return library


def code(library: Path, cache: Path, text: str, compiler: object = COMPILER) -> str:
    arguments = f"import sys; sys.argv[1:] = {[str(library), str(cache)]!r}\n"
    return arguments + ASK + text.format(compiler=compiler)


def test_a_library_is_found_by_its_other_name(run, library, tmp_path):
    """The second process needs no compiler; another library of that path is linked anew."""
    cache = tmp_path / "cache"
    built = Path(run(code(library, cache, ALIAS)).stdout.strip())
    assert built.name == "libsynkfoo.so"
    assert cache in built.parents
    assert (cache / "synk-theano").stat().st_mode & 0o777 == 0o700
    assert run(code(library, cache, ALIAS, None)).stdout == f"{built}\n"
    assert len(list((cache / "synk-theano").iterdir())) == 1
    library.write_bytes(library.read_bytes() + b"\0")
    assert run(code(library, cache, ALIAS)).stdout != f"{built}\n"


@pytest.mark.parametrize(
    "spoil, compiler, message",
    [
        ("Path(library).write_bytes(b'no library')", COMPILER, "cannot be loaded"),
        ("", None, "no C++ compiler"),
        ("", "/bin/false", "does not link"),
    ],
)
def test_a_failed_link_is_reported(run, library, tmp_path, spoil, compiler, message):
    text = f"""
{spoil}
try:
    links.alias("libsynkfoo.so", library, {{compiler!r}})
except links.LinkError as error:
    assert {message!r} in str(error) and library in str(error), error
else:
    raise AssertionError("no error")
"""
    run(code(library, tmp_path / "cache", text, compiler))


# pygpu as it is without a device, with what happens before it opens one.
PYGPU = """
import sys, types, warnings
gpuarray = types.ModuleType("pygpu.gpuarray")
opened = []
gpuarray.init = lambda dev, **options: opened.append(dev)
gpuarray.count_devices = lambda kind, platform: opened.append(kind)
pygpu = types.ModuleType("pygpu")
pygpu.gpuarray, pygpu.init = gpuarray, gpuarray.init
sys.modules.update({"pygpu": pygpu, "pygpu.gpuarray": gpuarray})
from synk_theano_compat._cuda import find, libraries, links
from synk_theano_compat._patches.gpu.pygpu import watch_pygpu
watch_pygpu()
find.scan_machine = lambda: find.scan([])
links.loads = lambda name: False
"""

REPORTED = """
pygpu.init("opencl0:0")
assert opened == ["opencl0:0"] and libraries.results == {}
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    pygpu.init("cuda1", sched="multi")
    pygpu.init(dev="cuda1")
    gpuarray.count_devices(b"cuda", 0)
assert opened[1:] == ["cuda1", "cuda1", b"cuda"]
(one,) = caught
assert all(name in str(one.message) for name in ("libcuda.so", "libnvrtc.so", "libcublas.so"))
assert "nccl" not in str(one.message) and "SYNKHRONOS_CUDA_PATH" in str(one.message)
assert set(libraries.missing) == {"cuda", "nvrtc", "cublas", "nccl"}
"""


def test_a_library_that_libgpuarray_lacks_is_reported_once(run):
    run(PYGPU + REPORTED)


def test_a_library_newer_than_the_driver_is_not_taken(run):
    run(
        PYGPU + "libraries.driver_version = lambda: (13, 0)\n"
        "files, found = find.scan([]), [find.FoundFile('/x', (13, 5), 'test')]\n"
        "files.libraries.update(nvrtc=found, cublas=found)\n"
        "find.scan_machine = lambda: files\n"
        "linked = []\n"
        "links.alias = lambda name, path, compiler: linked.append(name)\n"
        "warnings.simplefilter('ignore')\n"
        "libraries.prepare()\n"
        "assert linked == ['libcublas.so'], linked\n"
        "assert libraries.missing['nvrtc'] == "
        "'/x is for CUDA 13.5, newer than the driver, which is for 13.0'\n"
    )
