"""Find a cuDNN library and header of one version, and folders by which Theano can name them.

Theano's flags name a folder for each of ``cudnn.h`` (ours, which includes the installed one), the
installed headers, and ``libcudnn.so``: the last two may be folders of links in the user's cache.
"""

from __future__ import annotations

import ctypes
import os
import re
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

from synk_theano_compat._toolchain.cache import cached_folder, signature

from .find import HEADERS, CudaFiles, FoundFile

INCLUDE = Path(__file__).parents[1] / "include"
"""The folder of our ``cudnn.h``."""


class Installation(NamedTuple):
    """cuDNN's library and header, and its version as one number, such as 91400 for 9.14."""

    library: FoundFile
    header: FoundFile
    version: int


def find(files: CudaFiles) -> Installation | None:
    """Return the first cuDNN library for which a header of exactly the same version exists.

    Theano refuses other pairs at its import. This loads candidate libraries for their versions.
    """
    for library in files.libraries["cudnn"]:
        for header in sorted(files.headers["cudnn.h"], key=lambda h: _is_apart(library, h)):
            version = header_version(header.path)
            if version is None or library.version[:1] not in ((), version[:1]):
                continue
            if library_version(library.path) == as_number(version):
                return Installation(library, header, as_number(version))
    return None


def _is_apart(library: FoundFile, header: FoundFile) -> bool:
    return Path(header.path).parent.parent not in Path(library.path).parents


def header_version(path: str) -> tuple[int, int, int] | None:
    """Return the version in ``cudnn_version.h`` or ``cudnn.h``; None if neither has one."""
    for name in ("cudnn_version.h", os.path.basename(path)):
        try:
            text = Path(path).with_name(name).read_text(errors="replace")
        except OSError:
            continue
        numbers = {
            match[1]: int(match[2])
            for match in re.finditer(r"^#define CUDNN_(\w+)\s+(\d+)\s*$", text, re.MULTILINE)
        }
        if "MAJOR" in numbers:
            return numbers["MAJOR"], numbers.get("MINOR", 0), numbers.get("PATCHLEVEL", 0)
    return None


def as_number(version: tuple[int, int, int]) -> int:
    """Return a version as ``cudnnGetVersion()`` does: 8907 for 8.9.7, 91400 for 9.14.0."""
    major, minor, patch = version
    return major * (1000 if major < 9 else 10000) + minor * 100 + patch


def library_version(path: str) -> int:
    """Load cuDNN and return its version; 0 if it cannot be loaded."""
    try:
        version = ctypes.CDLL(path).cudnnGetVersion
    except (OSError, AttributeError):
        return 0
    version.restype = ctypes.c_size_t
    return int(version())


def header_folders(files: CudaFiles, cudnn: str) -> list[str] | None:
    """Return the folders of ``cudnn.h`` and of CUDA's headers, each once; None without CUDA's.

    CUDA's are in one folder, or in folders side by side, as in wheels.
    """
    found = {
        header: [found.path[: -len(header) - 1] for found in files.headers[header]]
        for header in HEADERS
    }
    for runtime in found["cuda_runtime.h"]:
        folders = [os.path.dirname(cudnn), runtime]
        for header in ("cuda.h", "crt/host_config.h"):
            beside = [folder for folder in found[header] if _tree(folder) == _tree(runtime)]
            if runtime not in beside:
                folders += beside[:1] or [""]
        if "" not in folders:
            return list(dict.fromkeys(folders))
    return None


def _tree(include: str) -> Path:
    """Return ``.../nvidia`` for ``.../nvidia/cuda_runtime/include``."""
    return Path(include).parent.parent


def gathered_headers(folders: list[str]) -> str:
    """Return one folder with the headers of several; of the first folder, only cuDNN's.

    CacheError if there is no place for it that only this user can write to.
    """
    if len(folders) == 1:
        return folders[0]
    links = {}
    for folder in reversed(folders):
        for name in os.listdir(folder):
            if folder is not folders[0] or name.startswith("cudnn"):
                links[name] = os.path.join(folder, name)
    return _folder_of_links("headers", links, (os.path.join(folders[0], "cudnn.h"), *folders))


def linked_library(library: str) -> str:
    """Return a folder with ``libcudnn.so``, and the libraries beside it under their own names.

    CacheError as above.
    """
    folder = os.path.dirname(library)
    names = [name for name in os.listdir(folder) if name.startswith("libcudnn") and ".so." in name]
    links = {name: os.path.join(folder, name) for name in names}
    return _folder_of_links("cudnn", {**links, "libcudnn.so": library}, (library,))


def _folder_of_links(kind: str, links: dict[str, str], depends_on: Iterable[str]) -> str:
    def fill(folder: Path) -> None:
        for name, target in links.items():
            os.symlink(target, folder / name)

    key = ([signature(path) for path in depends_on], sorted(links.items()))
    return str(cached_folder(kind, key, fill))
