"""A job: starts the ranks, hears what they say, and ends them all when one fails or falls silent.

Ranks talk by a Unix socket in a private folder (`line`). What they print goes to a file there, of
which the end is shown when the job fails.
"""

from __future__ import annotations

import contextlib
import json
import os
import selectors
import signal
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, Callable

from synk_benchmarks.process import last_words

from .line import SILENCE_S, SOCKET
from .mpi import mpiexec

PROGRAM = Path(__file__).resolve().parent.parent / "rank.py"
LEAVE_S = 20.0  # for the processes to end once they have said all
# Message kinds that are handed on; the others are the job's own.
Hear = Callable[[str, Any], None]


class JobError(Exception):
    """A rank ended early, or nothing was heard for too long."""


def run_job(order: dict[str, Any], *, mpi: bool, hear: Hear) -> None:
    """Start `order["ranks"]` ranks, and hand on what they tell until they have all hung up.

    Args:
        order: what `rank.py` reads.
        mpi: whether mpiexec has to start them.
        hear: called with kind and value of each message.

    Raises:
        JobError: what was heard until then has been handed on.
    """
    with tempfile.TemporaryDirectory(prefix="synk-bench-") as name:
        folder = Path(name)
        (folder / "order.json").write_text(json.dumps(order), encoding="utf-8")
        with socket.socket(socket.AF_UNIX) as listener, _Processes(folder, order, mpi) as processes:
            listener.bind(str(folder / SOCKET))
            listener.listen(order["ranks"])
            processes.start()
            with _Hub(listener, order["ranks"], hear, processes.files) as hub:
                try:
                    hub.listen(processes)
                except JobError as error:
                    raise JobError(f"{error}{processes.last_words()}") from None
            processes.wait()


class _Processes:
    """The ranks' processes, in sessions of their own; none is left after the block."""

    def __init__(self, folder: Path, order: dict[str, Any], mpi: bool) -> None:
        self._ranks = order["ranks"]
        self._mpi = mpi
        self._folder = folder
        self._started: list[subprocess.Popen[bytes]] = []
        self.mortal = order["do"] == "die"
        self.files: set[str] = set()

    def __enter__(self) -> _Processes:  # noqa: PYI034 - typing.Self is newer than 3.9
        return self

    def __exit__(self, *exc_info: object) -> None:
        for process in self._started:
            # mpiexec's ranks are in its group; ours are groups of one.
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        # MPICH's own, which it leaves behind when it is ended from outside.
        for path in self.files:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(path)

    def start(self) -> None:
        # One thread each: ranks are what the cores are for.
        variables = {**os.environ, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
        command = [sys.executable, str(PROGRAM), str(self._folder)]
        if self._mpi:
            self._popen([mpiexec(), "-n", str(self._ranks), *command], variables)
            return
        for rank in range(self._ranks):
            self._popen(command, {**variables, "SYNK_BENCH_RANK": str(rank)})

    def _popen(self, command: list[str], variables: dict[str, str]) -> None:
        with open(self._folder / "log", "ab") as log:
            self._started.append(
                subprocess.Popen(
                    command,
                    env=variables,
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=subprocess.STDOUT,
                    start_new_session=True,
                )
            )

    def gone(self) -> bool:
        """Return whether some process has ended that should not have."""
        codes = [process.poll() for process in self._started]
        return None not in codes or (any(codes) and not self.mortal)

    def wait(self) -> None:
        """Wait until they end by themselves; the end of the block kills those that do not."""
        deadline = time.monotonic() + LEAVE_S
        for process in self._started:
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(max(0.0, deadline - time.monotonic()))

    def last_words(self) -> str:
        """Return the end of what they printed, as a part of a sentence."""
        with contextlib.suppress(OSError):
            text = (self._folder / "log").read_text(encoding="utf-8", errors="replace")
            return f": {last_words(text)}" if text.strip() else ""
        return ""


class _Hub:
    """The job's end of the ranks' lines."""

    def __init__(self, listener: socket.socket, ranks: int, hear: Hear, files: set[str]) -> None:
        self._listener = listener
        self._hear = hear
        self._files = files
        self._rest: dict[socket.socket, bytes] = {}
        self._rank_of: dict[socket.socket, int] = {}
        self._leaving: set[socket.socket] = set()
        self._shared: dict[int, Any] = {}
        self._ranks = ranks
        self._left = 0
        self._doing = "starting"
        self._selector = selectors.DefaultSelector()
        self._selector.register(listener, selectors.EVENT_READ)

    def __enter__(self) -> _Hub:  # noqa: PYI034 - typing.Self is newer than 3.9
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._selector.close()
        for line in self._rest:
            line.close()

    def listen(self, processes: _Processes) -> None:
        """Hand on messages until every rank has hung up."""
        heard = time.monotonic()
        while self._left < self._ranks:
            ready = self._selector.select(1.0)
            for event, _ in ready:
                self._take(event.fileobj)
            if ready:
                heard = time.monotonic()
            elif processes.gone():
                raise JobError(f"a rank ended while {self._doing}")
            elif time.monotonic() - heard > SILENCE_S:
                raise JobError(f"nothing heard for {SILENCE_S:.0f} s while {self._doing}")

    def _take(self, line: Any) -> None:
        if line is self._listener:
            accepted, _ = line.accept()
            self._rest[accepted] = b""
            self._selector.register(accepted, selectors.EVENT_READ)
            return
        try:
            data = line.recv(1 << 16)
        except ConnectionResetError:
            data = b""
        if not data:
            self._selector.unregister(line)
            self._left += 1
            if line not in self._leaving:
                raise JobError(f"rank {self._rank_of.get(line, '?')} ended while {self._doing}")
            return
        *texts, self._rest[line] = (self._rest[line] + data).split(b"\n")
        for kind, value in map(json.loads, texts):
            self._message(line, kind, value)

    def _message(self, line: socket.socket, kind: str, value: Any) -> None:
        if kind == "hello":
            self._rank_of[line] = value
        elif kind == "files":
            self._files.update(value)
        elif kind == "bye":
            self._leaving.add(line)
        elif kind == "share":
            self._shared[self._rank_of[line]] = value
            if len(self._shared) == self._ranks:
                answer = [self._shared[rank] for rank in range(self._ranks)]
                self._shared.clear()
                for peer in self._rank_of:
                    peer.sendall((json.dumps(answer) + "\n").encode())
        else:
            if kind == "say":
                self._doing = f"measuring {value}"
            self._hear(kind, value)
