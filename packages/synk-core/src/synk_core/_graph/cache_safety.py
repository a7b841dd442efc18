"""Find out whether other users could write the compiled modules and pickles that the engine
reads.

Engines load both from their compile directory without a check, so a user who can put a file there,
or replace the directory, can make this user's programs run any code.
"""

from __future__ import annotations

import grp
import os
import pwd
import stat
from typing import Callable, Iterable, Iterator, List, NamedTuple, Optional

from synk_core import engine
from synk_core._warn import warn_user

ROOT = 0
_ENTER = stat.S_IXGRP | stat.S_IXOTH
_LONGEST_CHAIN = 40
"""Symbolic links on a path at most: more are a circle."""


class PathEntry(NamedTuple):
    """A folder, file or symbolic link on the path to a file.

    Attributes:
        path: path of this entry itself.
        uid, gid: its owner and group.
        mode: as in `os.stat_result.st_mode`.
    """

    path: str
    uid: int
    gid: int
    mode: int


def danger(
    entries: Iterable[PathEntry], uid: int, is_private: Callable[[int], bool] = lambda _gid: False
) -> Optional[str]:
    """Return how another user could change what user `uid` reads at the end of a path; else None.

    Args:
        entries: from the root on, each in the folder before it.
        uid: the user who reads.
        is_private: returns whether a group has no other members than that user.
    """
    in_sticky = False
    for entry in entries:
        if entry.uid not in (uid, ROOT):
            return f"{entry.path} belongs to user {entry.uid}"
        if stat.S_ISLNK(entry.mode):
            continue  # only users who can write its folder can replace it: checked already
        group = entry.mode & stat.S_IWGRP and not is_private(entry.gid)
        others = entry.mode & stat.S_IWOTH
        # In a sticky folder others can add files, but neither remove nor rename those of others.
        sticky = stat.S_ISDIR(entry.mode) and entry.mode & stat.S_ISVTX
        in_sticky = bool((group or others) and sticky)
        if (group or others) and not sticky:
            who = "everybody" if others else f"group {entry.gid}"
            return f"{entry.path} can be written by {who} (mode {stat.S_IMODE(entry.mode):04o})"
        if is_closed([entry]):
            return None  # no other user gets any further
    if in_sticky:
        return "other users can add files to its folder"
    return None


def is_closed(entries: Iterable[PathEntry]) -> bool:
    """Return whether a folder on the path can only be entered by its owner (and root)."""
    return any(stat.S_ISDIR(entry.mode) and not entry.mode & _ENTER for entry in entries)


def way_to(path: str) -> Iterator[PathEntry]:
    """Yield all entries that the kernel reads to resolve `path`, links and their targets included.

    It ends at an entry that does not exist, or cannot be read.
    """
    left: List[str] = [part for part in reversed(os.path.abspath(path).split("/")) if part]
    here, links = "/", 0
    yield _entry("/", os.lstat("/"))
    while left:
        part = left.pop()
        if part == "..":
            here = os.path.dirname(here)
            continue
        there = os.path.join(here, part)
        try:
            status = os.lstat(there)
            target = os.readlink(there) if stat.S_ISLNK(status.st_mode) else None
        except OSError:
            return
        yield _entry(there, status)
        if target is None:
            here = there
            continue
        links += 1
        if links > _LONGEST_CHAIN:
            return
        left += [piece for piece in reversed(target.split("/")) if piece not in ("", ".")]
        if target.startswith("/"):
            here = "/"


def _entry(path: str, status: os.stat_result) -> PathEntry:
    return PathEntry(path, status.st_uid, status.st_gid, status.st_mode)


def is_private_group(gid: int) -> bool:
    """Return whether this user is the group's only member: many systems give each user such a
    group, which can write the user's files."""
    try:
        group = grp.getgrgid(gid)
        user = pwd.getpwuid(os.geteuid())
    except (KeyError, OSError):
        return False
    return (
        gid == user.pw_gid and group.gr_name == user.pw_name and set(group.gr_mem) <= {user.pw_name}
    )


def cache_danger(folder: str) -> Optional[str]:
    """Return how another user could change what the engine loads from its cache; else None.

    Checks the path to it, and the folders of modules in it.
    """
    uid = os.geteuid()
    way = list(way_to(folder))
    found = danger(way, uid, is_private_group)
    if found is not None or is_closed(way):
        return found
    try:
        with os.scandir(folder) as modules:
            for module in modules:
                entry = _entry(module.path, module.stat(follow_symlinks=False))
                found = danger([*way, entry], uid, is_private_group)
                if found is not None:
                    return found
    except OSError:  # a folder is gone by now: another process cleans up
        return None
    return None


def warn_of_cache() -> None:
    """Warn (`UserWarning`) if another user could change the engine's compile directory.

    Costs a system call for each folder on the path, and for each entry of the directory.
    """
    folder = engine.cache_folder()
    found = cache_danger(folder)
    if found is not None:
        warn_user(
            f"{engine.TITLE}'s compile directory {folder} is not safe: {found}. {engine.TITLE} "
            f"loads code from there, so another user could make this program run theirs. Expected "
            f"folders that only user {os.geteuid()} can write: `chmod go-w` them, or choose "
            f"another directory, as in {engine.FLAGS}=base_compiledir=$HOME/.{engine.NAME}; if "
            f"you do not trust its content, remove it",
            UserWarning,
        )
