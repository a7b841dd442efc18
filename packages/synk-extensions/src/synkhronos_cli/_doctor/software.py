"""Python, NumPy, the graph engine, compiler, BLAS, Lasagne, and libraries for communication."""

from __future__ import annotations

import os
import platform
import shutil
import sys
import sysconfig
import tempfile
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path

from synkhronos_cli._probe import Answer, ask

from .items import GOOD, MISSING, WARNING, Item

OF_THEANO = sys.version_info < (3, 12)
"""Whether functions are Theano's here; from Python 3.12 on they are PyTensor's."""

GEMM_TIMEOUT_S = 120.0
_SLOW_GFLOPS = 3.0

# Times a matrix product by Theano that takes some 10 ms on one modern core.
_GEMM = """
import time
import synk_theano
import numpy as np, theano, theano.tensor as T, threadpoolctl
x, y = T.fmatrices("x", "y")
f = theano.function([x, y], T.dot(x, y))
a = np.ones((768, 768), "float32")
f(a, a)
times = []
for _ in range(5):
    start = time.perf_counter()
    f(a, a)
    times.append(time.perf_counter() - start)
kernels = [str(pool.get("architecture")) for pool in threadpoolctl.threadpool_info()]
answer(seconds=sorted(times)[2], right=bool((f(a, a) == 768).all()), kernels=kernels)
"""
_GEMM_FLOP = 2 * 768**3
_OLD_KERNELS = {"Katmai", "Northwood", "Prescott", "Core2", "Penryn", "Dunnington", "Nehalem"}
"""What OpenBLAS falls back to on an Intel processor that is newer than itself."""

IMPORT_TIMEOUT_S = 60.0
_NUMPY = """
import numpy
answer(version=numpy.__version__, path=numpy.__file__)
"""
_LASAGNE = """
import synk_theano
import lasagne, lasagne.layers
answer(version=lasagne.__version__, path=lasagne.__file__)
"""
_PYTENSOR = """
import numpy as np, pytensor, pytensor.tensor as T
x = T.matrix("x")
assert pytensor.function([x], x.sum())(np.ones((2, 2))) == 4
answer(version=f"{pytensor.__version__}, linker {pytensor.config.linker}", path=pytensor.__file__)
"""
PYTENSOR_TIMEOUT_S = 300.0  # Numba compiles the first function for tens of seconds
_ZMQ = """
import zmq
answer(version=f"{zmq.__version__}, ZeroMQ {zmq.zmq_version()}", path=zmq.__file__)
"""
_POSIX_IPC = """
import posix_ipc
answer(version=posix_ipc.VERSION, path=posix_ipc.__file__)
"""
_SHARED_ARRAY = """
import synk_shm
array = synk_shm.ones((1 << 18,), "float32")
assert array.sum() == 1 << 18
answer(version=synk_shm.__version__, path=synk_shm.__file__)
"""
NEWER_LASAGNE = "https://github.com/Lasagne/Lasagne/archive/master.zip"
"""0.2.dev1, which is on no package index."""
_ADAPTER = "synk-theano" if OF_THEANO else "synk-pytensor"
_OURS = ("synkhronos", _ADAPTER, "synk-core", "synk-shm", "synk-comm")


def examine_software(compat: Answer) -> list[Item]:
    """Return the items about software.

    Args:
        compat: The answer of ``python -m synk_theano_compat --json --activate``; empty without
            Theano.
    """
    if not _is_executable():
        return [_python()]  # everything else needs it
    numpy = _numpy(ask(_NUMPY, IMPORT_TIMEOUT_S))
    items = [_python(), _packages(), numpy]
    items += _theano_and_its_tools(compat) if OF_THEANO else [_pytensor(), _no_lasagne()]
    items.append(_module("pyzmq", ask(_ZMQ, IMPORT_TIMEOUT_S), "pip install pyzmq"))
    items.append(_module("posix_ipc", ask(_POSIX_IPC, IMPORT_TIMEOUT_S), "pip install posix_ipc"))
    shared = ask(_SHARED_ARRAY, IMPORT_TIMEOUT_S)
    items.append(_module("shared arrays", shared, "python -m pip check"))
    return items


def _pytensor() -> Item:
    cure = "pip install 'pytensor>=3.3,<3.4'"
    return _module("PyTensor", ask(_PYTENSOR, PYTENSOR_TIMEOUT_S), cure)


def _theano_and_its_tools(compat: Answer) -> list[Item]:
    theano, compiler = _theano(compat), _compiler(compat)
    items = [theano, compiler, _headers()]
    if theano.state != MISSING:
        gemm = ask(_GEMM, GEMM_TIMEOUT_S)
        damaged = bool(gemm.problem) and compiler.state == GOOD and _works_in_an_empty_folder()
        items.append(_damaged(compat, gemm) if damaged else _blas(compat, gemm))
    if theano.state == MISSING:
        items.append(Item("Lasagne", WARNING, "not examined: it needs Theano"))
    else:
        items.append(_lasagne(compat, ask(_LASAGNE, IMPORT_TIMEOUT_S)))
    return items


def _packages() -> Item:
    name, found, missing = "Synkhronos", [], []
    for package in _OURS:
        try:
            found.append(f"{package} {version(package)}")
        except PackageNotFoundError:
            if find_spec(package.replace("-", "_")) is None:
                missing.append(package)
            else:
                found.append(f"{package} (a folder on PYTHONPATH)")
    if not missing:
        return Item(name, GOOD, ", ".join(found))
    text = ", ".join([*found, f"not installed: {', '.join(missing)}"])
    return Item(name, MISSING, text, f"pip install {' '.join(missing)}")


def _module(name: str, answer: Answer, cure: str) -> Item:
    if answer.problem:
        return Item(name, MISSING, answer.problem, cure)
    return Item(name, GOOD, f"{answer.get('version')}, {answer.get('path')}")


def _works_in_an_empty_folder() -> bool:
    """Return whether Theano works if it compiles into an empty folder."""
    with tempfile.TemporaryDirectory(prefix="synkhronos-doctor-") as folder:
        flags = f"{os.environ.get('THEANO_FLAGS', '')},compiledir={folder}".lstrip(",")
        return not ask(_GEMM, GEMM_TIMEOUT_S, {"THEANO_FLAGS": flags}).problem


def _damaged(compat: Answer, gemm: Answer) -> Item:
    folder = str(compat.get("compiledir"))
    found = f"{folder}: {gemm.problem}; in an empty folder Theano works"
    if not os.access(folder, os.W_OK):
        return Item("compiled modules", MISSING, found, _other_folder())
    return Item("compiled modules", MISSING, found, "synkhronos clean --theano-cache")


def _other_folder() -> str:
    folder = os.path.join(tempfile.gettempdir(), f"theano-{os.getuid()}")
    others = "$THEANO_FLAGS," if os.environ.get("THEANO_FLAGS") else ""
    return f"export THEANO_FLAGS={others}base_compiledir={folder}"


def _is_executable() -> bool:
    return os.access(sys.executable or "", os.X_OK)


def _python() -> Item:
    found = f"{platform.python_implementation()} {platform.python_version()}, {sys.executable}"
    if not _is_executable():
        cure = "give this user the right to execute it, or make an environment of your own"
        return Item("Python", MISSING, f"{found}: cannot be executed", cure)
    if (3, 9) <= sys.version_info[:2] <= (3, 14):
        return Item("Python", GOOD, found)
    cure = "an environment of Python 3.9 to 3.11, for Theano, or 3.12 to 3.14, for PyTensor"
    return Item("Python", MISSING, found, cure)


def _versions(compat: Answer) -> dict[str, str]:
    return dict(compat.get("versions") or {})


def _numpy(answer: Answer) -> Item:
    name, cure = "NumPy", f"pip install 'numpy{'>=1.23,<1.27' if OF_THEANO else '>=2'}'"
    if answer.problem:
        return Item(name, MISSING, answer.problem, cure)
    found = str(answer.get("version"))
    numbers = [int(part) for part in found.split(".")[:2] if part.isdigit()]
    if ([1, 23] <= numbers < [1, 27]) if OF_THEANO else numbers >= [2]:
        return Item(name, GOOD, f"{found}, {answer.get('path')}")
    needed = "Theano needs 1.23 to 1.26" if OF_THEANO else "PyTensor needs 2"
    return Item(name, MISSING, f"{found}; {needed}", cure)


def _theano(compat: Answer) -> Item:
    if compat.problem:
        cure = "pip install synk-theano"
        if "compiledir" in compat.problem:
            cure = _other_folder()
        elif "synk_theano_compat" not in compat.problem:
            cure = "python -m synk_theano_compat"
        return Item("Theano", MISSING, compat.problem, cure)
    found, error = _versions(compat).get("Theano"), compat.get("error")
    if error:
        return Item("Theano", MISSING, f"{found}: {error}", _cure_of_import(compat))
    if not found:
        return Item("Theano", MISSING, "not installed", "pip install Theano==1.0.5")
    found += f", {compat.get('compiledir')}"
    if not compat.get("active"):
        found += "; `import theano` works only after `import synkhronos`"
        return Item("Theano", WARNING, found, _cure_of_import(compat))
    return Item("Theano", GOOD, found)


def _cure_of_import(compat: Answer) -> str:
    if compat.get("switched_off"):
        return "unset SYNK_THEANO_COMPAT"
    if "compiledir" in str(compat.get("error")):
        return _other_folder()
    if compat.get("pth") is None:
        return "python -m synk_theano_compat --install"
    return "python -m synk_theano_compat"


def _compiler(compat: Answer) -> Item:
    found = compat.get("compiler") or shutil.which("g++")
    if found:
        return Item("C++ compiler", GOOD, str(found))
    return Item("C++ compiler", MISSING, "no g++ on PATH", "apt install g++ (yum: gcc-c++)")


def _headers() -> Item:
    path = os.path.join(sysconfig.get_path("include"), "Python.h")
    if os.path.isfile(path):
        return Item("Python's headers", GOOD, path)
    cure = "apt install python3-dev (yum: python3-devel)"
    return Item("Python's headers", MISSING, f"no {path}", cure)


def _blas(compat: Answer, gemm: Answer) -> Item:
    origin = str((compat.get("blas") or {}).get("origin"))
    if gemm.problem:
        return Item("BLAS", MISSING, f"{origin}; a product failed: {gemm.problem}")
    if not gemm["right"]:
        cure = "name another BLAS in blas.ldflags of THEANO_FLAGS"
        return Item("BLAS", MISSING, f"{origin}: wrong numbers", cure)
    seconds = float(gemm["seconds"])
    speed = _GEMM_FLOP / seconds / 1e9
    found = f"{origin}; 768 x 768 float32: {seconds * 1e3:.1f} ms, {speed:.0f} GFLOP/s"
    features = Path("/proc/cpuinfo").read_text(errors="replace").split()
    if "avx2" in features and (old := _OLD_KERNELS.intersection(gemm.get("kernels", ()))):
        newest = "SkylakeX" if "avx512f" in features else "Haswell"
        found += f", with kernels for {min(old)}: OpenBLAS does not know this processor"
        return Item("BLAS", WARNING, found, f"export OPENBLAS_CORETYPE={newest}")
    if speed < _SLOW_GFLOPS:
        return Item("BLAS", WARNING, found, "apt install libopenblas-dev, or pip install scipy")
    return Item("BLAS", GOOD, found)


def _no_lasagne() -> Item:
    found = (
        "not looked for: it needs Theano, on Python 3.9 to 3.11; its extra installs nothing here"
    )
    return Item("Lasagne", GOOD, found)


def _lasagne(compat: Answer, lasagne: Answer) -> Item:
    # What is imported may be another than what is installed: a folder on PYTHONPATH.
    version = lasagne.get("version") or _versions(compat).get("Lasagne")
    cure = f"pip install {NEWER_LASAGNE}"
    if not version:
        return Item("Lasagne", WARNING, "not installed; only networks built with it need it", cure)
    if lasagne.problem:
        return Item("Lasagne", WARNING, f"{version}: {lasagne.problem}", cure)
    found = f"{version}, {lasagne.get('path')}"
    if version == "0.1":
        found += f"; it has no batch_norm, no only_return_final; most code wants 0.2.dev1: {cure}"
    return Item("Lasagne", GOOD, found)
