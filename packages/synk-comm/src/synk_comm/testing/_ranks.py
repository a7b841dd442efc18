"""Ranks in fresh processes, and ranks in threads."""

from __future__ import annotations

import signal
import threading
import time
from typing import Any, Callable, NamedTuple, Sequence, TypeVar

from synk_comm._backends.local import local_group
from synk_comm._join.groups import create_group
from synk_comm._processes.crew import Crew
from synk_comm._processes.launch import packed, start
from synk_comm._processes.loading import unpickled
from synk_comm._processes.process import RankProcess
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
    outcomes = _outcomes(size, function, args, backend, timeout_s)
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


def _outcomes(
    size: int,
    function: Callable[..., Any],
    args: tuple[Any, ...],
    backend: str,
    timeout_s: float,
) -> list[Outcome]:
    """Run all ranks to their ends, even if some fail."""
    work = packed(function, args)
    with create_group(size, backend) as group, Crew() as crew:
        try:
            # A rank that fails leaves: how peers take that is what tests are about.
            start(crew, group, work, timeout_s, tell=False)
            crew.wait(time.monotonic() + timeout_s, grace_s=0.0, end_on_failure=False)
        finally:
            crew.kill()
            group.discard()
    return [_outcome(rank) for rank in crew.ranks]


def _outcome(rank: RankProcess) -> Outcome:
    exitcode = -signal.SIGKILL if rank.exitcode is None else rank.exitcode
    report = rank.report
    if report is None:
        return Outcome(None, f"the process ended without an outcome ({exitcode})", exitcode)
    value = None if report.failure else unpickled(report.value)
    return Outcome(value, report.failure, exitcode)


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
