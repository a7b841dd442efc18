"""Python, NumPy, Theano, the compiler, BLAS and Lasagne."""

from __future__ import annotations

import os
import platform
import sys
import sysconfig

from ._items import GOOD, MISSING, WARNING, Item
from ._probe import Answer, ask

GEMM_TIMEOUT_S = 120.0
_SLOW_GFLOPS = 3.0

# The time of a matrix product that takes some 10 ms on a core of today, as Theano computes it.
_GEMM = """
import time
import synk_theano
import numpy as np, theano, theano.tensor as T
x, y = T.fmatrices("x", "y")
f = theano.function([x, y], T.dot(x, y))
a = np.ones((768, 768), "float32")
f(a, a)
times = []
for _ in range(5):
    start = time.perf_counter()
    f(a, a)
    times.append(time.perf_counter() - start)
answer(seconds=sorted(times)[2], right=bool((f(a, a) == 768).all()))
"""
_GEMM_FLOP = 2 * 768**3


def look_at_software(compat: Answer) -> list[Item]:
    """Return what there is to compute with.

    Args:
        compat: What ``python -m synk_theano_compat --json --activate`` says.
    """
    theano = _theano(compat)
    items = [_python(), _numpy(compat), theano, _compiler(compat), _headers()]
    if theano.state != MISSING:
        items.append(_blas(compat, ask(_GEMM, GEMM_TIMEOUT_S)))
    items.append(_lasagne(compat))
    return items


def _python() -> Item:
    found = f"{platform.python_implementation()} {platform.python_version()}, {sys.executable}"
    if (3, 9) <= sys.version_info[:2] <= (3, 11):
        return Item("Python", GOOD, found)
    cure = "an environment of Python 3.9, 3.10 or 3.11"
    return Item("Python", MISSING, found, cure, needed=True)


def _versions(compat: Answer) -> dict[str, str]:
    return dict(compat.get("versions") or {})


def _numpy(compat: Answer) -> Item:
    found = _versions(compat).get("numpy")
    cure = "pip install 'numpy>=1.21.6,<1.27'"
    if not found:
        return Item("NumPy", MISSING, compat.problem or "not installed", cure, needed=True)
    numbers = [int(part) for part in found.split(".")[:2] if part.isdigit()]
    if [1, 21] <= numbers < [1, 27]:
        return Item("NumPy", GOOD, found)
    return Item("NumPy", MISSING, f"{found}; Theano needs 1.21 to 1.26", cure, needed=True)


def _theano(compat: Answer) -> Item:
    cure = "pip install synk-theano"
    if compat.problem:
        return Item("Theano", MISSING, compat.problem, cure, needed=True)
    found, error = _versions(compat).get("Theano"), compat.get("error")
    if error:
        return Item("Theano", MISSING, f"{found}: {error}", _cure_of_import(compat), needed=True)
    if not found:
        return Item("Theano", MISSING, "not installed", cure, needed=True)
    found += f", {compat.get('compiledir')}"
    if not compat.get("active"):
        found += "; `import theano` works after `import synkhronos` only"
        return Item("Theano", WARNING, found, _cure_of_import(compat))
    return Item("Theano", GOOD, found)


def _cure_of_import(compat: Answer) -> str:
    if compat.get("switched_off"):
        return "unset SYNK_THEANO_COMPAT"
    if compat.get("pth") is None:
        return "python -m synk_theano_compat --install"
    return "python -m synk_theano_compat tells more"


def _compiler(compat: Answer) -> Item:
    found = compat.get("compiler")
    if found:
        return Item("C++ compiler", GOOD, str(found))
    return Item(
        "C++ compiler", MISSING, "no g++ on PATH", "apt install g++ (yum: gcc-c++)", needed=True
    )


def _headers() -> Item:
    path = os.path.join(sysconfig.get_path("include"), "Python.h")
    if os.path.isfile(path):
        return Item("Python's headers", GOOD, path)
    cure = "apt install python3-dev (yum: python3-devel)"
    return Item("Python's headers", MISSING, f"no {path}", cure, needed=True)


def _blas(compat: Answer, gemm: Answer) -> Item:
    origin = str((compat.get("blas") or {}).get("origin"))
    if gemm.problem:
        return Item("BLAS", MISSING, f"{origin}; a product failed: {gemm.problem}", needed=True)
    if not gemm["right"]:
        cure = "name another in blas.ldflags of THEANO_FLAGS"
        return Item("BLAS", MISSING, f"{origin}: wrong numbers", cure, needed=True)
    seconds = float(gemm["seconds"])
    speed = _GEMM_FLOP / seconds / 1e9
    found = f"{origin}; 768 x 768 float32: {seconds * 1e3:.1f} ms, {speed:.0f} GFLOP/s"
    if speed < _SLOW_GFLOPS:
        return Item("BLAS", WARNING, found, "apt install libopenblas-dev, or pip install scipy")
    return Item("BLAS", GOOD, found)


def _lasagne(compat: Answer) -> Item:
    found = _versions(compat).get("Lasagne")
    if found:
        return Item("Lasagne", GOOD, found)
    return Item("Lasagne", WARNING, "not installed", "pip install 'synkhronos[lasagne]'")
