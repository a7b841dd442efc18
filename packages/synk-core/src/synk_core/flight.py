"""Flight records: the acts of every rank before a failure, one file of JSON for each failure.

They lie in the folder that ``SYNKHRONOS_FLIGHT_DIR`` names, else in ``synkhronos/flight`` of the
user's cache. `synkhronos flight` prints them. Only their user can read them.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import re
import stat
import time
from pathlib import Path
from typing import Any, Dict, List, Mapping, Union

from synk_core.files import make_folder, whole_file

__all__ = ["KEPT", "VERSION", "files", "folder", "load", "write"]

VERSION = 1
"""Of what is in the files."""

KEPT = 50
"""Files that are kept; older ones give way."""

_numbers = itertools.count(1)
_NAME = re.compile(r"\d{8}-\d{6}-\d+-\d{4,}\.json")  # as `write` names them


def folder() -> Path:
    """Return the folder of the records, which may not exist yet."""
    named = os.environ.get("SYNKHRONOS_FLIGHT_DIR")
    if named:
        return Path(named)
    cache = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
    return Path(cache) / "synkhronos" / "flight"


def files() -> List[Path]:
    """Return all records, newest first, without links and other files in their folder."""
    found = [path for path in folder().glob("*.json") if _NAME.fullmatch(path.name)]
    own = [path for path in found if stat.S_ISREG(path.lstat().st_mode)]
    return sorted(own, key=lambda path: path.name, reverse=True)


def load(path: Union[str, os.PathLike[str]]) -> Dict[str, Any]:
    """Read a record.

    Raises:
        OSError: it cannot be read.
        ValueError: it is no flight record, or one of another version.
    """
    if Path(path).exists() and not Path(path).is_file():
        raise ValueError(f"{path}: expected a flight record, got no file")
    try:
        content = json.loads(Path(path).read_text("utf-8"))
    except RecursionError as error:
        raise ValueError(f"{path}: expected a flight record, got no JSON ({error})") from error
    version = content.get("version") if isinstance(content, dict) else None
    if version != VERSION:
        raise ValueError(
            f"{path}: got version {version!r}, expected a flight record of version {VERSION}"
        )
    record: Dict[str, Any] = content
    return record


def write(content: Mapping[str, Any]) -> Path:
    """Write a record, and remove the oldest beyond `KEPT`; return its path.

    Raises:
        OSError: it cannot be written, or its folder is not this user's alone; nothing is left
            then.
    """
    place = _own_folder()
    moment = time.strftime("%Y%m%d-%H%M%S", time.gmtime())
    path = place / f"{moment}-{os.getpid()}-{next(_numbers):04d}.json"
    text = json.dumps(content, indent=1)
    with whole_file(path, follow=False) as file:
        file.write(text.encode())
    for old in files()[KEPT:]:
        with contextlib.suppress(OSError):
            old.unlink()
    return path


def _own_folder() -> Path:
    """Return the folder, made if necessary, if no other user can change its contents.

    Raises:
        OSError: it cannot be made, is another user's, or others may write in it.
    """
    place = folder().absolute()
    with contextlib.suppress(FileExistsError):
        make_folder(place)
    found = place.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid():
        raise PermissionError(
            f"{place} is not a folder of this user: no flight record is written there; remove it, "
            f"or name another one with SYNKHRONOS_FLIGHT_DIR"
        )
    # Not changed: it may be a folder of other things, too, which others are to write in.
    if stat.S_IMODE(found.st_mode) & 0o022:
        raise PermissionError(
            f"other users may write in {place}: no flight record is written there; name another "
            f"folder with SYNKHRONOS_FLIGHT_DIR, or take that right away: chmod go-w {place}"
        )
    return place
