"""What dead processes of this user left behind: segments, socket folders, compile locks.

Nothing is taken for stale that might be in use: of what cannot be known, the answer is no. Other
users' files are not looked at.
"""

from __future__ import annotations

import configparser
import os
import re
import shutil
import socket
import stat
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from ._probe import ask

SEGMENT, SOCKETS, LOCK, CACHE = "segment", "socket folder", "compile lock", "compiled modules"
PROBE_TIMEOUT_S = 60.0
# So long a folder or lock without contents may be one that is just being made.
_GRACE_S = 3600.0
_LONG = 67  # bytes; as synk_comm._system.folder has it
_SHORT = ("/tmp", "/var/tmp", "/dev/shm")  # noqa: S108 - only what is 0700 is looked at

_OF_THEANO = re.compile(
    r"tmp.{8}|cutils_ext|lazylinker_ext|scan_perform|lock_dir|__init__\.py|__pycache__"
)

_LIST_SEGMENTS = """
import synk_shm
answer(segments=[[i.name, i.nbytes] for i in synk_shm.list() if not i.alive and not i.mine])
"""
_REMOVE_SEGMENTS = "import synk_shm\nanswer(removed=synk_shm.cleanup())\n"


@dataclass(frozen=True)
class Leftover:
    """Something that nobody uses any more.

    Args:
        kind: ``segment``, ``socket folder``, ``compile lock`` or ``compiled modules``.
        name: Its path; of a segment its name.
        why: How it is known that nobody uses it.
        nbytes: How much memory or room it takes.
        removable: False if it is only told of, since nobody can know from here.
    """

    kind: str
    name: str
    why: str
    nbytes: int = 0
    removable: bool = True


def find_segments() -> tuple[list[Leftover], str]:
    """Return the segments of dead families of processes, and what went wrong, if anything."""
    answer = ask(_LIST_SEGMENTS, PROBE_TIMEOUT_S)
    why = "no process of the family that made it is left"
    found = [Leftover(SEGMENT, name, why, n) for name, n in answer.get("segments", [])]
    return found, answer.problem


def remove_segments() -> str:
    """Remove the segments of dead families; return what went wrong, if anything."""
    return ask(_REMOVE_SEGMENTS, PROBE_TIMEOUT_S).problem


# ---- socket folders ------------------------------------------------------------------------------


def find_socket_folders() -> list[Leftover]:
    """Return the folders of groups of synk-comm in which no socket has a listener."""
    usual = tempfile.gettempdir()
    # Where its path is too long for sockets, synk-comm makes its folders in a shorter place.
    places = [usual, *_SHORT] if len(os.fsencode(usual)) > _LONG else [usual]
    found = (_judge_sockets(path) for place in places for path in _entries(Path(place)))
    return [one for one in found if one is not None]


def _judge_sockets(path: Path) -> Leftover | None:
    if not path.name.startswith("synk-comm-"):
        return None
    status = _status(path)
    if status is None or not stat.S_ISDIR(status.st_mode):
        return None
    if stat.S_IMODE(status.st_mode) != 0o700:
        return None
    sockets = _entries(path)
    if not sockets and not _is_old(status):
        return None  # its group may not have begun
    if not all(_is_refused(one) for one in sockets):
        return None
    # After that: what refuses may be bound already, and about to listen.
    bound = _bound_sockets()
    if bound is None or any(str(one) in bound for one in sockets):
        return None
    return Leftover(SOCKETS, str(path), "nobody listens at its sockets")


def _bound_sockets() -> set[str] | None:
    """The paths that this machine's Unix sockets are bound to; None if it does not tell."""
    try:
        lines = Path("/proc/net/unix").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return None
    return {fields[7] for fields in (line.split(maxsplit=7) for line in lines) if len(fields) > 7}


def _is_refused(path: Path) -> bool:
    """Whether a socket's owner is gone. (It may be another container's, which is not listed.)"""
    status = _status(path)
    if status is None or not stat.S_ISSOCK(status.st_mode):
        return False  # files and folders refuse connections, too
    try:
        with socket.socket(socket.AF_UNIX) as probe:
            probe.settimeout(1)
            probe.connect(str(path))
    except ConnectionRefusedError:
        return True
    except OSError:
        return False  # nothing that can be known
    return False


# ---- Theano's folders ----------------------------------------------------------------------------


def compile_folders() -> list[Path]:
    """Return the folders in which Theano keeps compiled modules, without asking Theano.

    Importing it might wait for the very lock that is looked for.
    """
    settings = _theano_settings()
    named = settings.get("compiledir")
    if named:
        return [Path(os.path.expanduser(named))]
    default = os.path.join(os.environ.get("HOME") or os.path.expanduser("~"), ".theano")
    base = Path(os.path.expanduser(settings.get("base_compiledir") or default))
    return [path for path in _entries(base) if path.name.startswith("compiledir_")]


def _theano_settings() -> dict[str, str]:
    """The settings of Theano in its files and then in THEANO_FLAGS, which win."""
    files = os.environ.get("THEANORC", os.path.expanduser("~/.theanorc")).split(os.pathsep)
    parser = configparser.RawConfigParser()
    try:
        parser.read([os.path.expanduser(name) for name in files], encoding="utf-8")
        settings = dict(parser["global"]) if parser.has_section("global") else {}
    except (configparser.Error, UnicodeDecodeError):
        settings = {}
    for part in os.environ.get("THEANO_FLAGS", "").split(","):
        name, _, value = part.partition("=")
        settings[name.strip()] = value.strip()
    return settings


def find_locks() -> list[Leftover]:
    """Return the compile locks whose owners are dead, or are on another machine."""
    found = (_judge_lock(folder / "lock_dir") for folder in compile_folders())
    return [one for one in found if one is not None]


def _judge_lock(folder: Path) -> Leftover | None:
    status = _status(folder)
    if status is None or not stat.S_ISDIR(status.st_mode):
        return None
    try:
        owner = (folder / "lock").read_text(encoding="utf-8", errors="replace").strip()
        pid, _, host = owner.split("_", 2)
        number = int(pid)
    except (OSError, ValueError):
        # Theano makes the folder first, then writes the owner.
        return Leftover(LOCK, str(folder), "it has no owner") if _is_old(status) else None
    if host != socket.gethostname():
        why = f"held by process {number} of {host}, which cannot be seen from here"
        return Leftover(LOCK, str(folder), why, removable=False)
    if _is_alive(number):
        return None
    return Leftover(LOCK, str(folder), f"process {number}, which held it, is gone")


def find_compiled_modules() -> list[Leftover]:
    """Return the folders of compiled modules that nobody compiles into at this moment.

    Those of a living process are not removable: it would find its next function nowhere to go.
    """
    found = []
    for folder in compile_folders():
        status = _status(folder)
        if status is None or not stat.S_ISDIR(status.st_mode):
            continue
        lock = _judge_lock(folder / "lock_dir")
        if not (folder / "lock_dir").exists() or (lock is not None and lock.removable):
            size = sum(_size(path) for path in folder.rglob("*"))
            why = _why_it_stays(folder)
            good = why or "Theano compiles anew what it needs"
            found.append(Leftover(CACHE, str(folder), good, size, removable=not why))
    return found


def _why_it_stays(folder: Path) -> str:
    """Why a folder of compiled modules cannot be removed; nothing if it can."""
    user = _user_of(folder)
    if user is not None:
        return f"process {user} uses it"
    if not folder.name.startswith("compiledir_"):  # a user has named it, and may have it for more
        others = [path.name for path in _entries(folder) if not _OF_THEANO.fullmatch(path.name)]
        if others:
            return f"{others[0]} in it is not Theano's"
    return ""


def _user_of(folder: Path) -> int | None:
    """A process that has loaded something from a folder, as all do that import Theano."""
    begin = f" {os.path.realpath(folder)}/"
    for entry in _entries(Path("/proc")):
        if entry.name.isdigit():
            try:
                if begin in (entry / "maps").read_text(encoding="utf-8", errors="replace"):
                    return int(entry.name)
            except OSError:
                continue  # it has ended, or is another user's
    return None


def remove(one: Leftover) -> str:
    """Remove a folder or lock, if it is still stale; return what went wrong, if anything."""
    path = Path(one.name)
    if one.kind == LOCK and _judge_lock(path) != one:
        return "it has a new owner"
    if one.kind == SOCKETS and _judge_sockets(path) is None:
        return "somebody listens at its sockets now"
    if one.kind == CACHE and (why := _why_it_stays(path)):
        return why
    try:
        if one.kind == SOCKETS:
            for entry in filter(_is_refused, _entries(path)):
                entry.unlink()
            path.rmdir()  # not if there is anything else in it
            return ""
        # Renamed first: whoever comes meanwhile makes a new one, and loses nothing of it.
        aside = path.with_name(f"{path.name}.{os.getpid()}.stale")
        path.rename(aside)
        shutil.rmtree(aside)
    except OSError as error:
        return str(error)
    return ""


# ---- files ---------------------------------------------------------------------------------------


def _entries(folder: Path) -> list[Path]:
    try:
        return sorted(folder.iterdir())
    except OSError:
        return []


def _status(path: Path) -> os.stat_result | None:
    """A file's status; None if it is not there, or another user's."""
    try:
        status = path.lstat()
    except OSError:
        return None
    return status if status.st_uid == os.geteuid() else None


def _size(path: Path) -> int:
    """A file's length; 0 for what is none, or is gone."""
    try:
        status = path.lstat()
    except OSError:
        return 0
    return status.st_size if stat.S_ISREG(status.st_mode) else 0


def _is_old(status: os.stat_result) -> bool:
    return time.time() - status.st_mtime > _GRACE_S


def _is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except OSError:
        return True  # another user's
    return True
