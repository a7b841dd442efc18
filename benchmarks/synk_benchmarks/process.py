"""Run fresh processes: ask one for an answer, or talk with one until it is ended for certain."""

from __future__ import annotations

import contextlib
import math
import os
import queue
import signal
import subprocess
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO

READY = "ready"
"""The line that a process prints when it has prepared all that it needs to measure."""


class Failed(Exception):
    """A process ended badly or took too long; the text says how."""


def ask(command: Sequence[str], limit_s: float, environment: Mapping[str, str]) -> str:
    """Return what a command prints.

    Raises:
        Failed: it ended badly, or took longer than `limit_s`.
    """
    how = {"env": environment, "stdin": subprocess.DEVNULL, "capture_output": True, "text": True}
    try:
        done = subprocess.run(command, timeout=limit_s, check=False, **how)
    except subprocess.TimeoutExpired:
        raise Failed(f"not done after {limit_s:.0f} s") from None
    if done.returncode:
        raise Failed(f"exit status {done.returncode}: {last_words(done.stderr)}")
    return done.stdout


class Process:
    """A process that exchanges lines with this one.

    Usually it prepares what takes long and disturbs others, prints `READY`, and measures when it
    reads a line.

    Args:
        command: program and arguments.
        limit_s: seconds from now after which it has failed.
        log: file for what it says on stderr.
        environment: its whole environment; by default this process's.
        folder: where it works; by default where this process does.
    """

    def __init__(
        self,
        command: Sequence[str],
        limit_s: float,
        log: Path,
        environment: Mapping[str, str] | None = None,
        folder: Path | None = None,
    ) -> None:
        self._log = log
        self._deadline = time.monotonic() + limit_s
        self._limit_s = limit_s
        self._said: queue.Queue[str] = queue.Queue()
        with log.open("wb") as errors:
            # In a session of its own, so that its children can be ended with it.
            how = {"env": environment, "cwd": folder, "text": True, "start_new_session": True}
            pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": errors}
            self._process = subprocess.Popen(command, **how, **pipes)
        assert self._process.stdin is not None  # noqa: S101 - it is a pipe
        assert self._process.stdout is not None  # noqa: S101 - it is a pipe
        self._input = self._process.stdin
        threading.Thread(target=self._listen, args=[self._process.stdout], daemon=True).start()

    def hear(self, word: str) -> str:
        """Wait until it says a line that begins with this word; return the rest of the line.

        Raises:
            Failed: it ended instead, or its time is over.
        """
        while True:
            try:
                line = self._said.get(timeout=self._left())
            except queue.Empty:
                raise self._late() from None
            if not line:
                raise Failed(f"exit status {self._process.wait()}: {self._last_words()}")
            first, _, rest = line.strip().partition(" ")
            if first == word:
                return rest

    def tell(self, line: str) -> None:
        """Send it a line."""
        with contextlib.suppress(OSError):  # it has ended: told by what comes next
            self._input.write(f"{line}\n")
            self._input.flush()

    def finish(self, limit_s: float = math.inf) -> None:
        """Tell it that no line follows, and wait until it has ended.

        Raises:
            Failed: it ended badly, or its time is over, or `limit_s`.
        """
        with contextlib.suppress(OSError):
            self._input.close()
        try:
            status = self._process.wait(min(limit_s, self._left()))
        except subprocess.TimeoutExpired:
            raise self._late() from None
        if status:
            raise Failed(f"exit status {status}: {self._last_words()}")

    def end(self) -> None:
        """End it and all it started; harmless if it has ended."""
        # A session leader's number stays its group's until the last member is gone.
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        with contextlib.suppress(OSError):
            self._input.close()

    def _left(self) -> float:
        return max(0.0, self._deadline - time.monotonic())

    def _listen(self, lines: IO[str]) -> None:
        with lines:
            for line in lines:
                self._said.put(line)
        self._said.put("")

    def _late(self) -> Failed:
        return Failed(f"not done after {self._limit_s:.0f} s: {self._last_words()}")

    def _last_words(self) -> str:
        return last_words(self._log.read_text(encoding="utf-8", errors="replace"))


def last_words(text: str) -> str:
    """Return the last lines of what a process printed, as one."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return " / ".join(lines[-4:])[-600:] or "it said nothing"
