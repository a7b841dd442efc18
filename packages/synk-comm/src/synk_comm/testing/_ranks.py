"""Ranks in fresh processes, and ranks in threads."""

# ruff: noqa: S101 - asserts are how a test speaks

from __future__ import annotations

import contextlib
import inspect
import os
import pickle
import subprocess
import sys
import threading
import time
from typing import Any, Callable, NamedTuple, Sequence, TypeVar

from synk_comm._groups import create_group, local_group
from synk_comm._run_rank import Job
from synk_comm.abc import Communicator

T = TypeVar("T")


class Outcome(NamedTuple):
    """How a rank's process ended.

    Attributes:
        value: what the function returned.
        failure: the traceback of what it raised, or "".
        exitcode: of the process, negative for a signal.
    """

    value: Any
    failure: str
    exitcode: int


def run_ranks(
    size: int,
    function: Callable[..., Any],
    *args: Any,
    backend: str = "shm",
    timeout_s: float = 30.0,
    check: bool = True,
) -> list[Any]:
    """Run ``function(comm, *args)`` on ``size`` ranks, each in a fresh process.

    Args:
        function: of the top level of a module or file, which the processes load.
        args: picklable.
        backend: ``"shm"``, ``"zmq"``, or ``"local"`` for threads of this process instead.
        timeout_s: after this time all processes are killed.
        check: if False, return ``Outcome`` objects, whatever happened.

    Returns:
        What the function returned, by rank.

    Raises:
        AssertionError: some rank failed; holds all tracebacks.
    """
    if backend == "local":
        comms = local_group(size, timeout_s=timeout_s)
        return in_threads(comms, lambda comm: function(comm, *args), timeout_s)
    with create_group(size, backend) as group:
        children = []
        try:
            for rank in range(size):
                children.append(_Child(group.ticket(rank), group.fds, function, args, timeout_s))
            deadline = time.monotonic() + timeout_s
            outcomes = [child.outcome(deadline) for child in children]
        finally:
            for child in children:
                child.end()
    if not check:
        return outcomes
    failures = [
        f"rank {rank} (exit code {outcome.exitcode}):\n{outcome.failure}"
        for rank, outcome in enumerate(outcomes)
        if outcome.failure or outcome.exitcode
    ]
    if failures:
        raise AssertionError("\n".join(failures))
    return [outcome.value for outcome in outcomes]


class _Child:
    """The process of one rank."""

    def __init__(
        self,
        ticket: str,
        fds: Sequence[int],
        function: Callable[..., Any],
        args: tuple[Any, ...],
        timeout_s: float,
    ) -> None:
        self._pipe, outcome_fd = os.pipe()
        path = inspect.getsourcefile(function) or ""
        job = Job(
            ticket, function.__module__, path, function.__qualname__, args, timeout_s, outcome_fd
        )
        try:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "synk_comm._run_rank"],
                stdin=subprocess.PIPE,
                pass_fds=(*fds, outcome_fd),
                env=dict(os.environ, PYTHONPATH=os.pathsep.join(filter(None, sys.path))),
            )
        finally:
            os.close(outcome_fd)
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError), self._process.stdin as stdin:
            stdin.write(pickle.dumps(tuple(job)))

    def outcome(self, deadline: float) -> Outcome:
        """Wait for the process to end, or kill it when the time is up."""
        timer = threading.Timer(max(0.0, deadline - time.monotonic()), self._process.kill)
        timer.start()
        try:
            with open(self._pipe, "rb", closefd=False) as pipe:
                said = pipe.read()
            exitcode = self._process.wait()
        finally:
            timer.cancel()
            timer.join()
        if said:
            value, failure = pickle.loads(said)  # noqa: S301 - from a child of this process
            return Outcome(value, failure, exitcode)
        return Outcome(None, f"the process ended without an outcome ({exitcode})", exitcode)

    def end(self) -> None:
        """Make sure that nothing is left."""
        if self._process.poll() is None:
            self._process.kill()
            self._process.wait()
        os.close(self._pipe)


def in_threads(
    comms: Sequence[Communicator], function: Callable[[Communicator], T], timeout_s: float = 30.0
) -> list[T]:
    """Run ``function(comm)`` for each communicator in its own thread; return what they return.

    If some raise, the others are let finish and the first rank's exception is raised.
    """
    values: dict[int, T] = {}
    failures: dict[int, BaseException] = {}

    def run(comm: Communicator) -> None:
        try:
            values[comm.rank] = function(comm)
        except BaseException as exc:  # noqa: BLE001 - raised below, in the caller's thread
            failures[comm.rank] = exc

    threads = [threading.Thread(target=run, args=(comm,), daemon=True) for comm in comms]
    for thread in threads:
        thread.start()
    deadline = time.monotonic() + timeout_s
    for thread in threads:
        thread.join(max(0.0, deadline - time.monotonic()))
    if any(thread.is_alive() for thread in threads):
        for comm in comms:
            comm.abort(f"a test took longer than {timeout_s} s")
        raise AssertionError(f"ranks still run after {timeout_s} s; others raised {failures}")
    for rank in sorted(failures):
        raise failures[rank]
    return [values[comm.rank] for comm in comms]
