"""Hosts on one machine: network namespaces, each with a hostname and shared memory of its own.

Needs root, iproute2 and util-linux; `missing` says what is not there.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import tempfile
import time
import uuid
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Callable

_NETWORK = "10.77.0"
_START_S = 20.0
_COMMANDS = ("ip", "nsenter", "unshare", "setsid", "mount", "hostname")

_INIT = """
mount --make-rprivate / && mount -t proc proc /proc && mount -t tmpfs tmpfs /dev/shm &&
mount --bind {folder}/{host}.boot /proc/sys/kernel/random/boot_id &&
mount --bind {folder}/hosts /etc/hosts && hostname {host} &&
echo ready > {folder}/{host}.ready && exec sleep infinity
"""
"""The first process of a host: when it is killed, the kernel kills all others of that host."""

_REMOTE = """#!/bin/sh
while [ "${{1#-}}" != "$1" ]; do shift; done
host=$1; shift
case $host in {network}.*) host=h${{host##*.}};; esac
exec nsenter -t "$(cat {folder}/$host.pid)" --net --uts --ipc --mount --pid --wd="$PWD" sh -c "$*"
"""


def missing() -> str:
    """Return why there can be no such hosts here; empty if there can."""
    lacking = [name for name in _COMMANDS if shutil.which(name) is None]
    if lacking:
        return f"{', '.join(lacking)}: not found; apt-get install iproute2 util-linux"
    if os.geteuid() != 0:
        return "not root"
    done = subprocess.run(
        ["unshare", "--net", "--mount", "--pid", "--fork", "true"], capture_output=True, check=False
    )
    return "" if not done.returncode else "this system does not allow namespaces"


class Hosts:
    """Simulated hosts h1, h2, ...; all of them have `folder`, until their end."""

    def __init__(self, folder: Path, tag: str, names: Sequence[str]) -> None:
        self.folder, self._tag = folder, tag
        self.names = tuple(names)

    def inside_network(self, name: str) -> list[str]:
        """Return what the command of a launcher begins with, which starts others by `remote`."""
        return ["nsenter", "-t", str(self._pid(name)), "--net", "--uts", "--ipc"]

    def on(self, name: str, inside: bool = False) -> list[str]:
        """Return what a command on a host begins with; one that is `inside` ends with the host."""
        spaces = ["--net", "--uts", "--ipc", "--mount", *(["--pid"] if inside else [])]
        return ["nsenter", "-t", str(self._pid(name)), *spaces, f"--wd={os.getcwd()}"]

    def command(self, mpiexec: str, ranks_each: int = 1) -> list[str]:
        remote = ["-launcher", "ssh", "-launcher-exec", str(self.folder / "remote")]
        ranks = ["-ppn", str(ranks_each), "-n", str(ranks_each * len(self.names))]
        begin = [*self.inside_network("h1"), mpiexec, *remote]
        return [*begin, "-hosts", ",".join(self.names), *ranks]

    def namespace(self, name: str) -> str:
        return f"{self._tag}-{name}"

    def kill(self, name: str) -> None:
        """End a host: all its processes at once, without a word to the others."""
        os.kill(self._pid(name), signal.SIGKILL)

    def _pid(self, name: str) -> int:
        return int((self.folder / f"{name}.pid").read_text())


@contextlib.contextmanager
def hosts(count: int) -> Iterator[Hosts]:
    """Yield so many hosts, connected by a bridge. At the end all their processes are killed."""
    tag = f"synk{os.getpid()}"
    names = [f"h{number}" for number in range(1, count + 1)]
    with contextlib.ExitStack() as undo:
        folder = Path(undo.enter_context(tempfile.TemporaryDirectory(prefix="synk-hosts-")))
        addresses = [f"{_NETWORK}.{i} {name}" for i, name in enumerate(names, 1)]
        (folder / "hosts").write_text("\n".join(["127.0.0.1 localhost", *addresses, ""]))
        remote = folder / "remote"
        remote.write_text(_REMOTE.format(folder=folder, network=_NETWORK))
        remote.chmod(0o755)
        switch = f"{tag}-switch"
        _add_namespace(switch, undo)
        _ip("-n", switch, "link", "add", "br0", "type", "bridge")
        _ip("-n", switch, "link", "set", "br0", "up")
        for number, name in enumerate(names, 1):
            space, port = f"{tag}-{name}", f"p{number}"
            _add_namespace(space, undo)
            _ip("-n", space, "link", "set", "lo", "up")
            peer = ("type", "veth", "peer", "name", "eth0", "netns", space)
            _ip("-n", switch, "link", "add", port, *peer)
            _ip("-n", switch, "link", "set", port, "master", "br0", "up")
            _ip("-n", space, "addr", "add", f"{_NETWORK}.{number}/24", "dev", "eth0")
            _ip("-n", space, "link", "set", "eth0", "up")
            _boot(folder, space, name, undo)
        for name in names:
            _wait(lambda name=name: _is_up(f"{tag}-{name}"))
        yield Hosts(folder, tag, names)


def _boot(folder: Path, space: str, name: str, undo: contextlib.ExitStack) -> None:
    (folder / f"{name}.boot").write_text(f"{uuid.uuid4()}\n")
    inside = ["unshare", "--uts", "--ipc", "--mount", "--pid", "--fork", "--kill-child", "sh", "-c"]
    script = _INIT.format(folder=folder, host=name)
    process = _started(["setsid", "ip", "netns", "exec", space, *inside, script], undo)
    _wait((folder / f"{name}.ready").exists, process)
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
    (folder / f"{name}.pid").write_text(children[0])


def _started(command: Sequence[str], undo: contextlib.ExitStack) -> subprocess.Popen[bytes]:
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
    process = subprocess.Popen(command, stdin=subprocess.DEVNULL, **pipes)

    def end() -> None:
        process.kill()
        process.wait()
        if process.stdout is not None:
            process.stdout.close()

    undo.callback(end)
    return process


def _wait(done: Callable[[], bool], process: subprocess.Popen[bytes] | None = None) -> None:
    until = time.monotonic() + _START_S
    while not done():
        if process is not None and process.poll() is not None:
            raise OSError(f"a host has not started: {_words(process)}")
        if time.monotonic() > until:
            raise OSError(f"a host has not started after {_START_S} s")
        time.sleep(0.01)


def _words(process: subprocess.Popen[bytes]) -> str:
    said = process.stdout.read().decode(errors="replace").strip() if process.stdout else ""
    return f"exit status {process.wait()}: {said[-400:]}"


def _is_up(space: str) -> bool:
    """Return whether MPI can use a host's interface."""
    return " state UP " in _ip("-n", space, "link", "show", "eth0")


def _add_namespace(name: str, undo: contextlib.ExitStack) -> None:
    _ip("netns", "add", name)
    undo.callback(_ip, "netns", "del", name)


def _ip(*arguments: str) -> str:
    return subprocess.run(["ip", *arguments], check=True, capture_output=True, text=True).stdout
