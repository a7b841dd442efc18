"""Figures of calls."""

from __future__ import annotations

import json

import numpy as np
import pytest
from _features import UNPROVED
from _ops import FAST, nap

from synk_core._features.stats.stats import Ledger, Stats
from synk_core._master.acts import Prepared
from synk_core._master.record import Record
from synk_core._wire.messages import Call, Collective, Form, Own
from synk_testing.engine import T, engine

CALL = Call(0, Form(), None, (), (), None, 1, ())


@pytest.mark.feature("timeline")
def test_stats_name_the_slowest_rank_and_the_time_for_it(trio, tmp_path):
    x = T.dvector("x")
    f = trio.function([x], (nap(x), "gather"), name="slow", **UNPROVED, **FAST)
    values = np.zeros(3)
    f(values)
    trio.stats(reset=True)
    assert not trio.stats()
    values[2] = 0.1
    with trio.timeline(tmp_path / "trace.json"):
        for _ in range(3):
            f(values)
    spans = json.loads((tmp_path / "trace.json").read_text("utf-8"))["traceEvents"]
    for rank in range(3):
        mine = [event for event in spans if event["ph"] == "X" and event["pid"] == rank]
        waited_s = sum(e["dur"] for e in mine if e["name"] == "for the last rank") / 1e6
        assert rank == 2 or waited_s > 0.05
        naps = [e for e in mine if e["cat"] == "compute" and e["dur"] > 0.1e6]
        assert len(naps) == 3 * (rank == 2)
    trio.collectives.get_shapes(engine.shared(1.0))
    stats = trio.stats()
    assert set(stats) - {"distribute()"} == {"slow", "get_shapes()"}
    figures = stats["slow"]
    assert figures.calls == 3
    assert figures.slowest[2] == 3
    assert figures.input_bytes == 3 * values.nbytes
    assert 0.3 <= figures.compute_s + figures.wait_s <= figures.total_s
    assert figures.wait_s > 0.2
    assert figures.total_s == sum(figures[1:5])
    assert stats["get_shapes()"].calls == 1
    assert "slowest rank" in str(stats)
    assert any(line.startswith("slow ") for line in str(stats).splitlines())
    assert "CUDA graph" not in str(stats)
    figures = figures._replace(proof="")
    replayed = Stats({"slow": figures._replace(graph="replayed"), "fast": figures})
    lines = str(replayed).splitlines()
    assert lines[0].endswith("CUDA graph")
    assert [line.endswith("replayed") for line in lines[1:3]] == [True, False]


def recorded(acts, times, scatter_s, run_s, serial=0):
    record = Record()
    record.acts, record.times, record.scatter_s = acts, times, scatter_s
    record.run_s, record.serial = run_s, serial
    return record


def test_times_of_other_hosts_count_when_they_come():
    """Rank 2 is on another host; in the second call it was quicker, in the third it has no log."""
    ledger = Ledger(3, 0, is_whole=False)
    acts = [Prepared(CALL, label) for label in ("first", "last")]
    for serial in (1, 2, 3):
        times = np.array([1.0, 2.0, 0.0, 3.0, 1.0, 0.0])
        ledger.after(recorded(acts, times, 0.0, 10.0, serial))
    assert ledger.incomplete
    ledger.complete([[], [], [(1, [6.0, 3.5]), (2, [0.5, 0.5])]])
    assert not ledger.incomplete
    stats = ledger.stats(reset=False)
    assert stats["first"].slowest == (0, 2, 1)
    assert stats["last"].slowest == (2, 0, 1)
    assert (stats["first"].compute_s, stats["last"].compute_s) == (3.0, 9.0)
    assert (stats["first"].wait_s, stats["last"].wait_s) == (5.0 + 1.0 + 1.0, 0.5)
    assert (stats["first"].reduce_s, stats["last"].reduce_s) == (0.0, 15.0 - 4.0 - 0.5)
    assert (stats["first"].ranks_s, stats["last"].ranks_s) == (9.0 + 6.5, 12.0 + 4.0)


def test_the_table_has_the_speed_up_of_the_ranks():
    """Seconds of both ranks, by all seconds: (3 + 4) / 5, and with an all_reduce (3 + 4) / 10."""
    ledger = Ledger(2, 0)
    act = Prepared(CALL, "f")
    ledger.after(recorded([act], np.array([3.0, 4.0]), 0.5, 4.5))
    own = Prepared(Own(print), "distribute()")
    ledger.after(recorded([own], np.zeros(2), 0.0, 100.0))
    stats = ledger.stats(reset=False)
    assert stats.speed_up == 7 / 5
    lines = str(stats).splitlines()
    assert lines[0].split()[:2] == ["calls", "total"]
    assert lines[1].split()[:4] == ["f", "1", "5.000", "s"]
    assert lines[-1] == "at best 1.40 times as fast as one rank alone"
    act = Prepared(Collective("all_reduce", (1,)), "all_reduce()")
    ledger.after(recorded([act], np.zeros(2), 0.0, 5.0))
    stats, reset = ledger.stats(reset=True), ledger.stats(reset=False)
    assert stats.speed_up == 7 / 10
    told = "at best 0.70 times as fast as one rank alone: give each call more to compute"
    assert str(stats).splitlines()[-1] == told
    stats.precision = "tf32"
    for figures in (stats, reset):
        assert np.isnan(figures.speed_up)
        assert "as fast" not in str(figures)
