"""The process of one rank, from the outside: start, read, end, and how it ended.

What a rank does with its work is in ``_processes.rank``; the loop over all ranks is in
``_processes.crew``.
"""

from __future__ import annotations

import contextlib
import os
import pickle
import signal
import subprocess
import time
from typing import Any, Sequence

from synk_comm._system.memory import memory_file
from synk_comm.processes import Process, stat

from .rank import STACKS_SIGNAL, RankReport, Script, Task


def describe_exit(exitcode: int | None) -> str:
    """Say how a process ended."""
    if exitcode is None:
        return "does not end, even after SIGKILL"
    if exitcode >= 0:
        return f"ended with exit code {exitcode}"
    try:
        name = signal.Signals(-exitcode).name
    except ValueError:
        name = f"signal {-exitcode}"
    hint = " (out of memory? see the kernel's log)" if name == "SIGKILL" else ""
    return f"was killed by {name}{hint}"


class RankProcess(Process):
    """The process of one rank.

    Args:
        payload: descriptor of the file for ``_processes.rank.main``.
        argv: the command line that the work sees.
        how: as of `Process`: path, env, and streams.

    Attributes:
        rank: its number.
        exitcode: None while it runs, as far as `has_ended` has seen; negative for a signal.
        report: of the result of its work, as far as `has_ended` has seen, or None.
        stopped_at: when it was first asked to end by us, or None.
    """

    def __init__(
        self,
        rank: int,
        work: Task | Script,
        payload: int,
        *,
        argv: Sequence[str],
        fds: Sequence[int],
        **how: Any,
    ) -> None:
        self.rank = rank
        self.exitcode: int | None = None
        self.report: RankReport | None = None
        self.stopped_at: float | None = None
        self._must_report = isinstance(work, Task)
        self._ended_at = 0.0
        self._file = memory_file(b"\0")
        fd = self._file.fileno()
        super().__init__(
            "synk_comm._processes.rank",
            "main",
            (rank, fd, payload, list(argv), work),
            fds=(fd, payload, *fds),
            # What multiprocessing gives to its own children, too: -W, -X, -O, -E, ...
            flags=subprocess._args_from_interpreter_flags(),  # type: ignore[attr-defined]
            **how,
        )

    def __repr__(self) -> str:
        state = "running" if self.exitcode is None else describe_exit(self.exitcode)
        return f"<RankProcess {self.rank}, pid {self.pid}, {state}>"

    def has_ended(self) -> bool:
        """Return whether the process has ended; note how, and what it has reported."""
        if self.exitcode is None:
            exitcode = self.poll()
            if self.report is None and os.pread(self._file.fileno(), 1, 0) != b"\0":
                with open(self._file.fileno(), "rb", closefd=False) as file:
                    file.seek(1)
                    self.report = RankReport(*pickle.load(file))  # noqa: S301 - from a child
            if exitcode is not None:
                self._ended_at = time.monotonic()
                self.exitcode = exitcode
                # Its own children go with it; those that clean up after it get a moment for that.
                self.signal_group(signal.SIGTERM)
        return self.exitcode is not None

    def failure(self) -> RankReport | None:
        """Return how the rank failed, by itself or by others, but not by being stopped by us.

        Of a process that died without a report of its failure it has ``brief`` and ``at`` only.
        """
        report = self.report
        if report is None or not report.failure:
            is_silent = report is None and self._must_report
            if self.exitcode is None or not (self.exitcode or is_silent):
                return None
            report = RankReport(brief=describe_exit(self.exitcode), at=self._ended_at)
        is_our_doing = self.stopped_at is not None and report.at >= self.stopped_at
        return None if is_our_doing else report

    def fate(self) -> str:
        """Describe how the rank ended."""
        failure = self.failure()
        if failure is not None:
            return failure.brief
        if self.stopped_at is not None:
            return "was ended while it was still running"
        return describe_exit(None) if self.exitcode is None else "had ended well"

    def stop(self, signum: int) -> None:
        """Send a signal that is to end it; what happens from now on is no failure of its own."""
        if not self.has_ended():
            if self.stopped_at is None:
                self.stopped_at = time.monotonic()
            self.signal_group(signum)

    def show_stacks(self) -> None:
        """Ask a rank that is late where it is; it is going to be stopped."""
        if not self.has_ended():
            self.stopped_at = time.monotonic()
            self.send_signal(STACKS_SIGNAL)

    def has_leftovers(self) -> bool:
        """Return whether the group outlives its leader."""
        return self.signal_group(0) and _any_alive(self.pid)

    def close(self) -> None:
        """Close the pipes and the file."""
        super().close()
        self._file.close()


def _any_alive(group: int) -> bool:
    """Return whether a process of a group is alive: not a zombie."""
    try:
        pids = [int(name) for name in os.listdir("/proc") if name.isdigit()]
    except OSError:
        return True
    for pid in pids:
        with contextlib.suppress(OSError, ValueError):
            state, _, its_group = stat(pid)[:3]
            if int(its_group) == group and state not in (b"Z", b"X"):
                return True
    return False
