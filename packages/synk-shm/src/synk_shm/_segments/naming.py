"""Names of segments and lock files, in 30 characters: the limit of some supported systems.

README.md of the package says to whom they belong.
"""

from __future__ import annotations

import os
import re

RANDOM_BYTES = 5
_USER = "/synk.u."
_LIMIT = 30
_SEGMENT = re.compile(r"/synk\.([0-9a-f]{8})\.[0-9a-f]{10}")
_GIVEN = re.compile(r"(?:/synk\.u\.)?([^/\0]+)")
_LOCK = re.compile(r"/synk\.[0-9]+\.([0-9a-f]{8})\.lock")


def random_name(family: str) -> str:
    """Return a new unguessable segment name. (posix_ipc's own names repeat between processes.)"""
    return segment_name(family, os.urandom(RANDOM_BYTES))


def segment_name(family: str, noise: bytes) -> str:
    """Return the name made of these random bytes."""
    return f"/synk.{family}.{noise.hex()}"


def pack(name: str) -> bytes | str:
    """Return the name in nine bytes, if it is a segment's own; else as it is."""
    return bytes.fromhex(name[6:14] + name[15:]) if _SEGMENT.fullmatch(name) else name


def unpack(packed: bytes | str) -> str:
    """Return the name that `pack` packed. It may be any text: check it."""
    return packed if isinstance(packed, str) else segment_name(packed[:4].hex(), packed[4:])


def family_of(name: str) -> str | None:
    """Return the family in a segment's name; None if `name` is not of that form."""
    match = _SEGMENT.fullmatch(name)
    return match.group(1) if match else None


def lock_name(family: str) -> str:
    """Return the name of the lock file of one of this user's families."""
    return f"/synk.{os.geteuid()}.{family}.lock"


def family_of_lock(name: str) -> str | None:
    """Return the family whose lock file has this name; None if it is none of this user's."""
    match = _LOCK.fullmatch(name)
    return match.group(1) if match and name == lock_name(match.group(1)) else None


def is_segment(name: str) -> bool:
    """Return whether a system name (with its slash) is a segment's: random or given by a user."""
    return family_of(name) is not None or (is_user_name(name) and len(name) > len(_USER))


def is_user_name(name: str) -> bool:
    return name.startswith(_USER)


def system_name(name: str) -> str:
    """Return the system's name for a user's name, checked: posix_ipc crashes on a NUL.

    One with a slash at its start is a system name already, as `Segment.name` and `list()` show it.
    """
    if not isinstance(name, str):
        raise TypeError(f"a segment's name must be a str, got {type(name).__name__}")
    if _SEGMENT.fullmatch(name):
        return name
    match = _GIVEN.fullmatch(name)
    plain = match.group(1) if match else ""
    if plain in ("", ".", ".."):
        raise ValueError(f"a segment's name must be a word without NUL and '/', got {name!r}")
    length = len(plain.encode("utf-8"))
    if length > _LIMIT - len(_USER):
        raise ValueError(
            f"a segment's name may have {_LIMIT - len(_USER)} bytes (some systems allow no "
            f"more), got {length}: {plain!r}"
        )
    return _USER + plain
