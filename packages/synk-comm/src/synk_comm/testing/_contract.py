"""The test suite that every backend takes up."""

# ruff: noqa: S101, PT017 - asserts are how a test speaks

from __future__ import annotations

import contextlib
import gc
import re
import sys
import threading
import time
import traceback
from typing import Any, Callable, Iterator, Sequence

import numpy as np
import pytest

from synk_comm.abc import Communicator
from synk_comm.exceptions import (
    AbortedError,
    ClosedError,
    CommError,
    CommTimeout,
    MismatchError,
    PeerLost,
)

from ._checks import THEMES
from ._checks_tools import raises
from ._ranks import in_threads

MakeGroup = Callable[[int], Sequence[Communicator]]
Pair = Sequence[Communicator]


def _in_all(comms: Sequence[Communicator], check: Callable[[Communicator], None]) -> None:
    """Run a check on all ranks; raise what went wrong first, without waiting for the others."""
    errors: list[Exception] = []

    def run(comm: Communicator) -> None:
        try:
            check(comm)
        except Exception as exc:  # noqa: BLE001 - raised below
            errors.append(exc)
            comm.abort(f"{check.__name__} failed")

    in_threads(comms, run)
    if errors:
        raise errors[0]


def _raised(act: Callable[[], Any]) -> BaseException | None:
    try:
        act()
    except BaseException as exc:  # noqa: BLE001 - whatever it is, it is looked at
        return exc
    return None


class CommunicatorContract:
    """What every backend must do; subclass it, and give it ``make_group``.

    Attributes:
        sizes: how many ranks the groups have in which all checks run.
    """

    sizes: Sequence[int] = (1, 2, 3, 4, 5)

    def pytest_generate_tests(self, metafunc: pytest.Metafunc) -> None:
        """Run the checks in groups of all ``sizes``."""
        if "size" in metafunc.fixturenames:
            metafunc.parametrize("size", type(self).sizes)

    @pytest.fixture
    def make_group(self) -> MakeGroup:
        """Return a function that makes a list of communicators, in rank order."""
        raise NotImplementedError("a subclass gives this fixture")

    @pytest.fixture
    def pair(self, make_group: MakeGroup) -> Iterator[Pair]:
        """A fresh group of two, to be broken."""
        comms = make_group(2)
        yield comms
        for comm in comms:
            comm.close()

    @pytest.mark.parametrize("theme", list(THEMES))
    def test_every_check(self, make_group: MakeGroup, theme: str, size: int) -> None:
        """Every rule of the contract holds, one after the other in a group that stays usable."""
        comms = make_group(size)
        failures: list[str] = []
        try:
            for check in THEMES[theme]:
                try:
                    _in_all(comms, check)
                    totals = in_threads(comms, lambda comm: comm.all_reduce(1).item())
                    assert totals == [size] * size
                except Exception:  # noqa: BLE001 - the others are of interest, too
                    failures.append(f"{check.__name__}: {traceback.format_exc(limit=-4)}")
                    for comm in comms:
                        comm.close()
                    comms = make_group(size)
            assert not failures, "\n\n".join(failures)
        finally:
            for comm in comms:
                comm.close()

    # -- the end of a group -----------------------------------------------------------------

    def test_abort_ends_a_wait(self, pair: Pair) -> None:
        """A waiting rank is let go by abort; later calls raise on both."""

        def run(comm: Communicator) -> None:
            if comm.rank == 0:
                caught = raises(AbortedError, "enough is enough", comm.barrier)
                assert caught.rank == 1
                assert caught.reason == "enough is enough"
            else:
                time.sleep(0.1)
                comm.abort("enough is enough")
                comm.abort("and once more")
            for _ in range(2):
                raises(AbortedError, "enough is enough", lambda: comm.all_reduce(np.ones(3)))
            assert "aborted" in repr(comm)

        in_threads(pair, run)

    def test_an_exception_out_of_the_with_block_tells_the_peers(self, pair: Pair) -> None:
        """Peers that wait learn what it was; not of an orderly end, or what all ranks raised."""
        with contextlib.suppress(KeyError), pair[1]:
            raise KeyError("weights")
        caught = raises(AbortedError, "rank 1: KeyError: 'weights'", pair[0].barrier)
        assert (caught.rank, caught.reason) == (1, "KeyError: 'weights'")
        raises(ClosedError, "", pair[1].barrier)

    @pytest.mark.parametrize("how", ["exit", "mismatch", "lost"])
    def test_an_exception_that_is_no_news_is_not_told(self, pair: Pair, how: str) -> None:
        """Who just ends has closed its communicator; what peers know is not told as its fault."""

        def run(comm: Communicator) -> None:
            with comm:
                if how == "exit" and comm.rank:
                    sys.exit(0)
                if how == "lost" and comm.rank:
                    return
                if how == "mismatch":
                    comm.all_reduce(np.ones(3 + comm.rank))
                comm.barrier()

        kinds = {"exit": PeerLost, "lost": PeerLost, "mismatch": MismatchError}
        found = in_threads(pair, lambda comm: _raised(lambda: run(comm)))
        assert isinstance(found[0], kinds[how])
        assert isinstance(found[1], kinds[how] if how == "mismatch" else (SystemExit, type(None)))

    def test_abort_from_another_thread(self, pair: Pair) -> None:
        """The own wait, too, ends by abort from another thread."""
        timer = threading.Timer(0.1, pair[0].abort, ["stop"])
        timer.start()
        raises(AbortedError, "stop", pair[0].barrier)
        timer.join()
        # At the latest the second call tells.
        raises(AbortedError, "stop", lambda: [pair[1].barrier() for _ in range(2)])

    @pytest.mark.parametrize("which", ["send", "recv", "large", "again"])
    def test_abort_ends_every_kind_of_wait(self, pair: Pair, which: str) -> None:
        """Waits between two ranks, and those in the middle of a call, end as well."""
        waits: dict[str, Callable[[Communicator], Any]] = {
            "send": lambda comm: comm.send(np.zeros(30_000_000, "u1"), 1 - comm.rank),
            "recv": lambda comm: comm.recv(1 - comm.rank),
            "large": lambda comm: comm.all_reduce(np.zeros(3_000_000)),
            "again": lambda comm: comm.all_reduce(np.zeros(3)),
        }
        in_threads(pair, lambda comm: [comm.all_reduce(np.zeros(3)) for _ in range(3)])
        timer = threading.Timer(0.1, pair[1].abort, ["no more"])
        timer.start()
        raises(AbortedError, "no more", lambda: waits[which](pair[0]))
        timer.join()
        raises(AbortedError, "no more", pair[0].barrier)

    def test_timeout_names_the_missing_and_ends_the_group(self, pair: Pair) -> None:
        """Who waits in vain says for whom; who comes late is told."""
        in_threads(pair, lambda comm: comm.all_reduce(np.ones(3), "max"))
        caught = raises(
            CommTimeout,
            "rank 1: last entered call #1, all_reduce(max",
            lambda: pair[0].barrier(timeout_s=0.1),
        )
        assert list(caught.missing) == [1]
        assert "all_reduce(max" in caught.missing[1]
        assert isinstance(caught, TimeoutError)
        assert re.match(r"rank 0 waited 0\.\d+ s in call", str(caught))
        assert "call #2" in str(caught)
        for comm in pair:
            # A message may still be under way: at the latest the second call tells.
            raises(AbortedError, "CommTimeout", lambda comm=comm: [comm.barrier(), comm.barrier()])  # type: ignore[misc]

    def test_half_a_letter_ends_the_group(self, pair: Pair) -> None:
        """What comes after a message that was sent by half is not taken for the rest of it."""
        letter = np.ones(30_000_000, "u1")
        raises(CommTimeout, "rank 1", lambda: pair[0].send(letter, 1, timeout_s=0.1))
        raises(AbortedError, "CommTimeout", lambda: pair[0].send(letter, 1, timeout_s=0.1))
        raises(AbortedError, "CommTimeout", lambda: pair[1].recv(0))

    def test_timeout_names_all_who_are_missing(self, make_group: MakeGroup) -> None:
        """Of five ranks those are named that did not come, and no others."""
        comms = make_group(5)
        try:
            in_threads(comms, lambda comm: comm.broadcast_object("x", 2))

            def run(comm: Communicator) -> Any:
                if comm.rank in (1, 4):
                    return None
                try:
                    return comm.barrier(timeout_s=0.3)
                except CommTimeout as exc:
                    return exc
                except AbortedError as exc:  # another rank's time was up a little earlier
                    assert "CommTimeout" in str(exc)
                    return None

            errors = [exc for exc in in_threads(comms, run) if exc is not None]
            assert errors
            for error in errors:
                assert sorted(error.missing) == [1, 4]
                assert all("broadcast_object" in said for said in error.missing.values())
                assert "rank 0:" not in str(error)
        finally:
            for comm in comms:
                comm.close()

    def test_closed_peer_is_lost(self, pair: Pair) -> None:
        """A rank that waits for a closed one is let go; close can be repeated."""
        pair[1].close()
        pair[1].close()
        caught = raises(PeerLost, "closed", pair[0].barrier)
        assert caught.rank == 1
        assert isinstance(caught, ConnectionError)
        raises(PeerLost, "", pair[0].barrier)
        raises(ClosedError, "", pair[1].barrier)
        assert "closed" in repr(pair[1])

    @pytest.mark.parametrize("which", ["barrier", "recv", "send", "large", "again", "decline"])
    def test_close_lets_a_waiting_peer_go(self, pair: Pair, which: str) -> None:
        """Whatever a rank waits in, it ends soon after the other has closed."""
        waits: dict[str, Callable[[Communicator], Any]] = {
            "barrier": lambda comm: comm.barrier(),
            "recv": lambda comm: comm.recv(1, tag=3),
            "send": lambda comm: comm.send(np.zeros(30_000_000, "u1"), 1),
            "large": lambda comm: comm.all_reduce(np.zeros(3_000_000)),
            "again": lambda comm: comm.all_reduce(np.zeros(3)),
            "decline": lambda comm: comm.decline("no"),
        }
        in_threads(pair, lambda comm: [comm.all_reduce(np.zeros(3)) for _ in range(3)])
        closed: list[float] = []

        def close() -> None:
            closed.append(time.monotonic())
            pair[1].close()

        timer = threading.Timer(0.1, close)
        timer.start()
        caught = raises(PeerLost, "rank 1", lambda: waits[which](pair[0]))
        assert time.monotonic() - closed[0] < 5
        assert caught.rank == 1
        timer.join()

    def test_close_from_another_thread(self, pair: Pair) -> None:
        """A wait ends when another thread closes the communicator."""
        timer = threading.Timer(0.1, pair[0].close)
        timer.start()
        raises(CommError, "closed", pair[0].barrier)
        timer.join()
        raises(ClosedError, "closed", pair[0].barrier)
        assert "closed" in repr(pair[0])

    def test_everything_is_refused_after_close(self, make_group: MakeGroup) -> None:
        """No method of a closed communicator does anything, or waits."""
        (comm,) = make_group(1)
        kept = comm.empty(1000)
        kept[...] = 3.0
        comm.close()
        x = np.ones(3)
        calls: list[Callable[[], Any]] = [
            comm.barrier,
            lambda: comm.all_reduce(x),
            lambda: comm.reduce(x),
            lambda: comm.reduce_scatter(x),
            lambda: comm.broadcast(x),
            lambda: comm.scatter([x]),
            lambda: comm.gather(x),
            lambda: comm.all_gather(x),
            lambda: comm.all_to_all([x]),
            lambda: comm.send(x, 0),
            lambda: comm.recv(0),
            lambda: comm.broadcast_object(1),
            lambda: comm.gather_object(1),
            lambda: comm.all_gather_object(1),
            lambda: comm.scatter_object([1]),
            lambda: comm.all_to_all_object([1]),
            lambda: comm.send_object(1, 0),
            lambda: comm.recv_object(0),
            lambda: comm.empty(3),
            lambda: comm.split(0),
            lambda: comm.decline("no"),
        ]
        for call in calls:
            raises(ClosedError, "closed", call)
        comm.abort("too late")
        comm.close()
        assert (kept == 3.0).all()
        kept += 1

    def test_arrays_outlive_their_group(self, pair: Pair) -> None:
        """Arrays of ``empty``, and results, may be kept after close and written to."""

        def run(comm: Communicator) -> list[Any]:
            with comm:
                x, y = comm.empty(200_000), comm.empty((3, 4), "i4")
                x[...], y[...] = comm.rank, comm.rank
                view = x[10:20]
                comm.all_reduce(x, out=x)
                return [view, y, comm.all_gather(y), comm.broadcast(comm.empty(5))]

        kept = in_threads(pair, run)
        gc.collect()
        for rank, (view, y, gathered, received) in enumerate(kept):
            assert (view == 1).all()
            assert (y == rank).all()
            assert [array[0, 0] for array in gathered] == [0, 1]
            view += 1
            received[...] = 4.0
        assert (kept[0][0] == 2).all()

    def test_last_collective_completes_although_a_peer_closes(self, pair: Pair) -> None:
        """A rank that leaves after its last collective does not spoil it for the others."""

        def run(comm: Communicator) -> float:
            with comm:
                return float(comm.all_reduce(np.ones(1000)).sum())

        assert in_threads(pair, run) == [2000.0, 2000.0]

    def test_last_letter_arrives_although_its_sender_closes(self, pair: Pair) -> None:
        """What was sent before close can still be received."""
        pair[0].send(np.arange(500), 1, tag=2)
        pair[0].close()
        np.testing.assert_array_equal(pair[1].recv(0, tag=2), np.arange(500))
        raises(PeerLost, "rank 0", lambda: pair[1].recv(0, tag=2))

    # -- who may call -------------------------------------------------------------------------

    def test_two_threads_at_once(self, pair: Pair) -> None:
        """A second thread is refused; the first one's collective goes on."""
        for warm in (0, 3):
            in_threads(pair, lambda comm: [comm.barrier() for _ in range(warm)])  # noqa: B023
            first = threading.Thread(target=pair[0].barrier, daemon=True)
            first.start()
            time.sleep(0.1)
            raises(RuntimeError, "another thread", pair[0].barrier)
            raises(RuntimeError, "another thread", lambda: pair[0].send(np.ones(1), 1))
            raises(RuntimeError, "another thread", lambda: pair[0].all_reduce(np.ones(1)))
            pair[1].barrier()
            first.join(10)
            assert not first.is_alive()

    def test_one_thread_after_another(self, pair: Pair) -> None:
        """Any thread may call, as long as it is one at a time."""
        for _ in range(5):
            totals = in_threads(pair, lambda comm: comm.all_reduce(np.ones(3)).sum())
            assert totals == [6.0, 6.0]
