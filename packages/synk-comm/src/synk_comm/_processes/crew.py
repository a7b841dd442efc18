"""The processes of ranks, from the outside: start, watch, end, and how they ended."""

from __future__ import annotations

import contextlib
import os
import pickle
import selectors
import signal
import subprocess
import time
from typing import Any, Callable, Mapping, Sequence, Union

from synk_comm._join import Group
from synk_comm._system.memory import memory_file
from synk_comm.processes import NO_RANKS, Process, import_path, stat, threads_per_rank

from .rank import STACKS_SIGNAL, RankReport, Script, Task

Environment = Union[Mapping[str, str], Callable[[int], Mapping[str, str]], None]

_SETTLE_S = 3.0  # after a rank failed, for the others to fail and report it, on a busy machine
_STACKS_S = 0.3  # for late ranks to write their stacks
_LEFTOVERS_S = 1.0  # from SIGTERM to SIGKILL, for children of a rank that has ended
_REAP_S = 5.0  # from SIGKILL until a process is given up: it may be stuck in the kernel
_NAP_S = 0.02


def describe_exit(exitcode: int) -> str:
    if exitcode >= 0:
        return f"ended with exit code {exitcode}"
    try:
        name = signal.Signals(-exitcode).name
    except ValueError:
        name = f"signal {-exitcode}"
    hint = " (out of memory? see the kernel's log)" if name == "SIGKILL" else ""
    return f"was killed by {name}{hint}"


class RankProcess(Process):
    """The process of one rank, which calls ``_processes.rank.main``."""

    def __init__(
        self, rank: int, work: Task | Script, payload: int, fds: Sequence[int], **how: Any
    ) -> None:
        self.rank = rank
        self.exitcode: int | None = None  # known to `has_ended`; negative for a signal
        self.report: RankReport | None = None  # known to `has_ended`
        self.stopped_at: float | None = None  # when we first asked it to end
        self._must_report = isinstance(work, Task)
        self._ended_at = 0.0
        self._file = memory_file(b"\0")
        fd = self._file.fileno()
        super().__init__(
            "synk_comm._processes.rank",
            "main",
            (rank, fd, payload, work),
            fds=(fd, payload, *fds),
            # As multiprocessing does: -W, -X, -O, -E, ...
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
                self.signal_group(signal.SIGTERM)  # its children, which may have to clean up
        return self.exitcode is not None

    def failure(self) -> RankReport | None:
        """Return how the rank failed, unless we stopped it.

        A process that died without a report has ``brief`` and ``at`` only.
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
        has_stopped = self.stopped_at is not None
        return "was ended while it was still running" if has_stopped else "had ended well"

    def stop(self, signum: int) -> None:
        """Send a signal to end it; a later failure is not its own."""
        if not self.has_ended():
            if self.stopped_at is None:
                self.stopped_at = time.monotonic()
            self.signal_group(signum)

    def show_stacks(self) -> None:
        """Ask a late rank where it is, before it is stopped."""
        if not self.has_ended():
            self.stopped_at = time.monotonic()
            self.send_signal(STACKS_SIGNAL)

    def has_leftovers(self) -> bool:
        """Return whether a process of its group is alive, not a zombie."""
        if not self.signal_group(0):
            return False
        try:
            pids = [int(name) for name in os.listdir("/proc") if name.isdigit()]
        except OSError:
            return True
        for pid in pids:
            with contextlib.suppress(OSError, ValueError):
                state, _, group = stat(pid)[:3]
                if int(group) == self.pid and state not in (b"Z", b"X"):
                    return True
        return False

    def close(self) -> None:
        super().close()
        self._file.close()


class Crew:
    """All ranks of a group; the end of its ``with`` block ends them, and discards the group."""

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
        path: Sequence[str] | None = None,
        stdin: int | None = subprocess.DEVNULL,
        output: int | None = None,
    ) -> None:
        """Start all ranks, until they are asked to end.

        ``payload`` is, of a task, ``pickle.dumps((function, args))``; ``env`` adds variables, and
        ``stdin`` is of rank 0: the others have none.
        """
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
                        self._group.fds,
                        path=path,
                        env=self._environment(rank, env(rank) if callable(env) else env),
                        stdin=subprocess.DEVNULL if rank else stdin,
                        stdout=output,
                        stderr=output,
                    )
                )

    def _environment(self, rank: int, extra: Mapping[str, str] | None) -> dict[str, str]:
        size, environment = self._group.size, dict(os.environ)
        if "SYNK_COMM_RANK" in environment:  # ranks of a rank start no more: it would have no end
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
        return [rank for rank in self.ranks if not rank.has_ended()]

    def failures(self) -> list[tuple[RankProcess, RankReport]]:
        """Return all failures by time, but those caused by other ranks last."""
        found = [(rank, report) for rank in self.ranks for report in [rank.failure()] if report]
        return sorted(found, key=lambda failed: (failed[1].by_others, failed[1].at))

    def fates(self, besides: RankProcess) -> str:
        """Describe how the other ranks ended, each in a line."""
        return "".join(f"\n  rank {r.rank}: {r.fate()}" for r in self.ranks if r is not besides)

    def late(self, timeout_s: float | None) -> tuple[list[int], str]:
        """Return the ranks that had to be ended, and a sentence about them."""
        late = [rank.rank for rank in self.ranks if rank.stopped_at is not None]
        which = f"rank{'s' * (len(late) > 1)} {', '.join(map(str, late))} of {len(self.ranks)}"
        return late, f"{which} still ran after {timeout_s} s and had to be ended"

    def wait(self, deadline: float | None, grace_s: float, *, end_on_failure: bool = True) -> None:
        """Wait until all have ended; end them after a failure, or at the deadline.

        Late ranks write their stacks then. From SIGTERM to SIGKILL they have ``grace_s``.
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
                settled = now + _SETTLE_S
            end = settled if self._ask_until is None else self._ask_until
            if end is not None and now >= end:
                break
            self._step()
        if self.running():
            for rank in self.ranks:
                rank.stop(signal.SIGTERM)
                rank.signal_group(signal.SIGCONT)  # a stopped process gets only this, and SIGKILL
            self.wait_until(time.monotonic() + grace_s)
            self.kill()

    def wait_until(self, deadline: float) -> None:
        """Wait until all have ended, at most until the deadline."""
        while self.running() and time.monotonic() < deadline:
            self._step()

    def _step(self) -> None:
        """Pass on output; else wait for a moment: no event shows reports and ends of ranks."""
        for key, _ in self._selector.select(_NAP_S):
            if key.data():
                self._selector.unregister(key.fd)
        for rank in self.ranks:
            if rank.has_ended():
                rank.signal_group(0)  # to notice when its group is empty

    def ask(self, signum: int, grace_s: float) -> None:
        """Send a signal to all; ``wait`` ends them after ``grace_s``. A signal handler may call it.

        A failure of a rank then counts as its own.
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
