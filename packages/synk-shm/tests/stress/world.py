"""The processes of programs: start, command, watch and kill them."""

from __future__ import annotations

import contextlib
import ctypes
import os
import pickle
import select
import signal
import socket
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, Optional

from actor import REPLY

from synk_testing import descendants

FOLDER = "/dev/shm"
KILLED = -signal.SIGKILL
ENVIRONMENT = {"OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"}
PR_SET_CHILD_SUBREAPER = 36


class Hang(AssertionError):
    """A process did not answer or end in time."""


class Crash(AssertionError):
    """A process ended without a command to."""


@dataclass
class Proxy:
    """The driver's end of an actor. `watch` becomes readable when the process has ended."""

    name: str
    pid: int
    line: Connection
    watch: int
    parent: Optional[str]

    def is_alive(self) -> bool:
        return not select.select([self.watch], [], [], 0)[0]


class World:
    """The processes of programs, forked from one zygote."""

    def __init__(self, limit_s: float) -> None:
        self.limit_s = limit_s  # for any command; what takes longer hangs
        ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
        # Names of sockets are limited, and the usual place may have a long path.
        place = "/tmp" if len(os.fsencode(tempfile.gettempdir())) > 60 else None
        self.folder = tempfile.TemporaryDirectory(prefix="synk-stress-", dir=place)
        self.errors = Path(self.folder.name, "stderr")
        self.address = str(Path(self.folder.name, "socket"))
        self.listener = socket.socket(socket.AF_UNIX)
        self.listener.bind(self.address)
        self.listener.listen(64)
        self.listener.settimeout(self.limit_s)
        self.actors: dict[str, Proxy] = {}
        ours, theirs = socket.socketpair()
        path = str(Path(__file__).with_name("zygote.py"))
        with theirs, self.errors.open("ab") as errors:
            self.zygote = subprocess.Popen(
                [sys.executable, "-W", "error", path, str(theirs.fileno())],
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                stdout=errors,
                stderr=errors,
                env={**os.environ, **ENVIRONMENT},
            )
        self.zygote_line = Connection(ours.detach())
        self.zygote_line.recv()  # it is ready

    def stop(self) -> None:
        self.zygote_line.close()
        self.zygote.wait(self.limit_s)
        self.listener.close()
        self.folder.cleanup()

    # processes

    def root(self, name: str, how: str) -> None:
        self.zygote_line.send((how, self.address, name))
        self.accept(name, None)

    def accept(self, name: str, parent: Optional[str]) -> None:
        """Wait until a new process connects."""
        try:
            accepted, _ = self.listener.accept()
        except socket.timeout:
            raise Hang(f"{name} did not start in {self.limit_s} s") from None
        accepted.setblocking(True)
        line = Connection(accepted.detach())
        if not line.poll(self.limit_s):
            raise Hang(f"{name} did not send its name in {self.limit_s} s")
        found, pid = pickle.loads(line.recv_bytes())
        self.actors[found] = Proxy(found, pid, line, os.pidfd_open(pid), parent)
        if found != name:
            raise Crash(f"{found} started instead of {name}")

    def send(self, name: str, op: str, arguments: dict[str, Any], fuse: int = 0) -> None:
        """Send a command."""
        actor = self.actors[name]
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            actor.line.send_bytes(pickle.dumps((op, arguments, max(fuse, 0))))
        self.cut(actor, fuse)

    def deliver(self, name: str, data: bytes, fuse: int = 0) -> None:
        """Send a message of multiprocessing."""
        actor = self.actors[name]
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            actor.line.send_bytes(data)
        self.cut(actor, fuse)

    def cut(self, actor: Proxy, fuse: int) -> None:
        """If the fuse is negative, kill the process after that many microseconds."""
        if fuse < 0:
            time.sleep(-fuse / 1e6)
            with contextlib.suppress(ProcessLookupError):
                os.kill(actor.pid, signal.SIGKILL)

    def receive(self, name: str) -> Optional[tuple[str, Any, bytes]]:
        """Return outcome, result, and a message if it sent one; None if the process died."""
        actor = self.actors[name]
        message = b""
        try:
            while True:
                ready = select.select([actor.line, actor.watch], [], [], self.limit_s)[0]
                if not ready:
                    raise Hang(f"{name} did not answer in {self.limit_s} s\n{self.traces(actor)}")
                if actor.line not in ready:
                    return None
                data = actor.line.recv_bytes()
                if data.startswith(REPLY):
                    return (*pickle.loads(data[len(REPLY) :]), message)
                message = data
        except (EOFError, ConnectionResetError):
            return None

    def wait(self, name: str) -> None:
        """Wait until a process has ended; it may still be a zombie."""
        actor = self.actors[name]
        if not select.select([actor.watch], [], [], self.limit_s)[0]:
            raise Hang(f"{name} did not end in {self.limit_s} s\n{self.traces(actor)}")

    def reap(self, name: str) -> Optional[int]:
        """Let the parent of an ended process reap it. Return the exit code if known."""
        actor = self.actors.pop(name)
        actor.line.close()
        os.close(actor.watch)
        parent = self.actors.get(actor.parent or "")
        if parent is not None and parent.is_alive():
            self.send(parent.name, "reap", {"name": name})
            answer = self.receive(parent.name)
            if answer is None or answer[0] != "ok":
                raise Crash(f"{parent.name} could not reap {name}: {answer}")
            return int(answer[1])
        deadline = time.monotonic() + self.limit_s
        while os.path.exists(f"/proc/{actor.pid}"):
            with contextlib.suppress(ChildProcessError):
                found, status = os.waitpid(actor.pid, os.WNOHANG)
                if found:
                    return -os.WTERMSIG(status) if os.WIFSIGNALED(status) else status >> 8
            if time.monotonic() > deadline:
                raise Hang(f"{name} was not reaped, pid {actor.pid}")
            time.sleep(0.001)  # its parent may be ending, too
        return None

    def kill(self, name: str) -> None:
        os.kill(self.actors[name].pid, signal.SIGKILL)
        self.wait(name)

    def kill_group(self, names: list[str]) -> None:
        """Kill all processes of a session at once, the helpers of multiprocessing included."""
        os.killpg(os.getsid(self.actors[names[0]].pid), signal.SIGKILL)
        for name in names:
            self.wait(name)
        for name in names:
            self.reap(name)

    # leftovers

    def descendants(self) -> list[int]:
        """Return all processes below this one but the zygote, zombies included."""
        return [pid for pid in descendants(os.getpid()) if pid != self.zygote.pid]

    def settle(self, limit_s: float) -> list[str]:
        """Reap what ends now (helpers of multiprocessing); return the processes that stay."""
        deadline = time.monotonic() + min(limit_s, self.limit_s)
        while True:
            left = self.descendants()
            for pid in left:
                with contextlib.suppress(ChildProcessError):
                    os.waitpid(pid, os.WNOHANG)
            if not left or time.monotonic() > deadline:
                return [_stat_of(pid) for pid in left]
            time.sleep(0.002)

    def clear(self) -> None:
        """Kill what is left of a program, and forget it."""
        deadline = time.monotonic() + self.limit_s
        while self.settle(0.0) and time.monotonic() < deadline:
            for pid in self.descendants():
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            time.sleep(0.002)
        for actor in self.actors.values():
            actor.line.close()
            os.close(actor.watch)
        self.actors.clear()
        self.listener.settimeout(0)  # those that were about to connect
        with contextlib.suppress(BlockingIOError):
            while True:
                self.listener.accept()[0].close()
        self.listener.settimeout(self.limit_s)

    def open_files(self) -> tuple[int, int]:
        """Return how many files this process and the zygote have open."""
        return len(os.listdir("/proc/self/fd")), len(os.listdir(f"/proc/{self.zygote.pid}/fd"))

    def traces(self, actor: Proxy) -> str:
        """Return the stacks of a process that hangs."""
        with contextlib.suppress(ProcessLookupError):
            os.kill(actor.pid, signal.SIGUSR1)
            time.sleep(0.3)
        return self.printed()

    def printed(self) -> str:
        """Return what the processes wrote to stdout and stderr since the last call."""
        text = self.errors.read_text(errors="replace")
        os.truncate(self.errors, 0)
        return text


def _stat_of(pid: int) -> str:
    """Return the number, the command and the state of a process."""
    try:
        return " ".join(Path("/proc", str(pid), "stat").read_text().split()[:3])
    except OSError:
        return f"{pid}"


def look() -> dict[str, int]:
    """Return the names of segments in shared memory, with their inodes."""
    found = {}
    with os.scandir(FOLDER) as entries:
        for entry in entries:
            if entry.name.startswith("synk.") and not entry.name.endswith(".lock"):
                with contextlib.suppress(FileNotFoundError):
                    found["/" + entry.name] = entry.inode()
    return found
