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
from typing import Any, Mapping, NamedTuple, Sequence

from synk_comm.processes import NO_RANKS, Process, stat, threads_per_rank

from .rank import STACKS_SIGNAL, RankReport, Script, Task

_READ_BYTES = 1 << 20


class RankFailure(NamedTuple):
    """How a rank failed: by an exception, if ``report`` is there, else its process died."""

    rank: int
    at: float
    report: RankReport | None
    exitcode: int | None

    @property
    def by_others(self) -> bool:
        return self.report is not None and self.report.by_others

    def __str__(self) -> str:
        if self.report is not None:
            return self.report.brief
        return describe_exit(self.exitcode)


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
    hints = {"SIGKILL": " (out of memory? see the kernel's log)"}
    return f"was killed by {name}{hints.get(name, '')}"


def rank_environment(size: int, rank: int, extra: Mapping[str, str] | None) -> dict[str, str]:
    """Return the environment of a rank.

    ``SYNK_COMM_RANK`` and ``SYNK_COMM_SIZE`` are set; what belongs to a group that this process is
    in is left out. ``OMP_NUM_THREADS`` is this rank's share of the cores, unless it is set.
    """
    environment = dict(os.environ)
    if "SYNK_COMM_RANK" in environment:  # those of a rank start no more: it would have no end
        environment[NO_RANKS] = "a rank that a rank has started"
    environment.pop("SYNK_COMM_TICKET", None)
    environment.update(SYNK_COMM_RANK=str(rank), SYNK_COMM_SIZE=str(size))
    if size > 1:
        environment.setdefault("OMP_NUM_THREADS", str(threads_per_rank(size)))
    environment.update(extra or {})
    return environment


class RankProcess(Process):
    """The process of one rank.

    Args:
        argv: the command line that the work sees.
        how: as of `Process`: path, env, and streams.

    Attributes:
        rank: its number.
        exitcode: None while it runs, as far as `has_ended` has seen; negative for a signal.
        report: of the result of its work, or None.
        stopped_at: when it was first asked to end by us, or None.
    """

    def __init__(
        self,
        rank: int,
        work: Task | Script,
        payload: bytes = b"",
        *,
        argv: Sequence[str],
        fds: Sequence[int] = (),
        **how: Any,
    ) -> None:
        self.rank = rank
        self.exitcode: int | None = None
        self.report: RankReport | None = None
        self.stopped_at: float | None = None
        self._must_report = isinstance(work, Task)
        self._ended_at = 0.0
        self._heard = bytearray()
        low, high = os.pipe()
        # Objects, not numbers: if this is interrupted they close.
        with open(high, "wb", buffering=0) as theirs:
            self._hear = open(low, "rb", buffering=0)  # noqa: SIM115 - until close()
            os.set_blocking(low, False)
            super().__init__(
                "synk_comm._processes.rank",
                "main",
                (rank, high, list(argv), work),
                payload,
                fds=(theirs.fileno(), *fds),
                # What multiprocessing gives to its own children, too: -W, -X, -O, -E, ...
                flags=subprocess._args_from_interpreter_flags(),  # type: ignore[attr-defined]
                **how,
            )

    def __repr__(self) -> str:
        state = "running" if self.exitcode is None else describe_exit(self.exitcode)
        return f"<RankProcess {self.rank}, pid {self.pid}, {state}>"

    def fileno_to_hear(self) -> int:
        """Return the descriptor for ``hear``."""
        return self._hear.fileno()

    def hear(self) -> bool:
        """Read what there is of the report; return whether no more follows."""
        while True:
            data = self._hear.read(_READ_BYTES)
            if data is None:
                return False
            self._heard += data
            if self.report is None and len(self._heard) >= 8:
                length = int.from_bytes(self._heard[:8], "little")
                if len(self._heard) >= 8 + length:
                    with memoryview(self._heard) as view:
                        fields = pickle.loads(view[8:])  # noqa: S301 - from a child of this process
                    self._heard = bytearray()
                    self.report = RankReport(*fields)
                    return True
            if not data:
                return True

    def has_ended(self) -> bool:
        """Return whether the process has ended, and take note how."""
        if self.exitcode is None and self.poll() is not None:
            if self.report is None:
                self.hear()
            self._ended_at = time.monotonic()
            self.exitcode = self.returncode
            # Its own children go with it; those that clean up after it get a moment for that.
            self.signal_group(signal.SIGTERM)
        return self.exitcode is not None

    def failure(self) -> RankFailure | None:
        """Return how the rank failed, by itself or by others, but not by being stopped by us."""
        failure = None
        if self.report is not None and self.report.failure:
            failure = RankFailure(self.rank, self.report.at, self.report, self.exitcode)
        elif self.exitcode or (
            self.exitcode is not None and self._must_report and self.report is None
        ):
            failure = RankFailure(self.rank, self._ended_at, None, self.exitcode)
        if failure is None or (self.stopped_at is not None and failure.at >= self.stopped_at):
            return None
        return failure

    def fate(self) -> str:
        """Describe how the rank ended."""
        failure = self.failure()
        if failure is not None:
            return str(failure)
        if self.stopped_at is not None:
            return "was ended while it was still running"
        if self.exitcode is None:
            return describe_exit(None)
        return "had ended well"

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

    def kill_leftovers(self) -> None:
        """Kill the rest of the group."""
        if self.has_leftovers():
            self.signal_group(signal.SIGKILL)

    def close(self) -> None:
        """Close the pipes."""
        super().close()
        self._hear.close()


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
