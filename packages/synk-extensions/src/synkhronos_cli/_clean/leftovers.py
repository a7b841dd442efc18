"""What dead processes of this user left behind: segments, socket folders, compile locks.

Anything that might be in use, or cannot be checked from here, does not count as stale. Other users'
files are ignored.
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

from synkhronos_cli._probe import ask

SEGMENT, SOCKETS, LOCK, CACHE = "segment", "socket folder", "compile lock", "compiled modules"
PROBE_TIMEOUT_S = 60.0
# Age in seconds from which an empty folder or lock counts as stale: a new one may be in the making.
_GRACE_S = 3600.0
_LONG = 67  # bytes; as in synk_comm._system.folder
_SHORT = ("/tmp", "/var/tmp", "/dev/shm")  # noqa: S108 - only folders of mode 0700 are read

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
    """Something that no process uses any more.

    Args:
        kind: ``segment``, ``socket folder``, ``compile lock`` or ``compiled modules``.
        name: Its path; of a segment its name.
        why: The evidence that no process uses it.
        nbytes: Bytes of memory or disk that it takes.
        removable: False if it is only reported, because it cannot be checked from here.
    """

    kind: str
    name: str
    why: str
    nbytes: int = 0
    removable: bool = True


def find_segments() -> tuple[list[Leftover], str]:
    """Return the segments of dead families of processes, and an error message or nothing."""
    answer = ask(_LIST_SEGMENTS, PROBE_TIMEOUT_S)
    why = "all processes of the family that made it have ended"
    found = [Leftover(SEGMENT, name, why, n) for name, n in answer.get("segments", [])]
    return found, answer.problem


def remove_segments() -> str:
    """Remove the segments of dead families; return an error message or nothing."""
    return ask(_REMOVE_SEGMENTS, PROBE_TIMEOUT_S).problem


# ---- socket folders ------------------------------------------------------------------------------


def find_socket_folders() -> list[Leftover]:
    """Return the folders of synk-comm's groups in which no socket has a listener."""
    usual = tempfile.gettempdir()
    # If its path is too long for sockets, synk-comm uses a shorter one.
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
        return None  # its group may be starting
    if not all(_is_refused(one) for one in sockets):
        return None
    # Checked last: a socket that refuses may be bound already, and about to listen.
    bound = _bound_sockets()
    if bound is None or any(str(one) in bound for one in sockets):
        return None
    return Leftover(SOCKETS, str(path), "no process listens at its sockets")


def _bound_sockets() -> set[str] | None:
    """Return the paths of all bound Unix sockets of this machine; None if they cannot be read."""
    try:
        lines = Path("/proc/net/unix").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return None
    return {fields[7] for fields in (line.split(maxsplit=7) for line in lines) if len(fields) > 7}


def _is_refused(path: Path) -> bool:
    """Return whether a socket refuses connections, also one of another container."""
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
        return False  # unknown
    return False


# ---- Theano's folders ----------------------------------------------------------------------------


def compile_folders() -> list[Path]:
    """Return Theano's folders of compiled modules, without importing Theano.

    The import might wait for the very lock that is searched.
    """
    settings = _theano_settings()
    named = settings.get("compiledir")
    if named:
        return [Path(os.path.expanduser(named))]
    default = os.path.join(os.environ.get("HOME") or os.path.expanduser("~"), ".theano")
    base = Path(os.path.expanduser(settings.get("base_compiledir") or default))
    return [path for path in _entries(base) if path.name.startswith("compiledir_")]


def _theano_settings() -> dict[str, str]:
    """Return Theano's settings in its files, overridden by those in THEANO_FLAGS."""
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
    """Return the compile locks whose owners are dead, or on another machine."""
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
        return Leftover(LOCK, str(folder), "no process holds it") if _is_old(status) else None
    if host != socket.gethostname():
        why = f"held by process {number} of {host}, which cannot be checked from here"
        return Leftover(LOCK, str(folder), why, removable=False)
    if _is_alive(number):
        return None
    return Leftover(LOCK, str(folder), f"process {number}, which held it, has ended")


def find_compiled_modules() -> list[Leftover]:
    """Return the folders of compiled modules into which no process is compiling.

    Those that a living process uses are not removable: it could not compile its next function.
    """
    found = []
    for folder in compile_folders():
        status = _status(folder)
        if status is None or not stat.S_ISDIR(status.st_mode):
            continue
        lock = _judge_lock(folder / "lock_dir")
        if not (folder / "lock_dir").exists() or (lock is not None and lock.removable):
            size = sum(_size(path) for path in folder.rglob("*"))
            obstacle = _obstacle(folder)
            why = obstacle or "Theano compiles again what it needs"
            found.append(Leftover(CACHE, str(folder), why, size, removable=not obstacle))
    return found


def _obstacle(folder: Path) -> str:
    """Return why a folder of compiled modules cannot be removed; nothing if it can."""
    user = _user_of(folder)
    if user is not None:
        return f"process {user} uses it"
    if not folder.name.startswith("compiledir_"):  # the user named it, and may use it for more
        others = [path.name for path in _entries(folder) if not _OF_THEANO.fullmatch(path.name)]
        if others:
            return f"{others[0]} in it is not Theano's"
    return ""


def _user_of(folder: Path) -> int | None:
    """Return a process that has loaded a file of the folder, as every import of Theano does."""
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
    """Remove a folder or lock, if it is still stale; return an error message or nothing."""
    path = Path(one.name)
    if one.kind == LOCK and _judge_lock(path) != one:
        return "it has a new owner"
    if one.kind == SOCKETS and _judge_sockets(path) is None:
        return "a process listens at its sockets now"
    if one.kind == CACHE and (why := _obstacle(path)):
        return why
    try:
        if one.kind == SOCKETS:
            for entry in filter(_is_refused, _entries(path)):
                entry.unlink()
            path.rmdir()  # fails if there is anything else in it
            return ""
        # Renamed first: a process that comes meanwhile makes a new one, which stays whole.
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
    """Return a file's status; None if it does not exist or is another user's."""
    try:
        status = path.lstat()
    except OSError:
        return None
    return status if status.st_uid == os.geteuid() else None


def _size(path: Path) -> int:
    """Return a file's length; 0 if it does not exist or is no regular file."""
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
