"""Recordings of all ranks: whole, nested, on one clock, and never half a file."""

from __future__ import annotations

import json
import os
import signal

import numpy as np
import pytest
from _ops import FAST

from synk_core import Closed, InputTypeError, InputValueError, Runtime, WorkerDied
from synk_core._features.timeline.spans import Recorder
from synk_core._features.timeline.timeline import trace_of
from synk_core._wire.flight import WORDS, Flight
from synk_testing.engine import T, engine


def loaded(path):
    return json.loads(path.read_text(encoding="utf-8"))


def spans(trace, kind=None, rank=None):
    return [
        event
        for event in trace["traceEvents"]
        if event["ph"] == "X" and kind in (None, event["cat"]) and rank in (None, event["pid"])
    ]


def ends(event):
    return event["ts"] + event["dur"]


def assert_nested(events):
    """Of one thread: any two spans are apart, or one lies within the other."""
    open_spans = []
    for event in sorted(events, key=lambda e: (e["ts"], -e["dur"])):
        while open_spans and ends(open_spans[-1]) <= event["ts"] + 0.002:
            open_spans.pop()
        if open_spans:
            assert ends(event) <= ends(open_spans[-1]) + 0.002, (event, open_spans[-1])
        open_spans.append(event)


def mean_and_rows(runtime):
    x = T.dmatrix("x")
    total = engine.shared(np.zeros(3), name="total")
    mean = runtime.function(
        [x], x.mean(), updates=[(total, total + x.sum(axis=0), "sum")], name="mean", **FAST
    )
    rows = runtime.function([x], (x * 2, "gather"), name="rows", **FAST)
    return mean, rows, total


def test_everything_that_ranks_do_is_there_on_one_clock(trio, tmp_path):
    path = tmp_path / "trace.json"
    mean, rows, total = mean_and_rows(trio)
    x = np.arange(36.0).reshape(12, 3)
    mean(x)
    data = trio.data(x)
    rows(data, num_slices=2)
    with trio.timeline(path) as timeline:
        assert timeline.recording
        assert not path.exists()
        mean(x)
        rows(data, batch=[5, 1, 9, 3, 2, 0, 7, 8], num_slices=2)
        trio.collectives.all_reduce(total)
        trio.step(mean.delayed(x), trio.delayed.all_reduce(total, op="max"))
    mean(x)
    trace = loaded(path)
    assert trace["otherData"]["ranks"] == 3
    assert trace["otherData"]["missing ranks"] == []
    assert trace["otherData"]["lost spans"] == {}
    for rank in range(3):
        calls = [event["name"] for event in spans(trace, "call", rank)]
        assert calls == ["mean", "rows", "all_reduce()", "mean, all_reduce()"]
        computed = [event["name"] for event in spans(trace, "compute", rank)]
        assert computed == ["mean", "rows", "mean"]
        assert [event["name"] for event in spans(trace, "reduce", rank)] == computed
        slices = [event["name"] for event in spans(trace, "slice", rank)]
        assert slices == ["slice 1", "slice 2"]
        sliced = next(e["args"]["order"] for e in spans(trace, "call", rank) if e["name"] == "rows")
        copies = [e for e in spans(trace, "copy", rank) if e["args"]["order"] == sliced]
        assert len(copies) == 2
        assert len(spans(trace, "collective", rank)) == 2
        assert len(spans(trace, "scatter", rank)) == (4 if rank == trio.master else 0)
        named = [e["args"]["name"] for e in trace["traceEvents"] if e["name"] == "process_name"]
        assert named[rank] == f"rank {rank}" + (" (master)" if rank == trio.master else "")
    assert min(event["ts"] for event in spans(trace)) == 0
    orders = {event["args"]["order"]: event for event in spans(trace, "call", trio.master)}
    for rank in range(3):
        mine = spans(trace, rank=rank)
        assert {event["tid"] for event in mine} == {0}
        assert_nested(mine)
        for event in mine:
            whole = orders.get(event.get("args", {}).get("order"))
            if whole is None:
                continue  # distribution of a form that was compiled meanwhile
            # The master begins an order, and nobody has the last word but after all computed.
            assert whole["ts"] <= event["ts"]
            if event["cat"] == "compute":
                assert ends(event) <= ends(whole)


def test_one_recording_at_a_time_each_in_its_own_file(pair, tmp_path):
    first, second = tmp_path / "first.json", tmp_path / "second.json"
    mean, *_ = mean_and_rows(pair)
    timeline = pair.timeline(str(first))
    with pytest.raises(InputValueError, match="is being recorded already"):
        pair.timeline(second)
    mean(np.ones((4, 3)))
    timeline.stop()
    timeline.stop()
    with pair.timeline(second):
        pass
    assert len(spans(loaded(first), "call")) == 2 + 2  # of distribution, and of the function
    assert spans(loaded(second), "call") == []
    assert sorted(os.listdir(tmp_path)) == ["first.json", "second.json"]


def test_a_bad_path_is_refused_before_anything_is_recorded(pair, tmp_path, monkeypatch):
    for path, error, text in (
        (3, InputTypeError, "got 3 of type int as path"),
        (str(tmp_path), InputValueError, "is a folder"),
        (tmp_path / "no/such/folder/trace.json", InputValueError, "make it first"),
    ):
        with pytest.raises(error, match=text):
            pair.timeline(path)
    assert pair._rank.flight.recorder is None
    monkeypatch.setattr("synk_core._api.runtime.Lifecycle", None)  # which would start workers
    with pytest.raises(InputValueError, match="make it first"):
        Runtime(2, timeline=str(tmp_path / "no" / "trace.json"))
    assert os.listdir(tmp_path) == []


def test_close_ends_a_recording_that_began_with_the_runtime(tmp_path):
    path = tmp_path / "trace.json"
    with Runtime(2, timeline=str(path)) as runtime:
        mean, *_ = mean_and_rows(runtime)
        mean(np.ones((4, 3)))
    trace = loaded(path)
    for rank in (0, 1):
        names = [event["name"] for event in spans(trace, "call", rank)]
        assert names == ["distribute()", "mean"]
    assert len(spans(trace, "compile", 0)) == 2


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP, 0])
def test_a_recording_survives_a_lost_rank(tmp_path, monkeypatch, number):
    monkeypatch.setattr("synk_core._features.timeline.timeline.CLOSE_TIMEOUT_S", 0.3)
    path = tmp_path / "trace.json"
    with Runtime(2, timeline=str(path), timeout_s=60.0) as runtime:
        mean, *_ = mean_and_rows(runtime)
        mean(np.ones((4, 3)))

        def lose(*_acts, **_options):  # when the master's own spans are taken already
            monkeypatch.undo()
            runtime._rank.flight.recorder.stop()
            runtime._lifecycle.close()
            raise WorkerDied(1, -signal.SIGKILL, "ending")

        os.kill(runtime.worker_pids[0], number)
        if number == 0:
            monkeypatch.setattr(runtime.orders, "perform_own", lose)
        if number == signal.SIGKILL:
            with pytest.raises(WorkerDied):
                for _ in range(1000):
                    mean(np.ones((4, 3)))
    with pytest.raises(Closed):
        runtime.timeline(tmp_path / "another.json")
    trace = loaded(path)
    assert trace["otherData"]["missing ranks"] == [1]
    assert spans(trace, "compute", 0)


def test_a_file_that_cannot_be_written_at_the_end_is_a_warning(tmp_path):
    folder = tmp_path / "folder"
    folder.mkdir()
    runtime = Runtime(2, timeline=str(folder / "trace.json"))
    folder.rmdir()
    with pytest.warns(RuntimeWarning, match="could not be written.*FileNotFoundError") as caught:
        runtime.close()
    assert caught[0].filename == __file__
    assert runtime.closed


PROGRAM = """
runtime = Runtime(2)
f = runtime.function([x], x.mean(), name="f", mode="FAST_COMPILE")
f(np.ones(4))
runtime.timeline(sys.argv[1])
f(np.ones(4))
"""


def test_the_end_of_the_program_ends_a_recording(run_script, tmp_path):
    path = tmp_path / "trace.json"
    status, _, err = run_script(PROGRAM, path)
    assert status == 0, err
    trace = loaded(path)
    assert [event["name"] for event in spans(trace, "call")] == ["f", "f"]


def test_spans_without_room_are_counted(monkeypatch):
    monkeypatch.setattr("synk_core._features.timeline.spans.MOST_SPANS", 3)
    recorder = Recorder(Flight(np.zeros(WORDS, np.int64), 0))
    recorder.start()
    for number in range(5):
        recorder.add("compute", "f", number, number + 0.5)
    trace = trace_of({0: recorder.stop()}, 2, 0)
    assert [event["ts"] for event in spans(trace)] == [0.0, 1e6, 2e6]
    assert trace["otherData"]["lost spans"] == {0: 2}
    assert trace["otherData"]["missing ranks"] == [1]
