"""G2 to G6: Theano's ``gpuarray.dnn``, which knows cuDNN 5 to 7, on cuDNN 8 and 9.

Theano compiles against ``cudnn.h`` and ``-lcudnn``. Both are looked for, must be of one version,
and are put where Theano's flags can name them::

    dnn.include_path                ours: include/cudnn.h, which includes the installed one
    cuda.include_path               the installed headers; if they are in several folders, one
                                    with links to all of them, in the user's cache
    dnn.library_path, dnn.bin_path  a folder there with libcudnn.so -> .../libcudnn.so.9

That is done before the module ``theano.gpuarray.dnn`` is executed, which asks for cuDNN's version
at once, and only if pygpu is there.
"""

from __future__ import annotations

import ctypes
import hashlib
import os
import re
import shutil
import sys
import tempfile
import warnings
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple

from synk_theano_compat import _blas, _cuda_find, _flags

INCLUDE = Path(__file__).with_name("include")
FORMAT = 1

_NEW_HEADERS = "Your cuDNN version is more recent than Theano"


class Installation(NamedTuple):
    """cuDNN's library and header, and its version as one number, such as 91400 for 9.14."""

    library: _cuda_find.Found
    header: _cuda_find.Found
    version: int


chosen: list[Installation] = []
"""What Theano was told to use in this process: one installation, or none."""


def lead_to_cudnn() -> str:
    """G2: find cuDNN and its header, and set the flags of Theano that name them.

    A user's own ``dnn.*_path`` and ``cuda.include_path`` are looked into first.
    """
    from theano import config

    # Theano says that cuDNN is newer than itself, which is what all this is about.
    warnings.filterwarnings("ignore", message=_NEW_HEADERS, category=UserWarning)
    if config.dnn.enabled == "False":
        return "dnn.enabled=False"
    if sys.modules.get("pygpu") is None:
        return "not needed: there is no pygpu"
    users = {name: _users(config, name) for name in _PATHS}
    own = [_cuda_find.Place(path, name) for name, path in users.items() if path]
    looked_at = _cuda_find.places(os.environ, sys.path, _cuda_find.linker_folders())
    table = _cuda_find.scan([*own, *looked_at])
    installation = find(table)
    if installation is None:
        return "no cuDNN was found with a header of its version"
    folders = header_folders(table, installation.header.path)
    if folders is None:
        return f"cuDNN {installation.version} was found, but not CUDA's headers (cuda_runtime.h)"
    if not _is_users_own_header(users["dnn.include_path"]):
        _set(config, "dnn.include_path", str(INCLUDE))
    headers = folders[0] if len(folders) == 1 else _gathered(folders)
    _set(config, "cuda.include_path", headers)
    links = _linked(installation.library.path)
    _set(config, "dnn.library_path", links)
    _set(config, "dnn.bin_path", links)
    chosen.append(installation)
    return f"cuDNN {installation.version}: {installation.library.path}"


_PATHS = ("dnn.include_path", "dnn.library_path", "dnn.bin_path", "cuda.include_path")


def _users(config: Any, name: str) -> str:
    """Return what the user has set for a flag; nothing if it is a default of Theano's."""
    section, _, flag = name.partition(".")
    value = getattr(getattr(config, section), flag)  # whereby it becomes known who has set it
    return "" if getattr(type(getattr(config, section)), flag).is_default else value


def _set(config: Any, name: str, value: str) -> None:
    section, _, flag = name.partition(".")
    setattr(getattr(config, section), flag, value)
    _flags.chosen[name] = value


def _is_users_own_header(folder: str) -> bool:
    """Tell whether the user has a ``cudnn.h`` that stands in for the installed one, like ours."""
    path = os.path.join(folder, "cudnn.h")
    return bool(folder) and os.path.isfile(path) and header_version(path) is None


def find(table: _cuda_find.Table) -> Installation | None:
    """Return the first cuDNN whose header is there too, of the very same version.

    Theano refuses a header and a library of different versions, with an error at its import.
    Libraries that come into question are loaded, and asked.
    """
    for library in table.libraries["cudnn"]:
        for header in sorted(table.headers["cudnn.h"], key=lambda h: _is_apart(library, h)):
            version = header_version(header.path)
            if version is None or library.version[:1] not in ((), version[:1]):
                continue
            if library_version(library.path) == as_number(version):
                return Installation(library, header, as_number(version))
    return None


def _is_apart(library: _cuda_find.Found, header: _cuda_find.Found) -> bool:
    return Path(header.path).parent.parent not in Path(library.path).parents


def header_version(path: str) -> tuple[int, int, int] | None:
    """Return the version in ``cudnn_version.h`` or ``cudnn.h``; None if it is in neither."""
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


def header_folders(table: _cuda_find.Table, cudnn: str) -> list[str] | None:
    """Return the folders of ``cudnn.h`` and of CUDA's headers, each once; None without CUDA's.

    CUDA's are taken from one folder, or from folders beside each other as wheels have them.
    """
    found = {
        header: [found.path[: -len(header) - 1] for found in table.headers[header]]
        for header in _cuda_find.HEADERS
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


def _gathered(folders: list[str]) -> str:
    """Return a folder with links to the headers of several; of the first, to cuDNN's only."""
    links = {}
    for folder in reversed(folders):
        for name in os.listdir(folder):
            if folder is not folders[0] or name.startswith("cudnn"):
                links[name] = os.path.join(folder, name)
    return _folder_of_links("headers", links, (os.path.join(folders[0], "cudnn.h"), *folders))


def _linked(library: str) -> str:
    """Return a folder with ``libcudnn.so``, and the libraries beside it under their own names."""
    folder = os.path.dirname(library)
    names = [name for name in os.listdir(folder) if name.startswith("libcudnn") and ".so." in name]
    links = {name: os.path.join(folder, name) for name in names}
    return _folder_of_links("cudnn", {**links, "libcudnn.so": library}, (library,))


def _folder_of_links(kind: str, links: dict[str, str], depends_on: Iterable[str]) -> str:
    """Make a folder of links in the user's cache, or take it from there.

    Args:
        kind: First part of the folder's name.
        links: Where each name in it leads to.
        depends_on: What the folder is made of; another size or time makes another folder.

    Raises:
        OSError: If no folder of this user's own can be made.
    """
    signatures = [_blas._signature(path) for path in depends_on]
    key = repr((FORMAT, signatures, sorted(links.items())))
    digest = hashlib.sha256(key.encode()).hexdigest()[:16]
    for root in _blas._cache_roots():
        if not _blas.is_private(root, create=True):
            continue
        folder = root / f"{kind}-{digest}"
        for _attempt in range(3):
            if _blas.is_private(folder):
                return str(folder)
            if folder.exists() or folder.is_symlink():
                _blas._discard(folder, root)
            made = Path(tempfile.mkdtemp(prefix="new-", dir=root))
            try:
                for name, target in links.items():
                    os.symlink(target, made / name)
                os.rename(made, folder)
            except OSError:
                continue  # another process was faster: its folder is looked at next
            finally:
                shutil.rmtree(made, ignore_errors=True)
    raise OSError(f"there is no folder of this user's own in which to keep {kind}")
