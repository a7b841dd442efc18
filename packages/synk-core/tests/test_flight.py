"""The flight recorder: what every rank did, readable also when the rank is dead."""

from __future__ import annotations

import os
import signal
import stat
import time

import numpy as np
import pytest
from _leaks import no_ranks_left
from hypothesis import given
from hypothesis import strategies as st

from synk_core import Runtime, flight
from synk_core._watch.flight import KINDS, RECORDS, WORDS, ActOutcome, Flight, Phase
from synk_core.exceptions import WorkerDied, WorkerFailed
from synk_testing.engine import T, as_op, engine

x = T.dvector("x")


@pytest.fixture(autouse=True)
def records(tmp_path, monkeypatch):
    """A folder of this test's own, not there yet."""
    folder = tmp_path / "new" / "flight"
    monkeypatch.setenv("SYNKHRONOS_FLIGHT_DIR", str(folder))
    return folder


@given(
    st.lists(
        st.tuples(
            st.integers(0, len(KINDS) - 1),
            st.integers(0, 9),
            st.booleans(),
            st.integers(0, 1 << 40),
        ),
        max_size=3 * RECORDS,
    )
)
def test_the_ring_has_the_last_acts_in_order(acts):
    room = np.zeros(3 * WORDS, np.int64)
    writer, reader = Flight(room, 1), Flight(room, 1)
    for serial, (kind, subject, fails, nbytes) in enumerate(acts, 1):
        writer.begin(serial, kind, subject, serial % 7, nbytes)
        writer.end(ActOutcome.FAILED if fails else ActOutcome.DONE)
    found = reader.acts()
    assert len(found) == min(len(acts), RECORDS)
    first = len(acts) - len(found)
    for act, (serial, said) in zip(found, list(enumerate(acts, 1))[first:]):
        kind, subject, fails, nbytes = said
        assert act.serial == serial
        assert (act.kind, act.subject, act.nbytes) == (KINDS[kind], subject, nbytes)
        assert act.outcome == (ActOutcome.FAILED if fails else ActOutcome.DONE)
        assert 0 < act.began_ns <= act.ended_ns
    assert not room[:WORDS].any()
    assert not room[2 * WORDS :].any()


def test_an_order_that_is_undone_is_marked_whole():
    writer = Flight(np.zeros(WORDS, np.int64), 0)
    for serial, kind in ((1, 0), (2, 0), (2, 1), (2, 0)):
        writer.begin(serial, kind, 0, 0, 0)
        if (serial, kind) != (2, 1):
            writer.end(ActOutcome.DONE)
    writer.mark(2, ActOutcome.UNDONE)
    assert [act.outcome for act in writer.acts()] == [ActOutcome.DONE] + 3 * [ActOutcome.UNDONE]
    assert all(act.ended_ns for act in writer.acts())
    assert writer.last().serial == 2


def obedient(act):
    """A function of a vector that does `act` where a value is above 100."""

    @as_op([T.dvector], [T.dvector])
    def behave(values):
        if values.size and values.max() > 100:
            act()
        return values

    return x, behave(x)


def fail():
    raise ValueError("not this")


def test_a_failure_writes_what_every_rank_did(records):
    x, y = obedient(fail)
    with no_ranks_left(), Runtime(3) as runtime:
        s = engine.shared(np.zeros(4), name="s")
        f = runtime.function([x], (y, "gather"), name="touchy")
        f(np.zeros(7))
        runtime.collectives.broadcast(s)
        assert not flight.files()
        with pytest.raises(WorkerFailed):
            f(np.array([0.0, 0, 0, 0, 0, 0, 200]))
    (path,) = flight.files()
    assert path.parent == records == flight.folder()
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(records.stat().st_mode) == 0o700
    record = flight.load(path)
    assert record["error"]["type"] == "WorkerFailed"
    assert (record["error"]["rank"], record["error"]["doing"]) == (
        2,
        "function 'touchy', rows 5 to 6 of the call's 7",
    )
    whole = record["error"]["traceback"]
    assert "_rank/call.py" in whole, "what the message leaves out"
    assert (record["size"], record["master"], record["pid"]) == (3, 0, os.getpid())
    assert [rank["rank"] for rank in record["ranks"]] == [0, 1, 2]
    assert len({rank["pid"] for rank in record["ranks"]}) == 3
    for rank, rows in zip(record["ranks"], (3, 2, 2)):
        acts = [act["act"] for act in rank["records"]]
        assert acts == [
            "distribute()", "function 'touchy'", "distribute()", "broadcast()", "function 'touchy'"
        ]  # fmt: skip
        last = rank["records"][-1]
        assert last["rows"] == rows
        assert last["bytes"] == 7 * 8
        # A rank that another one's failure has only just reached may not have undone it yet.
        assert last["outcome"] in (["failed"] if rank["rank"] == 2 else ["undone", "under way"])
        assert last["began_s"] < 0
        assert rank["records"][-2]["outcome"] == "done"
        assert rank["records"][-2]["bytes"] == 4 * 8


@pytest.mark.parametrize("slices", [1, 2])
def test_the_dead_tell_what_they_were_doing(slices):
    x, y = obedient(lambda: os.kill(os.getpid(), signal.SIGKILL))
    with no_ranks_left():
        runtime = Runtime(3)
        f = runtime.function([x], (y.sum(), "sum"), name="deadly")
        f(np.zeros(6))
        with pytest.raises(WorkerDied) as caught:
            f(np.array([0.0, 0, 0, 200, 0, 0]), num_slices=slices)
        what = "slice 2 of " if slices == 2 else ""
        assert caught.value.doing == f"computing {what}function 'deadly'"
        assert f"while it was computing {what}function 'deadly'" in str(caught.value)
        assert (caught.value.rank, caught.value.signal) == (1, "SIGKILL")
        del caught
    record = flight.load(flight.files()[0])
    assert record["error"]["rank"] == 1
    assert record["ranks"][1]["phase"] == ("slice" if slices == 2 else "compute")
    assert record["ranks"][1]["records"][-1]["outcome"] == "under way"
    assert record["ranks"][2]["phase"] == "reduce"


def test_of_several_that_fail_the_first_is_told_from_those_after_it(trio):
    @as_op([T.dvector], [T.dvector])
    def behave(values):
        if values[0] > 0:
            time.sleep(values[0])
            raise ValueError(f"after {values[0]}")
        return values

    f = trio.function([x], (behave(x), "gather"))
    f(np.zeros(3))
    with pytest.raises(WorkerFailed, match=r"rank 2 failed.*after 0\.1\nThen rank 1 fa") as told:
        f(np.array([0.0, 0.6, 0.1]))
    assert told.value.rank == 2
    assert list(told.value.others) == [1]
    assert "after 0.6" in told.value.others[1]


def test_records_are_few_and_those_that_cannot_be_written_hide_nothing(
    pair, records, monkeypatch, tmp_path
):
    monkeypatch.setattr(flight, "KEPT", 3)
    x, y = obedient(fail)
    f = pair.function([x], (y, "gather"))
    for _ in range(5):
        with pytest.raises(WorkerFailed):
            f(np.array([0.0, 200.0]))
    files = flight.files()
    assert len(files) == 3
    assert files == sorted(files, reverse=True)
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("SYNKHRONOS_FLIGHT_DIR", str(tmp_path / "file" / "folder"))
    with pytest.raises(WorkerFailed):
        f(np.array([0.0, 200.0]))
    assert not list(records.glob("*.part"))


def test_what_is_no_record_is_refused(tmp_path):
    path = tmp_path / "other.json"
    for text in ("[]", "{}", '{"version": 99}', "nonsense"):
        path.write_text(text)
        with pytest.raises(ValueError, match=r"."):
            flight.load(path)


def test_where_records_are(monkeypatch, tmp_path):
    monkeypatch.delenv("SYNKHRONOS_FLIGHT_DIR")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert flight.folder() == tmp_path / "synkhronos" / "flight"
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    assert flight.folder() == tmp_path / "home" / ".cache" / "synkhronos" / "flight"
    assert flight.files() == []


def test_a_rank_says_what_it_is_doing():
    assert [phase.name for phase in Phase] == [
        "START", "IDLE", "TAKE_IN", "DISTRIBUTE", "COPY", "COMPUTE", "SLICE", "REDUCE",
        "COLLECTIVE", "END", "CLOSE", "FAIL", "COMPILE", "DEVICE",
    ]  # fmt: skip
    with no_ranks_left(), Runtime(2) as runtime:
        f = runtime.function([x], (x, "gather"), name="f")
        assert runtime._controller._box.doing(1) == "starting"
        f(np.zeros(2))
        deadline = time.monotonic() + 10
        while runtime._controller._box.doing(1) != "waiting for an order":
            assert time.monotonic() < deadline


def test_folders_are_made_for_their_user_alone(records):
    old = os.umask(0)
    try:
        path = flight.write({"version": flight.VERSION})
    finally:
        os.umask(old)
    for made in (records, records.parent):
        assert stat.S_IMODE(made.stat().st_mode) == 0o700
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    records.chmod(0o755)
    flight.write({"version": flight.VERSION})
    for mode in (0o770, 0o1777):
        records.chmod(mode)
        with pytest.raises(PermissionError, match=f"chmod go-w {records}"):
            flight.write({"version": flight.VERSION})
        assert stat.S_IMODE(records.stat().st_mode) == mode, "it is not ours to change"


def test_what_else_is_in_the_folder_stays(records, monkeypatch):
    monkeypatch.setattr(flight, "KEPT", 2)
    records.mkdir(parents=True)
    own = [records / f"results{i:03d}.json" for i in range(5)]
    own += [records / "20260101-000000-1.json", records / "~.json"]
    for path in own:
        path.write_text("{}")
    written = [flight.write({"version": flight.VERSION}) for _ in range(4)]
    assert flight.files() == written[:1:-1]
    assert sorted(records.iterdir()) == sorted([*own, *written[2:]])


def test_a_folder_that_is_a_link_or_a_file_is_not_used(records, tmp_path):
    victim = tmp_path / "victim"
    victim.mkdir()
    (victim / "1.json").write_text("mine")
    records.parent.mkdir()
    records.symlink_to(victim)
    with pytest.raises(PermissionError, match="SYNKHRONOS_FLIGHT_DIR"):
        flight.write({"version": flight.VERSION})
    assert [path.name for path in victim.iterdir()] == ["1.json"]
