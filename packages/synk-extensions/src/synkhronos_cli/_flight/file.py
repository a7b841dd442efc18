"""Find flight records, and read them with all checks.

A record may come from anywhere: reading it gives a record or raises `ValueError`, whatever the
file contains, and nothing printed from it can control the terminal. `synk_core.flight`, which
writes the records, cannot be imported here: it needs Theano.
"""

from __future__ import annotations

import datetime as dt
import json
import os
import re
import stat
from pathlib import Path
from typing import Any

VERSION = 1
MOST_BYTES = 64 << 20
"""Bytes that a file may have; a record of hundreds of ranks has a few MiB."""

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
    "host": str,
    "size": int,
    "master": int,
    "error": {"type": str, "message": str, "rank": (int, type(None))},
    "ranks": [{"rank": int, "pid": int, "doing": str, "records": [_ACT]}],
    "stacks": {str: str},
}
"""The parts of a record that are printed, and their types."""

_CONTROLS = {code: f"\\x{code:02x}" for code in (*range(32), *range(127, 160))}
del _CONTROLS[ord("\n")], _CONTROLS[ord("\t")]


def folder() -> Path:
    """Return the folder of the records, as `synk_core.flight.folder()` does."""
    named = os.environ.get("SYNKHRONOS_FLIGHT_DIR")
    if named:
        return Path(named)
    cache = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
    return Path(cache) / "synkhronos" / "flight"


def files() -> list[Path]:
    """Return all records, newest first, without links and other files in the folder."""
    found = [path for path in folder().glob("*.json") if _NAME.fullmatch(path.name)]
    own = [path for path in found if stat.S_ISREG(path.lstat().st_mode)]
    return sorted(own, key=lambda path: path.name, reverse=True)


def load(path: Path) -> dict[str, Any]:
    """Read a record.

    Raises:
        OSError: It cannot be read.
        ValueError: It is not a flight record, or one of another version.
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
    record.setdefault("host", "")  # before there were several
    _check(record, _RECORD, f"{path}: the record")
    try:
        local_time(record["when"])
    except (ValueError, OverflowError, OSError) as error:
        raise ValueError(f"{path}: the record's 'when' is not a time ({error})") from error
    found: dict[str, Any] = record
    return found


def local_time(text: str) -> str:
    """Return a record's time in this machine's time zone, for people."""
    # Before Python 3.11, only the output of isoformat() can be parsed, which this is.
    return dt.datetime.fromisoformat(text).astimezone().strftime("%Y-%m-%d %H:%M:%S")


def printable(value: Any) -> Any:
    """Return the value with all control characters in it, at any depth, shown as ``\\x1b``."""
    if isinstance(value, str):
        return value.translate(_CONTROLS)
    if isinstance(value, list):
        return [printable(item) for item in value]
    if isinstance(value, dict):
        return {printable(key): printable(item) for key, item in value.items()}
    return value


def _content(path: Path) -> str:
    """Return the text of a regular file; pipes and devices are not opened."""
    if not stat.S_ISREG(path.stat().st_mode):
        raise ValueError("it is not a file")
    with open(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb") as file:
        if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            raise ValueError("it is not a file")
        content = file.read(MOST_BYTES + 1)
    if len(content) > MOST_BYTES:
        raise ValueError(f"it has more than {MOST_BYTES} bytes")
    return content.decode("utf-8")


def _check(value: Any, shape: Any, what: str) -> None:
    """Check that a value has the structure of `shape`.

    Raises:
        ValueError: It does not.
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
        names = [kind.__name__ for kind in (kinds if isinstance(kinds, tuple) else (kinds,))]
        raise ValueError(  # noqa: TRY004 - the file is wrong
            f"{what}: got type {type(value).__name__}, expected {' or '.join(names)}"
        )
