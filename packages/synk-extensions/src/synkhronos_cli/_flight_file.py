"""Flight records as files: where they lie, and what is in them, checked.

A record may have been sent by somebody: whatever is in it, reading ends in a record or in a
`ValueError`, and what is printed of it does nothing to the terminal.
"""

from __future__ import annotations

import datetime as dt
import json
import os
import re
import stat
from pathlib import Path
from typing import Any, Optional

VERSION = 1
MOST_BYTES = 64 << 20
"""A record of hundreds of ranks has a few."""

_NAME = re.compile(r"\d{8}-\d{6}-\d+-\d{4,}\.json")
_NUMBER = (int, float)
_ACT = {
    "order": int,
    "act": str,
    "bytes": int,
    "rows": (int, type(None)),
    "began_s": _NUMBER,
    "seconds": (*_NUMBER, type(None)),
    "outcome": str,
}
_RECORD = {
    "when": str,
    "program": [str],
    "pid": int,
    "size": int,
    "master": int,
    "error": {"type": str, "message": str, "rank": (int, type(None))},
    "ranks": [{"rank": int, "pid": int, "doing": str, "records": [_ACT]}],
    "stacks": {str: str},
}
"""What is printed of a record, and of which types it is."""

_CONTROLS = {code: f"\\x{code:02x}" for code in (*range(32), *range(127, 160))}
del _CONTROLS[ord("\n")], _CONTROLS[ord("\t")]


def folder() -> Path:
    """The folder of the records, as `synk_theano.flight.folder()` has it."""
    named = os.environ.get("SYNKHRONOS_FLIGHT_DIR")
    if named:
        return Path(named)
    cache = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
    return Path(cache) / "synkhronos" / "flight"


def files() -> list[Path]:
    """All records, newest first; links and other files in their folder are none."""
    found = [path for path in folder().glob("*.json") if _NAME.fullmatch(path.name)]
    own = [path for path in found if stat.S_ISREG(path.lstat().st_mode)]
    return sorted(own, key=lambda path: path.name, reverse=True)


def load(path: Path) -> dict[str, Any]:
    """Read a record.

    Raises:
        OSError: it cannot be read.
        ValueError: it is no flight record, or one of another version.
    """
    try:
        record = json.loads(_content(path))
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{path}: expected a flight record, got no JSON ({error})") from error
    version = record.get("version") if isinstance(record, dict) else None
    if version != VERSION:
        raise ValueError(
            f"{path}: got version {str(version)[:40]!r}, expected a flight record of version "
            f"{VERSION}"
        )
    _check(record, _RECORD, f"{path}: the record")
    try:
        local_time(record["when"])
    except (ValueError, OverflowError, OSError) as error:
        raise ValueError(f"{path}: the record's 'when' is no time ({error})") from error
    found: dict[str, Any] = record
    return found


def local_time(text: str) -> str:
    """A record's time, as people read it here."""
    # Before Python 3.11 only what isoformat() writes can be read, which this is.
    return dt.datetime.fromisoformat(text).astimezone().strftime("%Y-%m-%d %H:%M:%S")


def printable(value: Any) -> Any:
    """The same without control characters, in all that it is made of: they show as ``\\x1b``."""
    if isinstance(value, str):
        return value.translate(_CONTROLS)
    if isinstance(value, list):
        return [printable(item) for item in value]
    if isinstance(value, dict):
        return {printable(key): printable(item) for key, item in value.items()}
    return value


def _content(path: Path) -> str:
    """The text of a file; nothing else is opened, as pipes and devices may do anything."""
    mode: Optional[int] = path.stat().st_mode
    if mode is None or not stat.S_ISREG(mode):
        raise ValueError("it is no file")
    with open(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb") as file:
        if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            raise ValueError("it is no file")
        content = file.read(MOST_BYTES + 1)
    if len(content) > MOST_BYTES:
        raise ValueError(f"it has more than {MOST_BYTES} bytes")
    return content.decode("utf-8")


def _check(value: Any, shape: Any, what: str) -> None:
    """
    Raises:
        ValueError: a value is not made as `shape` says.
    """
    if isinstance(shape, list):
        _require(value, list, what)
        for place, item in enumerate(value):
            _check(item, shape[0], f"{what}[{place}]")
    elif isinstance(shape, dict):
        _require(value, dict, what)
        for key, inner in shape.items():
            if key is str:
                for item in value.values():
                    _require(item, inner, what)
            elif key not in value:
                raise ValueError(f"{what} has no {key!r}")
            else:
                _check(value[key], inner, f"{what}, {key!r},")
    else:
        _require(value, shape, what)


def _require(value: Any, kinds: Any, what: str) -> None:
    if not isinstance(value, kinds):
        kind = type(value).__name__
        raise ValueError(f"{what} is of type {kind}, which it cannot be")  # noqa: TRY004 - the file is wrong
