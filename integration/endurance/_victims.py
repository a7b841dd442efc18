"""The program of the kill trials, as the process that kills sees it; and what it leaves behind."""

from __future__ import annotations

import contextlib
import json
import os
import re
import select
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, Optional

import psutil

SHARED_MEMORY = Path("/dev/shm")
VICTIM = Path(__file__).resolve().with_name("_victim.py")
ABORT_S = 10.0
STATES = (
    "starting",
    "computing",
    "updating",
    "collective",
    "stepping",
    "distributing",
    "growing",
    "idle",
    "closing",
    "mixed",
)
"""In which it can be killed: methods of its `Work`, one by one, or closing."""


class Trouble(Exception):
    """A trial went otherwise than it should."""


class Program:
    """The victim, or the victim's master: one process, for one trial after the other."""

    def __init__(self, folder: Path, log: Path) -> None:
        self.temporary = folder / "tmp"
        self.flights = folder / "flight"
        self.temporary.mkdir(exist_ok=True)
        # Nothing is compiled but what Theano itself needs, once.
        flags = f"mode=FAST_COMPILE,base_compiledir={folder / 'theano'}"
        self._log = open(log, "wb")  # noqa: SIM115 - closed by end()
        self.process = subprocess.Popen(
            [sys.executable, str(VICTIM)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            env={
                **os.environ,
                "SYNKHRONOS_USE_GPU": "0",
                "SYNKHRONOS_FLIGHT_DIR": str(self.flights),
                "THEANO_FLAGS": flags,
                "TMPDIR": str(self.temporary),
            },
        )
        self._buffer = b""
        self.descriptors: Optional[int] = None

    @property
    def pid(self) -> int:
        return self.process.pid

    def order(self, job: dict[str, Any]) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps(job).encode() + b"\n")
        self.process.stdin.flush()

    def event(self, until: float) -> Optional[dict[str, Any]]:
        """The next thing it tells; None if there is none until this moment, or ever."""
        assert self.process.stdout is not None
        fd = self.process.stdout.fileno()
        while b"\n" not in self._buffer:
            left = until - time.monotonic()
            chunk = os.read(fd, 65536) if select.select([fd], [], [], max(left, 0))[0] else b""
            if not chunk:
                return None
            self._buffer += chunk
        line, _, self._buffer = self._buffer.partition(b"\n")
        told: dict[str, Any] = json.loads(line)
        return told

    def await_event(self, name: str, until: float) -> dict[str, Any]:
        """The next event of this name.

        Raises:
            Trouble: the program failed, or tells nothing of the kind.
        """
        while True:
            event = self.event(until)
            if event is None:
                raise Trouble(f"no {name!r} in time")
            if event["event"] == name:
                return event
            if event["event"] == "caught":
                raise Trouble(f"{event['type']} before {name!r}: {event['message'][:500]}")

    def family(self) -> Optional[str]:
        """The name that all its shared memory has in common, once it has some."""
        for fd in (Path("/proc") / str(self.pid) / "fd").iterdir():
            try:
                found = re.search(r"/synk\.(?:\d+\.)?([0-9a-f]{8})\.lock$", os.readlink(fd))
            except OSError:  # closed meanwhile
                continue
            if found:
                return found.group(1)
        return None

    def record(self) -> Optional[dict[str, Any]]:
        """Its newest flight record."""
        files = sorted(self.flights.glob("*.json"))
        return json.loads(files[-1].read_text(encoding="utf-8")) if files else None

    def abort(self) -> None:
        """Have it tell its stacks, into the log, and end it with all it has started."""
        self.process.send_signal(signal.SIGABRT)
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(ABORT_S)
        self.end()

    def end(self) -> None:
        """End it, and whatever it has left."""
        self.process.kill()
        self.process.wait()
        for stream in (self.process.stdin, self.process.stdout, self._log):
            if stream is not None:
                stream.close()
        for process in psutil.Process().children(recursive=True):
            process.kill()
        while reaped():
            time.sleep(0.01)


def reaped() -> bool:
    """Take in children that have ended; whether there are others."""
    try:
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
    except ChildProcessError:
        return False
    return True


def names_in_memory(family: Optional[str]) -> list[str]:
    """The files in shared memory that are of a family, and this user's."""
    found = []
    for entry in SHARED_MEMORY.iterdir():
        with contextlib.suppress(FileNotFoundError):  # another program's, and gone
            if family and f".{family}." in entry.name and entry.stat().st_uid == os.geteuid():
                found.append(entry.name)
    return found


def segments(family: Optional[str]) -> list[str]:
    """What a program has in shared memory; its empty lock file is not memory."""
    return [name for name in names_in_memory(family) if not name.endswith(".lock")]


def lock_files(family: Optional[str]) -> int:
    """How many of its lock files are left."""
    return len(names_in_memory(family)) - len(segments(family))


def taken_away(folder: Path) -> list[str]:
    """The temporary files that were left; they are not there for the next trial."""
    found = sorted(str(path.relative_to(folder)) for path in folder.rglob("*"))
    for entry in folder.iterdir():
        shutil.rmtree(entry) if entry.is_dir() else entry.unlink()
    return found


def children() -> set[int]:
    """Process ids of this process's children."""
    found: set[int] = set()
    for task in Path("/proc/self/task").iterdir():
        found.update(int(pid) for pid in (task / "children").read_text().split())
    return found
