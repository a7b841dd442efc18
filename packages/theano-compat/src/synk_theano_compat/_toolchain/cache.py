"""Folders in this user's cache, each built once and then shared by all processes.

A folder is filled under another name and then renamed, so any number of processes may build it at
the same time. Each use checks that the folder belongs to this user alone, also by its mode.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Callable

FORMAT = 1
"""Version of the folders' contents; another one makes other folders."""

# Theano splits flags at blanks and commas; quotes and the like would reach the compiler.
PLAIN_PATH = re.compile(r"[\w./+@~=-]+", re.ASCII)

_ATTEMPTS = 3


class CacheError(OSError):
    """A folder of the cache could not be built."""


def cached_folder(
    kind: str,
    key: tuple[object, ...],
    fill: Callable[[Path], None],
    is_valid: Callable[[Path], bool] = Path.is_dir,
) -> Path:
    """Return the folder for a key; ``fill`` an empty one if it is missing or damaged.

    Its name begins with ``kind``. Its contents must depend on nothing but the key. CacheError if
    ``fill`` raises it, or if there is no place that only this user can write to.
    """
    digest = hashlib.sha256(repr((FORMAT, *key)).encode()).hexdigest()[:16]
    problem = "there is no folder that only this user can write to"
    for root in _roots():
        if not is_private(root, create=True):
            continue
        folder = root / f"{kind}-{digest}"
        for _ in range(_ATTEMPTS):
            if is_private(folder) and is_valid(folder):
                return folder
            if folder.exists() or folder.is_symlink():
                _remove(folder, root)
            new = Path(tempfile.mkdtemp(prefix="new-", dir=root))
            try:
                fill(new)
                os.rename(new, folder)
            except CacheError:
                raise
            except OSError as error:
                problem = str(error)  # perhaps another process was faster: look again
            finally:
                shutil.rmtree(new, ignore_errors=True)
    raise CacheError(problem)


def signature(path: str | Path) -> tuple[str, int, int]:
    """Return the real path, size and time of a file, which identify its contents in a key."""
    state = os.stat(path)
    return os.path.realpath(path), state.st_size, state.st_mtime_ns


def temporary_roots(name: str) -> Iterator[Path]:
    """Yield this user's folders below those for temporary files; use one only if it is private."""
    for folder in (tempfile.gettempdir(), "/tmp", "/var/tmp"):  # noqa: S108
        yield Path(folder) / f"{name}-{os.getuid()}"


def is_private(folder: Path, *, create: bool = False) -> bool:
    """Return whether this is a real folder of this user in which nobody else can write."""
    try:
        if create:
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        state = os.lstat(folder)
    except OSError:
        return False
    is_folder = (state.st_mode & 0o170000) == 0o040000
    return is_folder and state.st_uid == os.getuid() and not state.st_mode & 0o022


def _roots() -> Iterator[Path]:
    """Yield places for folders, the user's cache first, without paths that Theano would split."""
    base = os.environ.get("XDG_CACHE_HOME") or ""
    cache = Path(base) if os.path.isabs(base) else Path(os.path.expanduser("~/.cache"))
    for root in (cache / "synk-theano", *temporary_roots("synk-theano")):
        if root.is_absolute() and PLAIN_PATH.fullmatch(str(root)):
            yield root


def _remove(folder: Path, root: Path) -> None:
    # Renamed first, so that no process sees it half removed.
    aside = Path(tempfile.mkdtemp(prefix="old-", dir=root))
    with contextlib.suppress(OSError):
        os.rename(folder, aside / "folder")
    shutil.rmtree(aside, ignore_errors=True)
