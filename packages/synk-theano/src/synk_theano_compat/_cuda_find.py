"""Find CUDA's libraries and headers: a list of folders goes in, a table of what is there comes out.

::

    places(os.environ, sys.path, ...)   where to look, best first
    scan(places)                        what is there; only lists folders, loads nothing
    choose(table.libraries["cublas"], (13,))

Looked at, in this order: what ``SYNKHRONOS_CUDA_PATH`` names (searched a few levels deep), the
folders of ``CUDA_HOME``, ``CUDA_PATH`` and ``CUDA_ROOT``, ``LD_LIBRARY_PATH``, NVIDIA's wheels on
``sys.path``, ``/usr/local/cuda*``, the linker's cache and the system's folders.
"""

from __future__ import annotations

import glob
import os
import re
import subprocess
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple, Optional

PATH_VARIABLE = "SYNKHRONOS_CUDA_PATH"
DEEP = 6
MOST_FOLDERS = 20_000

LIBRARIES = ("cuda", "nvrtc", "cublas", "nccl", "cudnn")
"""The libraries that libgpuarray and Theano open, without ``lib`` and ``.so``."""

HEADERS = ("cudnn.h", "cuda.h", "cuda_runtime.h", "crt/host_config.h")
"""The headers that Theano's modules for cuDNN include, themselves or through one another."""

_LIBRARY = re.compile(rf"lib({'|'.join(LIBRARIES)})\.so((?:\.\d+)*)", re.ASCII)
# Its name has CUDA's version in full; that of NVRTC itself, in a wheel, the major one only.
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
# What is linked against where there is no driver, and what replaces an older driver's.
_NO_LIBRARY = frozenset(("stubs", "compat", "__pycache__"))


class Place(NamedTuple):
    """A folder to look into, who named it, and how many levels below it are looked into as well."""

    folder: str
    origin: str
    depth: int = 0


class Found(NamedTuple):
    """A file that was found: path, version as far as its name tells, who named the place."""

    path: str
    version: tuple[int, ...]
    origin: str


class Table(NamedTuple):
    """What was found, best place first: libraries by name, headers by name (``cudnn.h``)."""

    libraries: dict[str, list[Found]]
    headers: dict[str, list[Found]]


def places(
    environ: Mapping[str, str], sys_path: Sequence[str], linker_cache: Iterable[str] = ()
) -> list[Place]:
    """Return where to look, best first.

    Args:
        environ: The environment's variables.
        sys_path: Folders in which wheels are installed.
        linker_cache: Folders of the linker's cache (:func:`linker_folders`).
    """
    result = [Place(folder, PATH_VARIABLE, DEEP) for folder in _split(environ, PATH_VARIABLE)]
    for variable in ("CUDA_HOME", "CUDA_PATH", "CUDA_ROOT"):
        for root in _split(environ, variable):
            result += _toolkit(root, variable)
    result += [Place(folder, "LD_LIBRARY_PATH") for folder in _split(environ, "LD_LIBRARY_PATH")]
    for folder in sys_path:
        for name in ("lib", "lib64", "include"):
            for wheel in sorted(glob.glob(os.path.join(glob.escape(folder), "nvidia", "*", name))):
                result.append(Place(wheel, "a wheel of this Python"))
    versions = sorted(glob.glob("/usr/local/cuda-*"), key=_numbers, reverse=True)
    for root in ("/usr/local/cuda", *versions):
        result += _toolkit(root, root)
    result += [Place(folder, "the linker's cache") for folder in linker_cache]
    result += [Place(folder, "the system") for folder in _SYSTEM]
    return result


def _split(environ: Mapping[str, str], variable: str) -> Iterator[str]:
    for folder in environ.get(variable, "").split(os.pathsep):
        if folder and os.path.isabs(folder):
            yield folder


def _toolkit(root: str, origin: str) -> list[Place]:
    return [Place(os.path.join(root, name), origin) for name in _TOOLKIT]


def _numbers(path: str) -> tuple[int, ...]:
    return tuple(int(number) for number in re.findall(r"\d+", os.path.basename(path)))


def linker_folders() -> list[str]:
    """Return the folders of the linker's cache in which one of the libraries is."""
    for program in ("/sbin/ldconfig", "ldconfig"):
        try:
            done = subprocess.run(
                [program, "-p"],
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                timeout=10,
                check=False,
            )
        except (OSError, subprocess.SubprocessError):
            continue
        return folders_of_cache(done.stdout)
    return []


def folders_of_cache(text: str) -> list[str]:
    """Return the folders, each once, that ``ldconfig -p`` names for one of the libraries."""
    folders: dict[str, None] = {}
    for line in text.splitlines():
        name, _, path = line.strip().partition(" => ")
        if path and _LIBRARY.fullmatch(name.split(" ", 1)[0]):
            folders[os.path.dirname(path)] = None
    return list(folders)


def here() -> Table:
    """Look at this machine as this process sees it: environment, ``sys.path``, linker's cache."""
    return scan(places(os.environ, sys.path, linker_folders()))


def scan(looked_at: Iterable[Place]) -> Table:
    """Return what is in the folders. A folder that cannot be read has nothing.

    Headers are also looked for in ``include`` beside a library's folder, after all other places.
    Of each library the newest in a folder is listed, by the file that links to it lead to.
    """
    table = Table({name: [] for name in LIBRARIES}, {name: [] for name in HEADERS})
    seen: set[str] = set()
    for place in looked_at:
        for folder, names in _listing(place):
            if folder not in seen:
                seen.add(folder)
                _note_libraries(table, folder, names, place.origin)
                _note_headers(table, folder, names, place.origin)
    for library in [one for all_ in table.libraries.values() for one in all_]:
        beside = os.path.join(os.path.dirname(os.path.dirname(library.path)), "include")
        for folder, names in _listing(Place(beside, library.origin)):
            if folder not in seen:
                seen.add(folder)
                _note_headers(table, folder, names, library.origin)
    return table


def _note_headers(table: Table, folder: str, names: Iterable[str], origin: str) -> None:
    for header in HEADERS:
        path = os.path.join(folder, header)
        if header.split("/")[0] in names and os.path.isfile(path):
            table.headers[header].append(Found(path, (), origin))


def _note_libraries(table: Table, folder: str, names: Iterable[str], origin: str) -> None:
    if not _NO_LIBRARY.isdisjoint(Path(folder).parts):
        return
    best: dict[str, Found] = {}
    for name in names:
        match = _LIBRARY.fullmatch(name)
        path = os.path.join(folder, name)
        if match is None or not os.path.isfile(path):
            continue
        # The version is in the name of the file that links lead to, if anywhere; and what that
        # needs in turn lies beside it, not beside the link.
        target = os.path.realpath(path)
        real = _LIBRARY.fullmatch(os.path.basename(target)) or match
        version = tuple(int(part) for part in max(real[2], match[2], key=len).split(".")[1:])
        found, known = Found(target, version, origin), best.get(match[1])
        if known is None or (version, len(path)) > (known.version, len(known.path)):
            best[match[1]] = found
    for name, found in best.items():
        if name == "nvrtc" and len(found.version) < 2:
            found = found._replace(version=_of_builtins(found.path) or found.version)
        table.libraries[name].append(found)


def _of_builtins(nvrtc: str) -> tuple[int, ...]:
    names = os.listdir(os.path.dirname(nvrtc))
    matches = [match for match in map(_BUILTINS.fullmatch, names) if match is not None]
    return max(((int(match[1]), int(match[2])) for match in matches), default=())


def _listing(place: Place) -> Iterator[tuple[str, list[str]]]:
    """Yield folders and the names in them, the place's own first, nearest first."""
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


def choose(found: Sequence[Found], at_most: Sequence[int] = ()) -> Optional[Found]:
    """Return the library to use: the first of them that is not newer than ``at_most``.

    Args:
        found: Libraries, best place first. One whose name tells no version is taken as it is.
        at_most: As much of a version as counts, such as ``(13, 0)``; nothing: any.
    """
    for library in found:
        if library.version[: len(at_most)] <= tuple(at_most):
            return library
    return None
