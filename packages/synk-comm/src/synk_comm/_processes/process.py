"""The process of one rank, from the outside: start, feed, read, signal, and how it ended.

Each rank leads a session of its own, so that its whole process group can be ended with it, and so
that a terminal's Ctrl-C comes to the parent alone, which passes it on. What a rank does with its
work is in ``_processes.rank``; the loop over all ranks is in ``_processes.crew``.
"""

from __future__ import annotations

import contextlib
import os
import pickle
import signal
import subprocess
import time
from typing import Mapping, NamedTuple, Sequence

from synk_comm._system.liveness import cores
from synk_comm.starting import NO_RANKS, interpreter

from .lifeline import Lifeline
from .rank import BOOT, STACKS_SIGNAL, RankReport, Script, Start, Task

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
        environment.setdefault("OMP_NUM_THREADS", str(max(1, cores() // size)))
    environment.update(extra or {})
    return environment


class RankProcess:
    """The process of one rank.

    Attributes:
        rank: its number.
        process: its ``subprocess.Popen``.
        exitcode: None while it runs; negative for a signal.
        report: of the result of its work, or None.
        stopped_at: when it was first asked to end by us, or None.
    """

    def __init__(
        self,
        rank: int,
        work: Task | Script,
        payload: bytes = b"",
        *,
        path: Sequence[str],
        argv: Sequence[str],
        env: Mapping[str, str],
        fds: Sequence[int] = (),
        stdin: int | None = subprocess.DEVNULL,
        stdout: int | None = None,
        stderr: int | None = None,
    ) -> None:
        self.rank = rank
        self.exitcode: int | None = None
        self.report: RankReport | None = None
        self.stopped_at: float | None = None
        self._must_report = isinstance(work, Task)
        self._ended_at = 0.0
        self._heard = bytearray()
        self._nobody_left = False
        self._lifeline = Lifeline.create()
        work_fd = self._lifeline.reading.fileno()
        hear_fd, report_fd = os.pipe()
        self._hear = open(hear_fd, "rb", buffering=0)  # noqa: SIM115 - until close()
        start = Start(rank, os.getpid(), report_fd, list(argv))
        head = b"".join(map(pickle.dumps, (list(path), tuple(start), work)))
        self._to_say = [memoryview(head), memoryview(payload)]
        try:
            os.set_blocking(self._lifeline.writing.fileno(), False)
            os.set_blocking(hear_fd, False)
            self.process = subprocess.Popen(
                [interpreter(), *_flags(), "-c", BOOT, str(work_fd)],
                pass_fds=(work_fd, report_fd, *fds),
                start_new_session=True,
                env=env,
                stdin=stdin,
                stdout=stdout,
                stderr=stderr,
                bufsize=0,
            )
        except BaseException:
            self._close_pipes()
            raise
        finally:
            os.close(report_fd)

    def __repr__(self) -> str:
        state = "running" if self.exitcode is None else describe_exit(self.exitcode)
        return f"<RankProcess {self.rank}, pid {self.process.pid}, {state}>"

    # -- what a selector calls: the methods return whether they are done ----------------------

    def fileno_to_feed(self) -> int:
        """Return the descriptor for ``feed``."""
        return self._lifeline.writing.fileno()

    def fileno_to_hear(self) -> int:
        """Return the descriptor for ``hear``."""
        return self._hear.fileno()

    def feed(self) -> bool:
        """Write what the pipe takes of the work."""
        try:
            while self._to_say:
                sent = self._lifeline.writing.write(self._to_say[0])
                if sent is None:  # full
                    return False
                self._to_say[0] = self._to_say[0][sent:]
                if not self._to_say[0]:
                    del self._to_say[0]
        except BrokenPipeError:  # it has ended, which will be found out
            self._to_say.clear()
        if self.exitcode is None:  # else its number may be another process's by now
            self._lifeline.end_group_with_us(self.process.pid)
        return True

    def hear(self) -> bool:
        """Read what there is of the report."""
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

    # -- its life -----------------------------------------------------------------------------

    def poll(self) -> bool:
        """Return whether the process has ended, and take note how."""
        if self.exitcode is None and self.process.poll() is not None:
            if self.report is None:
                self.hear()
            self._ended_at = time.monotonic()
            self.exitcode = self.process.returncode
            # Its own children go with it; those that clean up after it get a moment for that.
            self.signal(signal.SIGTERM)
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

    def signal(self, signum: int) -> bool:
        """Send to its group; return whether there is anyone, even if only zombies.

        A number is not given again while its group has members: once it has had none, it is not
        ours any more.
        """
        if self._nobody_left:
            return False
        try:
            os.killpg(self.process.pid, signum)
        except PermissionError:  # only zombies, on some systems
            pass
        except ProcessLookupError:
            self._nobody_left = True
            return False
        return True

    def stop(self, signum: int) -> None:
        """Send a signal that is to end it; what happens from now on is no failure of its own."""
        if not self.poll():
            if self.stopped_at is None:
                self.stopped_at = time.monotonic()
            self.signal(signum)

    def show_stacks(self) -> None:
        """Ask a rank that is late where it is; it is going to be stopped."""
        if not self.poll():
            self.stopped_at = time.monotonic()
            self.process.send_signal(STACKS_SIGNAL)

    def has_leftovers(self) -> bool:
        """Return whether the group outlives its leader."""
        return self.signal(0) and _any_alive(self.process.pid)

    def kill_leftovers(self) -> None:
        """Kill the rest of the group."""
        if self.has_leftovers():
            self.signal(signal.SIGKILL)

    def close(self) -> None:
        """Drop the pipes."""
        self._close_pipes()
        for stream in (self.process.stdout, self.process.stderr):
            if stream is not None:
                stream.close()

    def _close_pipes(self) -> None:
        self._lifeline.close()
        self._hear.close()


def _any_alive(group: int) -> bool:
    """Return whether a process of a group is alive: not a zombie."""
    try:
        pids = [name for name in os.listdir("/proc") if name.isdigit()]
    except OSError:
        return True
    for pid in pids:
        with contextlib.suppress(OSError, IndexError), open(f"/proc/{pid}/stat", "rb") as file:
            # The name, in parentheses, may hold anything; then state, parent, group.
            state, _, its_group = file.read().rpartition(b")")[2].split()[:3]
            if int(its_group) == group and state not in (b"Z", b"X"):
                return True
    return False


def _flags() -> list[str]:
    # What multiprocessing gives to its own children, too: -W, -X, -O, -E, ...
    flags: list[str] = subprocess._args_from_interpreter_flags()  # type: ignore[attr-defined]
    return flags
