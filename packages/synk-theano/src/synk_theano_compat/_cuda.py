"""G1: libgpuarray finds the driver, NVRTC, cuBLAS and NCCL, wherever they are.

Done when pygpu is first asked for a CUDA device, and not before: importing pygpu, or Theano's
``gpuarray``, costs nothing more than it did. Workers are processes of their own and do the same.
"""

from __future__ import annotations

import ctypes
import functools
import sys
import warnings
from typing import Any, Callable

from synk_theano_compat import _cuda_find, _cuda_links, _flags

OPENED = ("cuda", "nvrtc", "cublas", "nccl")
"""What libgpuarray opens, in the order in which we look for it."""

results: dict[str, str] = {}
"""What was done in this process for each of the libraries, in words; empty before it was needed."""

missing: dict[str, str] = {}
"""Those of them that are not there or of no use, and why."""


def watch_pygpu() -> str:
    """Have :func:`prepare` run before pygpu opens a CUDA device or counts them."""
    pygpu: Any = sys.modules["pygpu"]
    for name in ("init", "count_devices"):
        prepared = _prepared(getattr(pygpu.gpuarray, name))
        setattr(pygpu.gpuarray, name, prepared)
        if hasattr(pygpu, name):
            setattr(pygpu, name, prepared)
    return "pygpu.init, pygpu.gpuarray.count_devices"


def _prepared(function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function)
    def prepared(*arguments: Any, **options: Any) -> Any:
        # The first argument of both, by position or by its name there.
        device = arguments[0] if arguments else options.get("dev", options.get("kind", ""))
        name = device.decode() if isinstance(device, bytes) else str(device)
        if name.startswith("cuda"):
            prepare()
        return function(*arguments, **options)

    return prepared


def prepare() -> dict[str, str]:
    """Make the libraries be found that libgpuarray opens; return what was done for each.

    Creates no CUDA context. Whatever is found without help is left alone. What is missing is told
    as a RuntimeWarning, once, unless it is NCCL, without which a single device works.
    """
    if results:
        return results
    table: _cuda_find.Table | None = None
    for name in OPENED:
        own = f"lib{name}.so"
        if _cuda_links.loads(own):
            results[name] = "found by its own name"
            continue
        table = table or _cuda_find.here()
        try:
            results[name] = _lend(own, table.libraries[name], _newest(name))
        except _cuda_links.LinkError as error:
            results[name] = missing[name] = str(error)
    needed = {name: why for name, why in missing.items() if name != "nccl"}
    if needed:
        warnings.warn(
            "libgpuarray will not find "
            + "; ".join(f"lib{name}.so ({why})" for name, why in needed.items())
            + f". Install it, or name its folder in {_cuda_find.PATH_VARIABLE}",
            RuntimeWarning,
            stacklevel=4,
        )
    return results


def _newest(name: str) -> tuple[int, ...]:
    """Return the newest version of a library that this driver runs, as far as it counts.

    What a driver is given to run must not come from a newer CUDA: NVRTC's intermediate code is
    refused down to the minor version, libraries bring code for all drivers of their major one.
    """
    driver = driver_version()
    if driver == (0, 0):
        return ()
    return {"nvrtc": driver, "cublas": driver[:1]}.get(name, ())


def _lend(own: str, all_found: list[_cuda_find.Found], newest: tuple[int, ...]) -> str:
    found = _cuda_find.choose(all_found, newest)
    if found is None:
        if all_found:
            path, version, _ = all_found[0]
            raise _cuda_links.LinkError(
                f"{path} is for CUDA {_dotted(version)}, newer than the driver, which is for "
                f"{_dotted(newest)}"
            )
        raise _cuda_links.LinkError("not found")
    _cuda_links.lend_name(own, found.path, _compiler())
    return f"{found.path} ({found.origin})"


def _dotted(version: tuple[int, ...]) -> str:
    return ".".join(map(str, version))


def _compiler() -> str | None:
    config = getattr(sys.modules.get("theano"), "config", None)
    return _flags.find_compiler(None if config is None else config.cxx)


def driver_version() -> tuple[int, int]:
    """Return the CUDA version of the driver loaded under its own name; (0, 0) if there is none."""
    number = ctypes.c_int(0)
    try:
        if ctypes.CDLL("libcuda.so").cuDriverGetVersion(ctypes.byref(number)) != 0:
            return (0, 0)
    except (OSError, AttributeError):
        return (0, 0)
    return number.value // 1000, number.value % 1000 // 10
