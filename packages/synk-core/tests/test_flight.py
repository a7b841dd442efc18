"""The flight recorder: what every rank did, readable also when the rank is dead."""

from __future__ import annotations

import os
import signal
import time
from types import SimpleNamespace

import numpy as np
import pytest
from _features import UNPROVED
from _leaks import no_ranks_left
from hypothesis import given
from hypothesis import strategies as st

from synk_core import Runtime
from synk_core._wire.flight import KINDS, RECORDS, WORDS, ActOutcome, Flight
from synk_core.exceptions import Closed, WorkerDied, WorkerFailed
from synk_testing.engine import T, as_op

x = T.dvector("x")
ACTS = st.tuples(st.integers(0, len(KINDS) - 1), st.integers(0, 9), st.booleans())


@given(st.lists(ACTS, max_size=3 * RECORDS))
def test_the_ring_has_the_last_acts_in_order(acts):
    room = np.zeros(3 * WORDS, np.int64)
    writer, reader = Flight(room, 1), Flight(room, 1)
    said = []
    for serial, (kind, subject, fails) in enumerate(acts, 1):
        outcome = ActOutcome.FAILED if fails else ActOutcome.DONE
        writer.begin(serial, 0, SimpleNamespace(record=(kind, subject)))
        writer.end(outcome)
        said.append((serial, KINDS[kind], subject, outcome))
    assert reader.acts() == said[-RECORDS:]
    assert not room[:WORDS].any()
    assert not room[2 * WORDS :].any()


def test_an_order_that_is_undone_is_marked_whole():
    writer = Flight(np.zeros(WORDS, np.int64), 0)
    for serial, kind in ((1, 0), (2, 0), (2, 1), (2, 0)):
        writer.begin(serial, 0, SimpleNamespace(record=(kind, 0)))
        if (serial, kind) != (2, 1):
            writer.end(ActOutcome.DONE)
    writer.mark(2, ActOutcome.UNDONE)
    assert [act.outcome for act in writer.acts()] == [ActOutcome.DONE] + 3 * [ActOutcome.UNDONE]


def test_the_act_of_a_dead_rank_is_known():
    @as_op([T.dvector], [T.dvector])
    def behave(values):
        if values.size and values.max() > 100:
            os.kill(os.getpid(), signal.SIGKILL)
        return values

    with no_ranks_left():
        runtime = Runtime(3)
        f = runtime.function([x], (behave(x).sum(), "sum"), name="deadly", **UNPROVED)
        activity = runtime._lifecycle.activity
        assert (activity.doing(1), activity.history(1)) == ("starting", "")
        f(np.zeros(6))
        deadline = time.monotonic() + 10
        while activity.doing(1) != "waiting for an order":
            assert time.monotonic() < deadline
        with pytest.raises(WorkerDied) as caught:
            f(np.array([0.0, 0, 0, 200, 0, 0]), num_slices=2)
        assert caught.value.doing == "computing slice 2 of function 'deadly'"
        assert "while it was computing slice 2 of function 'deadly'" in str(caught.value)
        assert (caught.value.rank, caught.value.signal) == (1, "SIGKILL")
        noted = "\n".join([str(caught.value), *getattr(caught.value, "__notes__", ())])
        before = "distribute(), function 'deadly', function 'deadly' (under way)"
        assert noted.endswith(f"The last acts of rank 1: {before}")
        with pytest.raises(Closed, match="rank 1"):
            f(np.zeros(6))
        del caught


def test_of_several_that_fail_the_first_is_named_before_those_after_it(trio):
    @as_op([T.dvector], [T.dvector])
    def behave(values):
        if values[0] > 0:
            time.sleep(values[0])
            raise ValueError(f"after {values[0]}")
        return values

    f = trio.function([x], (behave(x), "gather"))
    f(np.zeros(3))
    with pytest.raises(WorkerFailed, match=r"rank 2 failed.*after 0\.1\nThen rank 1 fa") as caught:
        f(np.array([0.0, 0.6, 0.1]))
    assert caught.value.rank == 2
    assert list(caught.value.others) == [1]
    assert "after 0.6" in caught.value.others[1]
