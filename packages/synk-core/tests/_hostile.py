"""Another user of the same machine, who means harm: run as ``python _hostile.py <pids> <folders>``.

It becomes user 65534, then tries, until its standard input ends, whatever that user can try on
processes and files of a run that is not theirs. It prints what it has managed, as JSON: a list that
should be empty.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import json
import os
import resource
import secrets
import select
import signal
import socket
import sys
from typing import Any, Callable, List

NOBODY = 65534
VICTIM = 0
EVERYTHING = [signal.SIGTERM, signal.SIGINT, signal.SIGSTOP, signal.SIGHUP, signal.SIGRTMIN + 1, 0]
PTRACE_ATTACH, PTRACE_SEIZE = 16, 0x4206
AT_FDCWD, RENAME_EXCHANGE = -100, 2
PRIVATE = [
    "mem",
    "maps",
    "smaps",
    "environ",
    "auxv",
    "fd",
    "fdinfo",
    "map_files",
    "cwd",
    "exe",
    "io",
]

libc = ctypes.CDLL(None, use_errno=True)
managed: List[str] = []
tried = [0]
squatted: List[str] = []


def refused(what: str, act: Callable[..., Any], *arguments: Any) -> None:
    """Try something that must fail."""
    tried[0] += 1
    try:
        result = act(*arguments)
    except (OSError, ValueError):
        return
    managed.append(f"{what}: {result!r}")


def number(result: int) -> int:
    if result < 0:
        raise OSError(ctypes.get_errno(), "refused")
    return result


def look_at_process(pid: int) -> None:
    if not os.path.exists(f"/proc/{pid}"):
        return
    for sign in EVERYTHING:
        refused(f"signal {sign}", os.kill, pid, sign)
    for name in PRIVATE:
        path = f"/proc/{pid}/{name}"
        look = os.listdir if name in ("fd", "fdinfo", "map_files") else os.readlink
        if name not in ("cwd", "exe", "fd", "fdinfo", "map_files"):
            look = _first_bytes
        refused(path, look, path)
    for fd in range(30):
        refused(f"fd {fd}", os.open, f"/proc/{pid}/fd/{fd}", os.O_RDWR | os.O_NONBLOCK)
    for request in (PTRACE_ATTACH, PTRACE_SEIZE):
        refused("ptrace", lambda *words: number(libc.ptrace(*words)), request, pid, None, None)
    refused("read memory", _read_memory, pid)
    refused("priority", os.setpriority, os.PRIO_PROCESS, pid, 19)
    refused("cores", os.sched_setaffinity, pid, {0})
    refused("limits", resource.prlimit, pid, resource.RLIMIT_NOFILE, (0, 0))
    with contextlib.suppress(OSError):
        pidfd = os.pidfd_open(pid)
        refused("pidfd signal", signal.pidfd_send_signal, pidfd, signal.SIGTERM)
        for fd in range(20):
            refused("pidfd_getfd", lambda *words: number(libc.syscall(*words)), 438, pidfd, fd, 0)
        os.close(pidfd)


def _first_bytes(path: str) -> bytes:
    with open(path, "rb") as file:
        found = file.read(8)
    if not found:
        raise OSError("nothing to see")
    return found


def _read_memory(pid: int) -> int:
    buffer = ctypes.create_string_buffer(8)

    class Vector(ctypes.Structure):
        _fields_ = [("base", ctypes.c_void_p), ("length", ctypes.c_size_t)]

    here = Vector(ctypes.addressof(buffer), 8)
    there = Vector(id(None), 8)
    return number(libc.process_vm_readv(pid, ctypes.byref(here), 1, ctypes.byref(there), 1, 0))


def look_at_file(path: str) -> None:
    """Something that may be the victim's, or gone."""
    try:
        status = os.lstat(path)
    except OSError:
        return
    if status.st_uid != VICTIM:
        return
    for flags in (os.O_RDONLY, os.O_RDWR, os.O_WRONLY | os.O_TRUNC, os.O_PATH):
        if flags == os.O_PATH:
            refused(f"{path} by O_PATH", _through_path, path)
        else:
            refused(path, os.open, path, flags | os.O_NONBLOCK)
    refused(f"unlink {path}", os.unlink, path)
    refused(f"rename {path}", os.rename, path, path + ".mine")
    refused(f"replace {path}", _exchange, _own_file(path), path)
    refused(f"chmod {path}", os.chmod, path, 0o777)
    refused(f"chown {path}", os.chown, path, NOBODY, NOBODY)
    refused(f"utime {path}", os.utime, path)
    refused(f"truncate {path}", os.truncate, path, 0)
    refused(f"list {path}", os.listdir, path)
    refused(f"make in {path}", os.mkdir, path + "/mine")


def _through_path(path: str) -> int:
    fd = os.open(path, os.O_PATH)
    try:
        return os.open(f"/proc/self/fd/{fd}", os.O_RDWR | os.O_NONBLOCK)
    finally:
        os.close(fd)


def _exchange(mine: str, path: str) -> int:
    """Nothing happens where the victim has removed it meanwhile, as a rename would make it ours."""
    here, there = os.fsencode(mine), os.fsencode(path)
    return number(libc.renameat2(AT_FDCWD, here, AT_FDCWD, there, RENAME_EXCHANGE))


def _own_file(path: str) -> str:
    mine = os.path.join(os.path.dirname(path), f"mine-{os.getpid()}")
    if mine not in squatted:
        os.close(os.open(mine, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o666))
        squatted.append(mine)
    return mine


def look_at_folder(folder: str) -> None:
    for name in os.listdir(folder):
        if not name.startswith("synk"):
            continue
        path = os.path.join(folder, name)
        look_at_file(path)
        for inner in ("desk", "0-1", "0-2", "1-2"):
            refused(f"connect to {path}/{inner}", _connect, f"{path}/{inner}")


def _connect(path: str) -> bool:
    with socket.socket(socket.AF_UNIX) as caller:
        caller.settimeout(0.5)
        caller.connect(path)
    return True


def squat(temporary: str, cache: str) -> None:
    """Have names that the victim may want, before it does, with whatever is a nuisance there."""
    families = {name.split(".")[2] for name in os.listdir("/dev/shm") if name.startswith("synk.0.")}
    families |= {secrets.token_hex(4) for _ in range(3)}
    for family in families:
        _leave(f"/dev/shm/synk.{VICTIM}.{family}.lock.mine", "lease")
        _leave(f"/dev/shm/synk.{VICTIM}.{secrets.token_hex(4)}.lock", "lease")
        _leave(f"/dev/shm/synk.{VICTIM}.{secrets.token_hex(4)}.lock", "pipe")
        _leave(f"/dev/shm/synk.{VICTIM}.{secrets.token_hex(4)}.lock", "folder")
        _leave(f"/dev/shm/synk.{VICTIM}.{secrets.token_hex(4)}.lock", "link")
        _leave(f"/dev/shm/synk.{family}.{secrets.token_hex(5)}", "lease")
        _leave(f"/dev/shm/synk.{family}.{secrets.token_hex(5)}", "pipe")
    for _ in range(3):
        _leave(f"{temporary}/synk-comm-{secrets.token_urlsafe(6)}", "folder")
    _leave(f"{cache}/synkhronos", "folder")


def _leave(path: str, kind: str) -> None:
    try:
        if kind == "folder":
            os.mkdir(path)
            os.chmod(path, 0o777)
        elif kind == "pipe":
            os.mkfifo(path)
        elif kind == "link":
            os.symlink("/etc/passwd", path)
        else:
            fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o666)
            fcntl.flock(fd, fcntl.LOCK_EX)
            fcntl.fcntl(fd, fcntl.F_SETLEASE, fcntl.F_WRLCK)
    except OSError:
        return
    squatted.append(path)


def main() -> None:
    os.setgroups([])
    os.setgid(NOBODY)
    os.setuid(NOBODY)
    os.umask(0)
    signal.signal(signal.SIGIO, signal.SIG_IGN)
    temporary, cache = sys.argv[1:]
    pids: List[int] = []
    rounds = 0
    squat(temporary, cache)
    print("ready", flush=True)
    wait_s = 5.0  # a round through the folders takes minutes where leases are broken
    while True:
        if select.select([sys.stdin], [], [], wait_s)[0]:
            line = sys.stdin.readline()
            if not line:
                break
            pids = [int(word) for word in line.split()]
        wait_s = 0.01
        for pid in pids:
            look_at_process(pid)
        for folder in ("/dev/shm", temporary, cache):
            look_at_folder(folder)
        rounds += bool(pids)
        if rounds % 10 == 1 and len(squatted) < 300:
            squat(temporary, cache)
    for path in squatted:
        with contextlib.suppress(OSError):
            (os.rmdir if os.path.isdir(path) and not os.path.islink(path) else os.unlink)(path)
    print(json.dumps({"managed": managed[:200], "tried": tried[0], "rounds": rounds}))


if __name__ == "__main__":
    main()
