"""Tools for tests: ranks in fresh processes, ranks in threads, and a test suite for backends.

A backend passes if a subclass of ``CommunicatorContract`` with one fixture does::

    class TestMine(CommunicatorContract):
        @pytest.fixture
        def make_group(self):
            return lambda size: [...]  # a list of ``size`` communicators, for threads
"""

from __future__ import annotations

import contextlib
import inspect
import os
import pickle
import subprocess
import sys
import threading
import time
from typing import Any, Callable, Iterator, NamedTuple, Sequence, TypeVar

import numpy as np
import pytest

from ._checks import CHECKS
from ._groups import create_group, local_group
from ._run_rank import Job
from .abc import Communicator
from .exceptions import AbortedError, ClosedError, CommTimeout, PeerLost

T = TypeVar("T")

__all__ = ["CHECKS", "CommunicatorContract", "Outcome", "in_threads", "run_ranks"]


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


MakeGroup = Callable[[int], Sequence[Communicator]]


class CommunicatorContract:
    """What every backend must do; subclass it, and give it ``make_group``."""

    @pytest.fixture
    def make_group(self) -> MakeGroup:
        """Return a function that makes a list of communicators, in rank order."""
        raise NotImplementedError("a subclass gives this fixture")

    @pytest.fixture
    def pair(self, make_group: MakeGroup) -> Iterator[Sequence[Communicator]]:
        """A fresh group of two, to be broken."""
        comms = make_group(2)
        yield comms
        for comm in comms:
            comm.close()

    @pytest.mark.parametrize("size", [1, 2, 3, 4])
    def test_every_check(self, make_group: MakeGroup, size: int) -> None:
        """Every rule of the contract holds, all in one group, which stays usable."""
        comms = make_group(size)
        try:
            for check in CHECKS:
                in_threads(comms, check)
                totals = in_threads(comms, lambda comm: comm.all_reduce(1).item())
                assert totals == [size] * size, check.__name__
        finally:
            for comm in comms:
                comm.close()

    def test_abort_ends_a_wait(self, pair: Sequence[Communicator]) -> None:
        """A waiting rank is let go by abort; later calls raise on both."""

        def run(comm: Communicator) -> None:
            if comm.rank == 0:
                with pytest.raises(AbortedError, match="enough is enough") as caught:
                    comm.barrier()
                assert caught.value.rank == 1
            else:
                time.sleep(0.1)
                comm.abort("enough is enough")
            for _ in range(2):
                with pytest.raises(AbortedError, match="enough is enough"):
                    comm.all_reduce(np.ones(3))
            assert "aborted" in repr(comm)

        in_threads(pair, run)

    def test_abort_from_another_thread(self, pair: Sequence[Communicator]) -> None:
        """The own wait, too, ends by abort from another thread."""
        timer = threading.Timer(0.1, pair[0].abort, ["stop"])
        timer.start()
        with pytest.raises(AbortedError, match="stop"):
            pair[0].barrier()
        timer.join()
        with pytest.raises(AbortedError, match="stop"):
            for _ in range(2):  # rank 0 had entered the first
                pair[1].barrier()

    def test_timeout_names_the_missing_and_ends_the_group(
        self, pair: Sequence[Communicator]
    ) -> None:
        """Who waits in vain says for whom; who comes late is told."""
        in_threads(pair, lambda comm: comm.all_reduce(np.ones(3), "max"))
        with pytest.raises(
            CommTimeout, match=r"rank 1: last entered call #1, all_reduce"
        ) as caught:
            pair[0].barrier(timeout_s=0.1)
        assert list(caught.value.missing) == [1]
        assert isinstance(caught.value, TimeoutError)
        for comm in pair:
            with pytest.raises(AbortedError, match="CommTimeout"):
                comm.barrier()

    def test_closed_peer_is_lost(self, pair: Sequence[Communicator]) -> None:
        """A rank that waits for a closed one is let go; close can be repeated."""
        pair[1].close()
        pair[1].close()
        with pytest.raises(PeerLost, match="closed") as caught:
            pair[0].barrier()
        assert caught.value.rank == 1
        with pytest.raises(PeerLost):
            pair[0].barrier()
        with pytest.raises(ClosedError):
            pair[1].barrier()
        assert "closed" in repr(pair[1])

    def test_last_collective_completes_although_a_peer_closes(
        self, pair: Sequence[Communicator]
    ) -> None:
        """A rank that leaves after its last collective does not spoil it for the others."""

        def run(comm: Communicator) -> float:
            with comm:
                return float(comm.all_reduce(np.ones(1000)).sum())

        assert in_threads(pair, run) == [2000.0, 2000.0]

    def test_two_threads_at_once(self, pair: Sequence[Communicator]) -> None:
        """A second thread is refused; the first one's collective goes on."""
        first = threading.Thread(target=pair[0].barrier, daemon=True)
        first.start()
        time.sleep(0.1)
        with pytest.raises(RuntimeError, match="another thread"):
            pair[0].barrier()
        pair[1].barrier()
        first.join(10)
        assert not first.is_alive()
