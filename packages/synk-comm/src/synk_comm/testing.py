"""Tools for tests: ranks in fresh processes, and ranks in threads of this one."""

from __future__ import annotations

import signal
import threading
import time
from functools import partial
from typing import Any, Callable, NamedTuple, Sequence, TypeVar

from ._core.guard import DEFAULT_TIMEOUT_S
from ._join import create_group, join
from ._processes.crew import Crew
from ._processes.launch import packed
from ._processes.rank import unpickled
from .abc import Communicator

__all__ = ["Outcome", "in_threads", "run_ranks", "thread_group"]

T = TypeVar("T")


class Outcome(NamedTuple):
    """How a rank's process ended.

    Attributes:
        value: the function's result.
        failure: the traceback, or "".
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
        backend: ``"shm"`` or ``"zmq"``.
        timeout_s: after this time all processes are killed.
        check: if False, return ``Outcome`` objects in any case.

    Returns:
        The function's results, by rank.

    Raises:
        AssertionError: some rank failed; holds all tracebacks.
    """
    with Crew(create_group(size, backend)) as crew:
        # A failed rank just leaves: tests examine its peers then.
        crew.start(*packed(function, args, timeout_s, aborts=False))
        crew.wait(time.monotonic() + timeout_s, grace_s=0.0, end_on_failure=False)
    outcomes, failures = [], []
    for rank in crew.ranks:
        exitcode = -signal.SIGKILL if rank.exitcode is None else rank.exitcode
        outcome = Outcome(None, f"the process ended without an outcome ({exitcode})", exitcode)
        if rank.report is not None:
            value = None if rank.report.failure else unpickled(rank.report.value)
            outcome = Outcome(value, rank.report.failure, exitcode)
        outcomes.append(outcome)
        if outcome.failure or exitcode:
            failures.append(f"rank {rank.rank} (exit code {exitcode}):\n{outcome.failure}")
    if not check:
        return outcomes
    if failures:
        raise AssertionError("\n".join(failures))
    return [outcome.value for outcome in outcomes]


def thread_group(
    size: int, backend: str = "shm", *, timeout_s: float = DEFAULT_TIMEOUT_S, watch: Any = None
) -> list[Communicator]:
    """Return the communicators of a new group, in rank order, all in this process.

    Each is for a thread of its own: see ``in_threads``.
    """
    with create_group(size, backend) as group:
        tickets = [group.ticket(rank) for rank in range(size)]
        return _threads(
            [partial(join, ticket, timeout_s=timeout_s, watch=watch) for ticket in tickets],
            timeout_s + 1.0,
        )


def in_threads(
    comms: Sequence[Communicator], function: Callable[[Communicator], T], timeout_s: float = 30.0
) -> list[T]:
    """Run ``function(comm)`` for each communicator in its own thread; return what they return.

    Raise the first rank's exception after all have finished.
    """

    def give_up() -> None:
        for comm in comms:
            comm.abort(f"a test took longer than {timeout_s} s")

    return _threads([partial(function, comm) for comm in comms], timeout_s, give_up)


def _threads(
    acts: Sequence[Callable[[], T]], timeout_s: float, give_up: Callable[[], None] = lambda: None
) -> list[T]:
    values: dict[int, T] = {}
    failures: dict[int, BaseException] = {}

    def run(number: int) -> None:
        try:
            values[number] = acts[number]()
        except BaseException as exc:  # noqa: BLE001 - raised below, in the caller's thread
            failures[number] = exc

    threads = [
        threading.Thread(target=run, args=(number,), daemon=True) for number in range(len(acts))
    ]
    for thread in threads:
        thread.start()
    deadline = time.monotonic() + timeout_s
    for thread in threads:
        thread.join(max(0.0, min(deadline - time.monotonic(), threading.TIMEOUT_MAX)))
    if any(thread.is_alive() for thread in threads):
        give_up()
        raise AssertionError(f"ranks still run after {timeout_s} s; others raised {failures}")
    for number in sorted(failures):
        raise failures[number]
    return [values[number] for number in range(len(acts))]
