"""G1: make the driver, NVRTC, cuBLAS and NCCL available to libgpuarray, wherever they are.

That is at pygpu's first use of a CUDA device: no import gets slower.
"""

from __future__ import annotations

import contextlib
import ctypes
import sys
import warnings

from synk_theano_compat._toolchain.compiler import find_compiler

from . import find, links

OPENED = ("cuda", "nvrtc", "cublas", "nccl")
"""The libraries that libgpuarray opens, in the order in which they are prepared."""

results: dict[str, str] = {}
"""The preparation of each library in this process, in words; empty before the first use."""

missing: dict[str, str] = {}
"""The libraries that are absent or unusable, and why."""


def prepare() -> dict[str, str]:
    """Make each library available that libgpuarray opens; return `results`.

    Creates no CUDA context. A library that the linker finds by itself is left alone. Issues one
    RuntimeWarning about missing ones, except NCCL, without which a single device works.
    """
    if results:
        return results
    files: find.CudaFiles | None = None
    for name in OPENED:
        own = f"lib{name}.so"
        if links.loads(own):
            results[name] = "found by its own name"
            continue
        files = files or find.scan_machine()
        try:
            results[name] = _alias(own, files.libraries[name], _newest(name))
        except links.LinkError as error:
            results[name] = missing[name] = str(error)
    needed = {name: why for name, why in missing.items() if name != "nccl"}
    if needed:
        warnings.warn(
            "libgpuarray will not find "
            + "; ".join(f"lib{name}.so ({why})" for name, why in needed.items())
            + f". Install it, or name its folder in {find.PATH_VARIABLE}",
            RuntimeWarning,
            stacklevel=4,
        )
    return results


def _newest(name: str) -> tuple[int, ...]:
    """Return the newest version of a library that this driver runs; as many numbers as matter.

    A driver refuses code of a newer CUDA: NVRTC's intermediate code down to the minor version,
    while the other libraries contain code for all drivers of their major version.
    """
    driver = driver_version()
    if driver == (0, 0):
        return ()
    return {"nvrtc": driver, "cublas": driver[:1]}.get(name, ())


def _alias(own: str, candidates: list[find.FoundFile], newest: tuple[int, ...]) -> str:
    found = find.choose(candidates, newest)
    if found is None:
        if candidates:
            path, version, _ = candidates[0]
            raise links.LinkError(
                f"{path} is for CUDA {_dotted(version)}, newer than the driver, which is for "
                f"{_dotted(newest)}"
            )
        raise links.LinkError("not found")
    config = getattr(sys.modules.get("theano"), "config", None)
    compiler = find_compiler(None if config is None else config.cxx)
    links.alias(own, found.path, compiler)
    return f"{found.path} ({found.origin})"


def _dotted(version: tuple[int, ...]) -> str:
    return ".".join(map(str, version))


def driver_version() -> tuple[int, int]:
    """Return the CUDA version of the driver loaded under its own name; (0, 0) if there is none."""
    number = ctypes.c_int(0)
    with contextlib.suppress(OSError, AttributeError):
        if ctypes.CDLL("libcuda.so").cuDriverGetVersion(ctypes.byref(number)) == 0:
            return number.value // 1000, number.value % 1000 // 10
    return (0, 0)
