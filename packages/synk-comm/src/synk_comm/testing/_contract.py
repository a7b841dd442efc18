"""The test suite that every backend takes up."""

# ruff: noqa: S101, PT017 - asserts are how a test speaks

from __future__ import annotations

import sys
import traceback
from typing import Any, Callable, Iterator, Sequence

import numpy as np
import pytest

from synk_comm.abc import Communicator
from synk_comm.exceptions import (
    AbortedError,
    ClosedError,
    CommTimeout,
    MismatchError,
    PeerLost,
)

from ._checks import THEMES
from ._checks_ends import ENDS
from ._checks_tools import Check, raises
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

    @pytest.mark.parametrize("end", ENDS, ids=lambda end: end.__name__)
    @pytest.mark.parametrize("count", [2, 3])
    def test_every_end(self, make_group: MakeGroup, end: Check, count: int) -> None:
        """However a group ends, each of its ranks learns of it, and none waits for ever."""
        comms = make_group(count)
        try:
            in_threads(comms, end)
        finally:
            for comm in comms:
                comm.close()

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

    # -- who may call -------------------------------------------------------------------------

    def test_one_thread_after_another(self, pair: Pair) -> None:
        """Any thread may call, as long as it is one at a time."""
        for _ in range(5):
            totals = in_threads(pair, lambda comm: comm.all_reduce(np.ones(3)).sum())
            assert totals == [6.0, 6.0]
