"""What ``synkhronos bench`` measures: by the public interface, all of it, on two processes."""

from __future__ import annotations

import json
import re

import pytest
from _cli import SETTINGS, command
from _programs import zygote

# Five rounds of each are enough to see that all is measured.
QUICKLY = """
import json
from synkhronos._benchmarks import measures
measures.BUDGET_S, measures._ROWS = 0.0, 500
fork = {"n_parallel": 2, "use_gpu": False}
print(json.dumps([measures.MEASURES[name](fork, 2) for name in ("call", "scatter", "allreduce")]))
"""
SCALING = """
import runpy
from synkhronos._benchmarks import measures
measures.BUDGET_S, measures._ROWS = 0.0, 500
runpy.run_module("synkhronos._benchmarks", run_name="__main__")
"""


def test_every_row_has_its_time_and_its_peers():
    done = zygote().run(QUICKLY, environment=SETTINGS)
    assert done.status == 0, done.err
    call, scatter, allreduce = json.loads(done.out)
    assert [row["what"] for row in call["rows"]] == [
        "f(Data)",
        "f(NumPy array)",
        "f.as_theano(array)",
    ]
    assert set(call["rows"][0]["peers"]) == {"plain Theano", "Pipe round trip", "Barrier"}
    assert len(scatter["rows"]) == 6
    assert len(allreduce["rows"]) == 3
    for result in (scatter, allreduce):
        for row in result["rows"]:
            assert set(row["peers"]) == {"NumPy copy", "pickles through Pipes"}
    for result in (call, scatter, allreduce):
        assert result["processes"] == 2
        for row in result["rows"]:
            assert row["seconds"] > 0
            assert min(row["peers"].values()) > 0


@pytest.mark.nightly
def test_scaling_is_measured_and_drawn(tmp_path):
    pytest.importorskip("matplotlib")
    picture = tmp_path / "scaling.png"
    options = ("scaling", "--processes", "2", "--devices", "cpu", "--plot", picture)
    done = command(*options, program=("-c", SCALING))
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)
    assert [entry["n"] for entry in result["results"]] == [1, 2, 1, 2]
    whats = ["entry by entry", "a matrix product"]
    expected = [f"{what}, {n}" for what in whats for n in ("1 process", "2 processes")]
    assert [row["what"] for row in result["rows"]] == expected
    for row in result["rows"]:
        assert all(re.fullmatch(r"plain Theano, \d+ threads?", peer) for peer in row["peers"])
        assert "plain Theano, 1 thread" in row["peers"]
    assert all(entry["seconds"] > 0 and entry["rows"] == 500 for entry in result["results"])
    assert picture.read_bytes().startswith(b"\x89PNG")


def test_what_a_user_asks_for_wrongly_is_told_without_a_traceback():
    done = command("bench", "call", "--devices", "nothing7")
    assert done.returncode == 1
    assert "Traceback" not in done.stderr
    assert "bench call: " in done.stderr
    assert "nothing7" in done.stderr
