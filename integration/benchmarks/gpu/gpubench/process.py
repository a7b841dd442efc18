"""One job in a process of its own: started, told when it is its turn, ended for certain."""

from __future__ import annotations

import contextlib
import os
import queue
import signal
import subprocess
import threading
import time
from collections.abc import Sequence
from pathlib import Path

READY = "ready"


class Failed(Exception):
    """A job ended badly or took too long; the text says how."""


class Process:
    """A running job.

    A job does what takes long and disturbs others (it compiles), writes the line "ready", and
    measures when it is sent a line.

    Args:
        command: program and arguments.
        environment: its whole environment.
        folder: where it works.
        log: file for what it says on stderr.
        limit_s: seconds from now after which it is ended.
    """

    def __init__(
        self,
        command: Sequence[str],
        environment: dict[str, str],
        folder: Path,
        log: Path,
        limit_s: float,
    ) -> None:
        self._log = log
        self._deadline = time.monotonic() + limit_s
        self._limit_s = limit_s
        self._said: queue.Queue[str] = queue.Queue()
        with log.open("wb") as errors:
            self._process = subprocess.Popen(
                command,
                env=environment,
                cwd=folder,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
                start_new_session=True,  # so that its children can be ended with it
            )
        threading.Thread(target=self._listen, daemon=True).start()

    def wait_ready(self) -> None:
        """Wait until it is ready to measure.

        Raises:
            Failed: it ended instead, or its time is over.
        """
        while self._line() != READY:
            pass

    def measure(self) -> None:
        """Have it measure, and wait until it has ended.

        Raises:
            Failed: it ended badly, or its time is over.
        """
        assert self._process.stdin is not None
        with contextlib.suppress(OSError):  # it has ended: told below
            self._process.stdin.write("go\n")
            self._process.stdin.close()
        try:
            status = self._process.wait(max(0.0, self._deadline - time.monotonic()))
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
        assert self._process.stdin is not None
        with contextlib.suppress(OSError):
            self._process.stdin.close()

    def _line(self) -> str:
        try:
            line = self._said.get(timeout=max(0.0, self._deadline - time.monotonic()))
        except queue.Empty:
            raise self._late() from None
        if not line:
            raise Failed(f"exit status {self._process.wait()}: {self._last_words()}")
        return line.strip()

    def _listen(self) -> None:
        assert self._process.stdout is not None
        with self._process.stdout as lines:
            for line in lines:
                self._said.put(line)
        self._said.put("")

    def _late(self) -> Failed:
        return Failed(f"not done after {self._limit_s:.0f} s: {self._last_words()}")

    def _last_words(self) -> str:
        lines = self._log.read_text(encoding="utf-8", errors="replace").strip().splitlines()
        return " / ".join(line.strip() for line in lines[-3:]) or "it said nothing"
