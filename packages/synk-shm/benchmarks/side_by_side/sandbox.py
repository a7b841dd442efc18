"""A private /dev/shm, and what happens to segments in it when their makers end.

`run` starts this file's `main` in a mount namespace of its own, if the system allows it. No other
program has or removes segments there, and all are gone with the last process. `main` prints its
findings as JSON.
"""

from __future__ import annotations

import contextlib
import functools
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, Callable, final

from .contender import SHARED_MEMORY
from .newcomer import GO, LIMIT_S, READY, command, environment, relations

START = "from side_by_side.sandbox import main; main()"
MIB = 1 << 20
ARRAY = MIB  # bytes of a victim's array; smaller files are not arrays
TOO_SMALL_MIB = 16
_MOUNT = f'mount -t tmpfs -o "size=$0" tmpfs {SHARED_MEMORY} && exec "$@"'


@functools.cache
def prefix(size: str) -> tuple[str, ...]:
    """Return the prefix that gives a command a private /dev/shm; empty if not allowed."""
    if shutil.which("unshare") is None or shutil.which("mount") is None:
        return ()
    for flags in (("-m",), ("-r", "-m")):
        words = ("unshare", *flags, "sh", "-c", _MOUNT, size)
        try:
            done = subprocess.run([*words, "true"], capture_output=True, timeout=20, check=False)
        except subprocess.TimeoutExpired:
            continue
        if done.returncode == 0:
            return words
    return ()


def run(order: str, *arguments: object, size: str, limit_s: float) -> Any:
    """Run an order of `main`, in a sandbox if there is one, and return its findings.

    Raises:
        RuntimeError: it failed, with what it printed.
    """
    words = [*prefix(size), sys.executable, "-c", START, order, *map(str, arguments)]
    process = subprocess.Popen(
        words,
        env=environment(),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        out, err = process.communicate(timeout=limit_s)
    finally:
        _end(process)
    if process.returncode != 0:
        raise RuntimeError(err.strip()[-500:] or f"ended with {process.returncode}")
    return json.loads(out)


def main() -> None:
    """Run the order on the command line; clean up on SIGTERM."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    order, *arguments = sys.argv[1:]
    orders: dict[str, Callable[..., Any]] = {"leave": _leave, "overfill": _overfill}
    sys.stdout.write(json.dumps(orders[order](*arguments)) + "\n")


def _leave(how: str, wait_s: str, *names: str) -> dict[str, dict[str, int]]:
    """Count what is left when the process that made an array ends in this way.

    All victims run at once. `left` is counted after `wait_s` seconds at most, `after` when another
    process has made an array in the same way.
    """
    with contextlib.ExitStack() as stack:
        victims = [stack.enter_context(_Victim(name)) for name in names]
        for victim in victims:
            victim.await_ready()
        for victim in victims:
            victim.end(how)
        deadline = time.monotonic() + float(wait_s)
        while any(victim.left() for victim in victims) and time.monotonic() < deadline:
            time.sleep(0.02)
        if how == "exit":
            time.sleep(0.3)  # a tracker prints after its last act
        found = {victim.name: victim.report() for victim in victims}
        _start_next([victim.name for victim in victims])
        for victim in victims:
            found[victim.name]["after"] = victim.left()
        return found


def _start_next(names: list[str]) -> None:
    """Let a new process make one array in each way, and exit."""
    started = [
        subprocess.Popen(
            command("begin", name),
            env=environment(),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        for name in names
    ]
    for process in started:
        process.wait()  # each ends by itself: see newcomer.LIMIT_S


def _overfill(name: str) -> dict[str, Any]:
    """Return the outcome of a request for more memory than there is."""
    with tempfile.TemporaryDirectory(prefix="side-by-side.") as folder:  # if it uses the disk
        done = subprocess.run(
            command("overfill", name, 4 * TOO_SMALL_MIB * MIB // 8),
            env={**environment(), "TMPDIR": folder},
            capture_output=True,
            text=True,
            timeout=LIMIT_S,
            check=False,
        )
    if done.returncode < 0:
        return {"died": True, "outcome": signal.Signals(-done.returncode).name}
    if done.returncode > 0 or not done.stdout:
        return {"skipped": "failed: " + done.stderr.strip()[-200:]}
    return {"died": False, **json.loads(done.stdout)}


@final
class _Victim:
    """A process with one array, in a group of its own, and the files of the array."""

    def __init__(self, name: str) -> None:
        self.name = name
        self._folder = Path(tempfile.mkdtemp(prefix="side-by-side."))
        self._files: set[tuple[int, int]] = set()
        with (self._folder / "stderr").open("wb") as stderr:
            self._process = subprocess.Popen(
                command("hold", name, self._folder, ARRAY // 8),
                env={
                    **environment(),
                    "JOBLIB_TEMP_FOLDER": SHARED_MEMORY,
                    "TMPDIR": str(self._folder),
                },
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=stderr,
                start_new_session=True,
            )

    def __enter__(self) -> _Victim:
        return self

    def __exit__(self, *_: object) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        paths = [path for path, _ in self._linked()]
        for path in paths:
            path.unlink(missing_ok=True)
        for folder in {path.parent for path in paths} - {Path(SHARED_MEMORY)}:
            with contextlib.suppress(OSError):  # not empty: others use it, too
                folder.rmdir()
        shutil.rmtree(self._folder, ignore_errors=True)

    def await_ready(self) -> None:
        """Wait until it has its array, and note the files that it and its helpers map."""
        deadline = time.monotonic() + LIMIT_S
        while not (self._folder / READY).exists():
            if self._process.poll() is not None or time.monotonic() > deadline:
                err = (self._folder / "stderr").read_text(errors="replace")
                raise RuntimeError(f"{self.name} made no array: {err[-300:]}")
            time.sleep(0.01)
        for pid, (_, group) in relations().items():
            if group == self._process.pid:
                self._files |= _mapped(pid)

    def end(self, how: str) -> None:
        """Kill the process (creator), or also all that it started (group), or let it exit."""
        if how == "creator":
            self._process.kill()
        elif how == "group":
            os.killpg(self._process.pid, signal.SIGKILL)
        (self._folder / GO).touch()  # ends the wait of the other processes
        self._process.wait(LIMIT_S)

    def left(self) -> int:
        """Return the number of arrays that still have a name."""
        return sum(size >= ARRAY for _, size in self._linked())

    def report(self) -> dict[str, int]:
        """Count arrays left, smaller files (semaphores), processes, lines on stderr."""
        group = self._process.pid
        return {
            "left": self.left(),
            "crumbs": sum(size < ARRAY for _, size in self._linked()),
            "helpers": sum(found == group for _, found in relations().values()),
            "complaints": len((self._folder / "stderr").read_text(errors="replace").splitlines()),
        }

    def _linked(self) -> list[tuple[Path, int]]:
        """Return a path of each of its files that have a name, with their sizes."""
        found: dict[tuple[int, int], tuple[Path, int]] = {}
        for folder, _, names in os.walk(SHARED_MEMORY):
            for name in names:
                path = Path(folder) / name
                with contextlib.suppress(FileNotFoundError):
                    status = path.stat()
                    identity = (status.st_dev, status.st_ino)
                    if identity in self._files:
                        found[identity] = (path, status.st_size)
        return list(found.values())


def _mapped(pid: int) -> set[tuple[int, int]]:
    """Return (device, inode) of the files in shared memory that a process maps."""
    found = set()
    with contextlib.suppress(OSError):
        for line in Path(f"/proc/{pid}/maps").read_text(encoding="utf-8").splitlines():
            words = line.split(maxsplit=5)
            if len(words) == 6 and words[5].startswith(SHARED_MEMORY):
                major, minor = (int(part, 16) for part in words[3].split(":"))
                found.add((os.makedev(major, minor), int(words[4])))
    return found


def _end(process: subprocess.Popen[str]) -> None:
    """End the run, with time to end its victims."""
    if process.poll() is None:
        process.terminate()
        try:
            process.communicate(timeout=10)
        except subprocess.TimeoutExpired:
            pass
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
