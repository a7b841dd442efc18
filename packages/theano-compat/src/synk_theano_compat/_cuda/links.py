"""Make ``dlopen("libcublas.so")`` find ``.../libcublas.so.13`` in a running process.

libgpuarray opens CUDA's libraries by names without a version, which only development packages
have, and only in the linker's own folders. ``LD_LIBRARY_PATH`` is read once, when a process starts.
But the linker reuses a loaded library of the same *own* name (``SONAME``). So this module builds an
empty library of that name that depends on the one found, in which symbols are found then, and loads
it. The user's cache keeps it, by path, size and time of the library found::

    <cache>/lib-<digest>/libcublas.so      depends on  .../libcublas.so.13
"""

from __future__ import annotations

import ctypes
import os
from pathlib import Path

from synk_theano_compat._toolchain.cache import CacheError, cached_folder, signature
from synk_theano_compat._toolchain.compiler import run_command


class LinkError(OSError):
    """A library was found, but could not be given the name under which it is opened."""


def loads(name: str) -> bool:
    """Load a library by its name alone, such as ``libcublas.so``; return whether it was found."""
    try:
        ctypes.CDLL(name)
    except OSError:
        return False
    return True


def alias(name: str, library: str, compiler: str | None) -> str:
    """Make the library at path ``library`` available in this process under ``name``.

    Return the path of the library that was loaded under that name. The compiler is used only the
    first time. LinkError without one, if it fails, or if the library cannot be loaded.
    """
    try:
        # By its path first: its own dependencies lie beside it and are found from there.
        ctypes.CDLL(library)
    except OSError as error:
        raise LinkError(f"{library} was found but cannot be loaded: {error}") from None
    if loads(name):
        return library
    built = _built(name, library, compiler)
    try:
        ctypes.CDLL(built)
    except OSError as error:
        raise LinkError(f"{built} was built for {library} but cannot be loaded: {error}") from None
    if not loads(name):
        raise LinkError(f"{built} is loaded, but the linker does not find it as {name}")
    return built


def _built(name: str, library: str, compiler: str | None) -> str:
    def fill(folder: Path) -> None:
        if compiler is None:
            raise CacheError("there is no C++ compiler (g++)")
        source = folder / "empty.cpp"
        source.write_text("")
        command = [
            *(compiler, "-shared", "-fPIC", "-o", str(folder / name), str(source)),
            *(f"-Wl,-soname,{name}", "-Wl,--no-as-needed", "-Wl,--allow-shlib-undefined"),
            *(library, f"-Wl,-rpath,{os.path.dirname(library)}"),
        ]
        if run_command(command) is None:
            raise CacheError(f"{compiler} does not link against it")
        source.unlink()

    try:
        key = (name, signature(library))
        folder = cached_folder("lib", key, fill, lambda folder: (folder / name).is_file())
    except CacheError as error:
        raise LinkError(
            f"{library} was found, but no {name} can be built that links to it: {error}"
        ) from None
    return str(folder / name)
