"""Who else could write what Theano reads: compiled modules, and pickles that tell of them.

Theano loads both from its compile directory without a question, so whoever can put a file there, or
something else in the directory's place, has this user's programs run what they like.
"""

from __future__ import annotations

import grp
import os
import pwd
import stat
from typing import Any, Callable, Iterable, Iterator, List, NamedTuple, Optional

from synk_theano._warn import warn_user

ROOT = 0
_ENTER = stat.S_IXGRP | stat.S_IXOTH
_LONGEST_CHAIN = 40
"""Of symbolic links: more are a circle."""


class PathEntry(NamedTuple):
    """A folder, file or symbolic link on the way to where something is read.

    Attributes:
        path: of this place itself.
        uid, gid: its owner and group.
        mode: as in `os.stat_result.st_mode`.
    """

    path: str
    uid: int
    gid: int
    mode: int


def danger(
    places: Iterable[PathEntry], uid: int, is_private: Callable[[int], bool] = lambda _gid: False
) -> Optional[str]:
    """Why another user could change what user `uid` reads at the end of this way; None if none can.

    Args:
        places: from the root on, each in the folder before it.
        uid: who reads.
        is_private: whether a group has no other members than that user.
    """
    in_sticky = False
    for place in places:
        if place.uid not in (uid, ROOT):
            return f"{place.path} belongs to user {place.uid}"
        if stat.S_ISLNK(place.mode):
            continue  # it can be replaced by who may write into its folder: that was asked already
        group = place.mode & stat.S_IWGRP and not is_private(place.gid)
        others = place.mode & stat.S_IWOTH
        # There others can add files, but neither remove nor rename what is not theirs.
        sticky = stat.S_ISDIR(place.mode) and place.mode & stat.S_ISVTX
        in_sticky = bool((group or others) and sticky)
        if (group or others) and not sticky:
            who = "everybody" if others else f"group {place.gid}"
            return f"{place.path} can be written by {who} (mode {stat.S_IMODE(place.mode):04o})"
        if is_closed([place]):
            return None  # nobody else gets any further
    if in_sticky:
        return "other users can add files to its folder"
    return None


def is_closed(places: Iterable[PathEntry]) -> bool:
    """Whether there is a folder on the way that nobody but its owner (and root) can enter."""
    return any(stat.S_ISDIR(place.mode) and not place.mode & _ENTER for place in places)


def way_to(path: str) -> Iterator[PathEntry]:
    """Every place that the kernel comes by on its way to `path`, links and their targets included.

    It ends where something is not there, or cannot be looked at.
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
    """Whether this user alone is in the group: many systems give each user one of that kind, and
    let it write what the user makes."""
    try:
        group = grp.getgrgid(gid)
        user = pwd.getpwuid(os.geteuid())
    except (KeyError, OSError):
        return False
    return (
        gid == user.pw_gid and group.gr_name == user.pw_name and set(group.gr_mem) <= {user.pw_name}
    )


def cache_danger(folder: str) -> Optional[str]:
    """Why another user could change what Theano reads from its compile directory; None if none can.

    Looks at the way to it, and at the folders of modules in it.
    """
    uid = os.geteuid()
    way = list(way_to(folder))
    found = danger(way, uid, is_private_group)
    if found is not None or is_closed(way):
        return found
    try:
        with os.scandir(folder) as entries:
            for entry in entries:
                place = _entry(entry.path, entry.stat(follow_symlinks=False))
                found = danger([*way, place], uid, is_private_group)
                if found is not None:
                    return found
    except OSError:  # a folder that goes meanwhile: another process cleans up
        return None
    return None


def warn_of_cache() -> None:
    """Warn (`UserWarning`) if another user could change what Theano reads where it compiles.

    Costs a look at each folder on the way, and at each entry of the directory.
    """
    import theano

    folder: Any = theano.config.compiledir
    found = cache_danger(str(folder))
    if found is not None:
        warn_user(
            f"Theano's compile directory {folder} is not safe: {found}. Theano loads code from "
            f"there, so another user could have this program run theirs. Expected folders that "
            f"only user {os.geteuid()} can write: `chmod go-w` them, or choose another directory, "
            f"as in THEANO_FLAGS=base_compiledir=$HOME/.theano; if you do not trust what is in it, "
            f"remove it",
            UserWarning,
        )
