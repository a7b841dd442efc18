"""The processes of ranks, from the outside: start, watch, end, and how they ended.

What a rank does with its work is in ``_processes.rank``.
"""

from __future__ import annotations

import contextlib
import os
import pickle
import selectors
import signal
import subprocess
import sys
import time
from typing import Any, Callable, Mapping, Sequence, Union

from synk_comm._join import Group
from synk_comm._system.memory import memory_file
from synk_comm.processes import NO_RANKS, Process, import_path, stat, threads_per_rank

from .rank import STACKS_SIGNAL, RankReport, Script, Task

Environment = Union[Mapping[str, str], Callable[[int], Mapping[str, str]], None]

SETTLE_S = 3.0
"""Seconds for the others to fail by themselves, and report how, once one rank has failed: on a busy
machine it takes more than one."""

_STACKS_S = 0.3  # for late ranks to write their stacks
_LEFTOVERS_S = 1.0  # from SIGTERM to SIGKILL, for children of a rank that has ended
_REAP_S = 5.0  # from SIGKILL until a process is given up: it may be stuck in the kernel
_NAP_S = 0.02


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


class Crew:
    """All ranks of a group, and the loop that waits for them.

    Leaving its ``with`` block ends whatever still runs, and discards the group.
    """

    def __init__(self, group: Group) -> None:
        self.ranks: list[RankProcess] = []
        self._group = group
        self._selector = selectors.DefaultSelector()
        self._ask_until: float | None = None

    def start(
        self,
        work: Task | Script,
        payload: bytes = b"",
        *,
        env: Environment = None,
        argv: Sequence[str] | None = None,
        path: Sequence[str] | None = None,
        stdin: int | None = subprocess.DEVNULL,
        output: int | None = None,
    ) -> None:
        """Start all ranks, until they are asked to end.

        Args:
            payload: of a task, ``pickle.dumps((function, args))``.
            env: variables beside those of this process, or a function from rank to these.
            argv, path: ``sys.argv`` and ``sys.path`` of the work; None for those of this process.
            stdin: of rank 0, as in `subprocess`; the others have none.
            output: the standard output and the standard error of all.
        """
        argv = sys.argv if argv is None else argv
        path = import_path() if path is None else path
        with memory_file(payload) as file:
            for rank in range(self._group.size):
                if self._ask_until is not None:
                    break
                self.ranks.append(
                    RankProcess(
                        rank,
                        work,
                        file.fileno(),
                        argv=argv,
                        path=path,
                        env=self._environment(rank, env(rank) if callable(env) else env),
                        fds=self._group.fds,
                        stdin=subprocess.DEVNULL if rank else stdin,
                        stdout=output,
                        stderr=output,
                    )
                )

    def _environment(self, rank: int, extra: Mapping[str, str] | None) -> dict[str, str]:
        """Return the environment of a rank.

        ``OMP_NUM_THREADS`` is this rank's share of the cores, unless it is set.
        """
        size, environment = self._group.size, dict(os.environ)
        if "SYNK_COMM_RANK" in environment:  # those of a rank start no more: it would have no end
            environment[NO_RANKS] = "a rank that a rank has started"
        environment.update(SYNK_COMM_RANK=str(rank), SYNK_COMM_SIZE=str(size))
        if size > 1:
            environment.setdefault("OMP_NUM_THREADS", str(threads_per_rank(size)))
        environment.update(extra or {}, SYNK_COMM_TICKET=self._group.ticket(rank))
        return environment

    def register(self, fd: int, ready: Callable[[], bool]) -> None:
        """Call ``ready`` whenever there is something to read, until it returns True."""
        self._selector.register(fd, selectors.EVENT_READ, ready)

    def running(self) -> list[RankProcess]:
        """Return the ranks that have not ended."""
        return [rank for rank in self.ranks if not rank.has_ended()]

    def step(self) -> None:
        """Wait for output, but not long: what ranks report, and their end, show only on asking."""
        for key, _ in self._selector.select(_NAP_S):
            if key.data():
                self._selector.unregister(key.fd)
        for rank in self.ranks:
            if rank.has_ended():
                rank.signal_group(0)  # to notice when its group is empty

    def failures(self) -> list[tuple[RankProcess, RankReport]]:
        """Return all failures: first what has a cause of its own, then its victims, by time."""
        found = [(rank, report) for rank in self.ranks for report in [rank.failure()] if report]
        return sorted(found, key=lambda failed: (failed[1].by_others, failed[1].at))

    def fates(self, besides: RankProcess) -> str:
        """Describe how the other ranks ended, each in a line."""
        others = [rank for rank in self.ranks if rank is not besides]
        return "".join(f"\n  rank {rank.rank}: {rank.fate()}" for rank in others)

    def late(self, timeout_s: float | None) -> tuple[list[int], str]:
        """Return the ranks that had to be ended, and a sentence about them."""
        late = [rank.rank for rank in self.ranks if rank.stopped_at is not None]
        which = f"rank{'s' * (len(late) > 1)} {', '.join(map(str, late))} of {len(self.ranks)}"
        return late, f"{which} still ran after {timeout_s} s and had to be ended"

    def wait(self, deadline: float | None, grace_s: float, *, end_on_failure: bool = True) -> None:
        """Return when all have ended; from the first failure or the deadline on, make them end.

        Args:
            deadline: moment on the monotonic clock; late ranks write their stacks first.
            grace_s: from SIGTERM to SIGKILL.
            end_on_failure: if False, a failure changes nothing for the others.
        """
        settled: float | None = None
        while self.running():
            now = time.monotonic()
            if deadline is not None and now >= deadline:
                for rank in self.ranks:
                    rank.show_stacks()
                self.wait_until(now + _STACKS_S)
                break
            if end_on_failure and settled is None and self.failures():
                settled = now + SETTLE_S
            # Ranks that were asked to end may take their time, each its own.
            end = settled if self._ask_until is None else self._ask_until
            if end is not None and now >= end:
                break
            self.step()
        if self.running():
            for rank in self.ranks:
                rank.stop(signal.SIGTERM)
                rank.signal_group(signal.SIGCONT)  # who is stopped hears only this, and SIGKILL
            self.wait_until(time.monotonic() + grace_s)
            self.kill()

    def wait_until(self, deadline: float) -> None:
        """Return when all have ended, at the latest at the deadline."""
        while self.running() and time.monotonic() < deadline:
            self.step()

    def ask(self, signum: int, grace_s: float) -> None:
        """Send a signal to all, and let ``wait`` end them after ``grace_s``; a signal handler may.

        How a rank ends then is up to it: it counts as its own doing.
        """
        for rank in self.ranks:
            if rank.exitcode is None:
                rank.signal_group(signum)
        self._ask_until = time.monotonic() + grace_s

    def kill(self) -> None:
        """Kill all that have not ended."""
        for rank in self.ranks:
            rank.stop(signal.SIGKILL)
        self.wait_until(time.monotonic() + _REAP_S)

    def __enter__(self) -> Crew:  # noqa: PYI034 - typing.Self is newer than 3.9
        return self

    def __exit__(self, *exc_info: object) -> None:
        try:
            self.kill()
            deadline = time.monotonic() + _LEFTOVERS_S
            while time.monotonic() < deadline and any(rank.has_leftovers() for rank in self.ranks):
                time.sleep(0.005)
        finally:
            self._group.discard()
            for rank in self.ranks:
                if rank.has_leftovers():
                    rank.signal_group(signal.SIGKILL)
                rank.close()
            self._selector.close()


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
