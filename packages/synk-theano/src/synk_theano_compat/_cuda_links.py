"""Make ``dlopen("libcublas.so")`` find ``.../libcublas.so.13`` in a process that runs already.

libgpuarray opens CUDA's libraries by names without a version, which only development packages
bring, and in the linker's own folders. ``LD_LIBRARY_PATH`` is read once, at a process's start. But
the linker takes a library that is loaded already if its *own* name (``SONAME``) is the one asked
for. So we build, with the compiler that Theano needs anyway, an empty library called
``libcublas.so`` that depends on the one found, and load it; what looks for a symbol in it finds
those of its dependency. It is kept for the next process in the user's cache::

    <cache>/lib-<digest>/libcublas.so      depends on  .../libcublas.so.13

The digest covers the library found (path, size, time). Folders are made aside and renamed, so that
any number of processes may do so at once.
"""

from __future__ import annotations

import ctypes
import hashlib
import os
import shutil
import tempfile
from pathlib import Path

from synk_theano_compat import _blas

FORMAT = 1


class LinkError(OSError):
    """A library could be found, but not be given the name under which it is asked for."""


def loads(name: str) -> bool:
    """Load a library by its name alone, such as ``libcublas.so``; tell whether it was found."""
    try:
        ctypes.CDLL(name)
    except OSError:
        return False
    return True


def lend_name(name: str, library: str, compiler: str | None) -> str:
    """Make the library at path ``library`` be found in this process under ``name``.

    Args:
        name: What it will be asked for as, such as ``libcublas.so``.
        library: Path of the library, such as ``/usr/local/cuda/lib64/libcublas.so.13``.
        compiler: Path of the C++ compiler; used only if this was never done before.

    Returns:
        The path of the library that was loaded under that name.

    Raises:
        LinkError: Without a compiler, if it fails, or if the library cannot be loaded.
    """
    try:
        # By its path first: what it needs itself lies beside it and is found from there.
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
    key = repr((FORMAT, name, _blas._signature(library)))
    digest = hashlib.sha256(key.encode()).hexdigest()[:16]
    problem = "there is no folder of this user's own to keep it in"
    for root in _blas._cache_roots():
        if not _blas.is_private(root, create=True):
            continue
        folder = root / f"lib-{digest}"
        for _attempt in range(3):
            if _blas.is_private(folder) and (folder / name).is_file():
                return str(folder / name)
            if compiler is None:
                problem = "there is no C++ compiler (g++)"
                break
            if folder.exists() or folder.is_symlink():
                _blas._discard(folder, root)
            made = Path(tempfile.mkdtemp(prefix="new-", dir=root))
            try:
                if not _build(made / name, library, compiler):
                    problem = f"{compiler} does not link against it"
                    break
                os.rename(made, folder)
            except OSError as error:
                problem = str(error)
            finally:
                shutil.rmtree(made, ignore_errors=True)
    raise LinkError(f"{library} was found, but no {name} can be made that leads to it: {problem}")


def _build(target: Path, library: str, compiler: str) -> bool:
    source = target.with_suffix(".cpp")
    source.write_text("")
    command = [
        *(compiler, "-shared", "-fPIC", "-o", str(target), str(source)),
        *(f"-Wl,-soname,{target.name}", "-Wl,--no-as-needed", "-Wl,--allow-shlib-undefined"),
        *(library, f"-Wl,-rpath,{os.path.dirname(library)}"),
    ]
    done = _blas._run(command) is not None
    source.unlink()
    return done
