"""Find CUDA's libraries and headers in a list of folders; load nothing.

The order is: ``SYNKHRONOS_CUDA_PATH`` (searched a few levels deep), the folders of ``CUDA_HOME``,
``CUDA_PATH`` and ``CUDA_ROOT``, ``LD_LIBRARY_PATH``, NVIDIA's wheels on ``sys.path``,
``/usr/local/cuda*``, the linker's cache and the system's folders.
"""

from __future__ import annotations

import glob
import os
import re
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from synk_theano_compat._toolchain.compiler import run_command

PATH_VARIABLE = "SYNKHRONOS_CUDA_PATH"
DEEP = 6
"""Levels of folders to search below those that the user names."""

MOST_FOLDERS = 20_000
"""Folders to search at most, below one that the user names."""

LIBRARIES = ("cuda", "nvrtc", "cublas", "nccl", "cudnn")
"""The libraries that libgpuarray and Theano open, without ``lib`` and ``.so``."""

HEADERS = ("cudnn.h", "cuda.h", "cuda_runtime.h", "crt/host_config.h")
"""The headers that Theano's modules for cuDNN include, directly or indirectly."""

_LIBRARY = re.compile(rf"lib({'|'.join(LIBRARIES)})\.so((?:\.\d+)*)", re.ASCII)
# In a wheel, its name has CUDA's full version, and that of NVRTC itself only the major one.
_BUILTINS = re.compile(r"libnvrtc-builtins\.so\.(\d+)\.(\d+)", re.ASCII)
_TOOLKIT = ("lib64", "lib", "targets/x86_64-linux/lib", "include", "targets/x86_64-linux/include")
_SYSTEM = (
    "/usr/local/nvidia/lib64",
    "/usr/local/nvidia/lib",
    "/usr/lib/x86_64-linux-gnu",
    "/usr/lib/aarch64-linux-gnu",
    "/usr/lib64",
    "/usr/lib",
    "/usr/lib/wsl/lib",
    "/usr/include/x86_64-linux-gnu",
    "/usr/include/aarch64-linux-gnu",
    "/usr/include",
    "/usr/local/include",
)
# Stubs to link against without a driver, and replacements for an older driver's libraries.
_NO_LIBRARY = frozenset(("stubs", "compat", "__pycache__"))


class SearchFolder(NamedTuple):
    """A folder to search, where its name comes from, and how many levels below it to search."""

    folder: str
    origin: str
    depth: int = 0


class FoundFile(NamedTuple):
    """A file, the version in its name as far as there is one, and the origin of its folder."""

    path: str
    version: tuple[int, ...]
    origin: str


class CudaFiles(NamedTuple):
    """What was found, best folder first: libraries by name, headers by name (``cudnn.h``)."""

    libraries: dict[str, list[FoundFile]]
    headers: dict[str, list[FoundFile]]


def search_path(
    environ: Mapping[str, str], sys_path: Sequence[str], linker_cache: Iterable[str] = ()
) -> list[SearchFolder]:
    """Return the folders to search, best first."""
    result = [SearchFolder(root, PATH_VARIABLE, DEEP) for root in _split(environ, PATH_VARIABLE)]
    for variable in ("CUDA_HOME", "CUDA_PATH", "CUDA_ROOT"):
        for root in _split(environ, variable):
            result += _toolkit(root, variable)
    variable = "LD_LIBRARY_PATH"
    result += [SearchFolder(folder, variable) for folder in _split(environ, variable)]
    for folder in sys_path:
        for name in ("lib", "lib64", "include"):
            for wheel in sorted(glob.glob(os.path.join(glob.escape(folder), "nvidia", "*", name))):
                result.append(SearchFolder(wheel, "a wheel of this Python"))
    versions = sorted(glob.glob("/usr/local/cuda-*"), key=_numbers, reverse=True)
    for root in ("/usr/local/cuda", *versions):
        result += _toolkit(root, root)
    result += [SearchFolder(folder, "the linker's cache") for folder in linker_cache]
    result += [SearchFolder(folder, "the system") for folder in _SYSTEM]
    return result


def _split(environ: Mapping[str, str], variable: str) -> Iterator[str]:
    return filter(os.path.isabs, environ.get(variable, "").split(os.pathsep))


def _toolkit(root: str, origin: str) -> list[SearchFolder]:
    return [SearchFolder(os.path.join(root, name), origin) for name in _TOOLKIT]


def _numbers(path: str) -> tuple[int, ...]:
    return tuple(int(number) for number in re.findall(r"\d+", os.path.basename(path)))


def linker_folders() -> list[str]:
    """Return the folders in the linker's cache that have one of the libraries."""
    listed = run_command(["/sbin/ldconfig", "-p"]) or run_command(["ldconfig", "-p"])
    return folders_of_cache(listed or "")


def folders_of_cache(text: str) -> list[str]:
    """Return the folders, each once, that ``ldconfig -p`` lists for one of the libraries."""
    folders: dict[str, None] = {}
    for line in text.splitlines():
        name, _, path = line.strip().partition(" => ")
        if path and _LIBRARY.fullmatch(name.split(" ", 1)[0]):
            folders[os.path.dirname(path)] = None
    return list(folders)


def scan_machine() -> CudaFiles:
    """Search the folders of this process's environment, ``sys.path`` and the linker's cache."""
    return scan(search_path(os.environ, sys.path, linker_folders()))


def scan(searched: Iterable[SearchFolder]) -> CudaFiles:
    """Return the files in the folders. A folder that cannot be read counts as empty.

    Headers are also searched in ``include`` beside a library's folder, after all other folders.
    Of each library the newest in a folder is listed, by the target of all links to it.
    """
    files = CudaFiles({name: [] for name in LIBRARIES}, {name: [] for name in HEADERS})
    seen: set[str] = set()
    for place in searched:
        for folder, names in _listing(place):
            if folder not in seen:
                seen.add(folder)
                _note_libraries(files, folder, names, place.origin)
                _note_headers(files, folder, names, place.origin)
    for library in [one for all_ in files.libraries.values() for one in all_]:
        beside = os.path.join(os.path.dirname(os.path.dirname(library.path)), "include")
        for folder, names in _listing(SearchFolder(beside, library.origin)):
            if folder not in seen:
                seen.add(folder)
                _note_headers(files, folder, names, library.origin)
    return files


def _note_headers(files: CudaFiles, folder: str, names: Iterable[str], origin: str) -> None:
    for header in HEADERS:
        path = os.path.join(folder, header)
        if header.split("/")[0] in names and os.path.isfile(path):
            files.headers[header].append(FoundFile(path, (), origin))


def _note_libraries(files: CudaFiles, folder: str, names: Iterable[str], origin: str) -> None:
    if not _NO_LIBRARY.isdisjoint(Path(folder).parts):
        return
    best: dict[str, FoundFile] = {}
    for name in names:
        match = _LIBRARY.fullmatch(name)
        path = os.path.join(folder, name)
        if match is None or not os.path.isfile(path):
            continue
        # If any name has the version, it is that of the links' target; and the libraries that the
        # target depends on lie beside it, not beside the link.
        target = os.path.realpath(path)
        real = _LIBRARY.fullmatch(os.path.basename(target)) or match
        version = tuple(int(part) for part in max(real[2], match[2], key=len).split(".")[1:])
        found, known = FoundFile(target, version, origin), best.get(match[1])
        if known is None or (version, len(path)) > (known.version, len(known.path)):
            best[match[1]] = found
    for name, found in best.items():
        if name == "nvrtc" and len(found.version) < 2:
            found = found._replace(version=_of_builtins(found.path) or found.version)
        files.libraries[name].append(found)


def _of_builtins(nvrtc: str) -> tuple[int, ...]:
    names = os.listdir(os.path.dirname(nvrtc))
    matches = [match for match in map(_BUILTINS.fullmatch, names) if match is not None]
    return max(((int(match[1]), int(match[2])) for match in matches), default=())


def _listing(place: SearchFolder) -> Iterator[tuple[str, list[str]]]:
    """Yield folders and the names in them, the folder itself first, then the nearest."""
    waiting, looked = [(place.folder, place.depth)], 0
    while waiting and looked < MOST_FOLDERS:
        folder, depth = waiting.pop(0)
        looked += 1
        names, below = [], []
        try:
            with os.scandir(folder) as entries:
                for entry in entries:
                    names.append(entry.name)
                    if depth and entry.is_dir() and not entry.name.startswith((".", "__")):
                        below.append((entry.path, depth - 1))
        except OSError:
            continue
        yield folder, names
        waiting += sorted(below)


def choose(found: Sequence[FoundFile], at_most: Sequence[int] = ()) -> FoundFile | None:
    """Return the first library that is not newer than ``at_most``; None if there is none.

    ``at_most`` are as many numbers of a version as matter, such as ``(13, 0)``; empty for any. A
    library without a version in its name is taken.
    """
    fitting = (one for one in found if one.version[: len(at_most)] <= tuple(at_most))
    return next(fitting, None)
