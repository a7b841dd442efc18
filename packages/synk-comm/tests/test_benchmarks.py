"""The benchmarks run, know right results from wrong ones, and say what is missing."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

FOLDER = Path(__file__).resolve().parent.parent / "benchmarks"
if not FOLDER.is_dir():
    pytest.skip("an sdist has the tests, but not the benchmarks", allow_module_level=True)

LIMIT_S = 100
BRIEF = ("--quick", "--ranks", "2", "--sizes", "1K", "--rounds", "2")
REDUCTIONS = ("all_reduce", "all_reduce_in_place", "all_reduce_shared", "all_reduce_zmq")


def run(*arguments, **variables):
    paths = [variables.pop("first", ""), *sys.path]
    return subprocess.run(
        [sys.executable, str(FOLDER / "run.py"), *map(str, arguments)],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, paths)), **variables},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
    )


@pytest.fixture
def cases(monkeypatch):
    monkeypatch.syspath_prepend(str(FOLDER))
    from side_by_side import cases

    yield cases
    for name in [name for name in sys.modules if name.partition(".")[0] == "side_by_side"]:
        del sys.modules[name]


def test_a_brief_run_measures_ours_and_says_which_peers_are_missing(tmp_path):
    file, page = tmp_path / "r.json", tmp_path / "r.md"
    done = run(*BRIEF, "--only", "all_reduce", "mismatch", "--json", file, "--markdown", page)
    assert done.returncode == 0, done.stderr + done.stdout
    result = json.loads(file.read_text())
    rows = {row["key"]: row for row in result["rows"]}
    assert sorted(rows) == ["all_reduce/2/1024", "mismatch/2/0"]
    cells = rows["all_reduce/2/1024"]["cells"]
    for name in ("synk-comm", "reference"):
        assert len(cells[name]["samples"]) == 2
        assert min(cells[name]["samples"]) <= cells[name]["median"] <= max(cells[name]["samples"])
    assert len(rows["mismatch/2/0"]["cells"]["synk-comm"]["samples"]) == 2
    for peer in ("MPICH", "gloo"):
        if peer in cells:
            assert len(cells[peer]["samples"]) == 2, cells[peer]["note"]
        else:
            assert "pip install" in result["runs"][0]["left_out"][peer]
            assert f"left out: {peer}" in done.stdout
            assert f"left out: {peer}" in page.read_text()
    assert "all_reduce, 2 ranks  1 KB" in done.stdout
    assert result["runs"][0]["machine"]["numpy"] == np.__version__


def test_an_update_replaces_the_same_rows_and_keeps_the_others(tmp_path):
    file = tmp_path / "r.json"
    ours = ("--only", "synk-comm")
    assert run(*BRIEF, *ours, "broadcast", "mismatch", "--json", file).returncode == 0
    before = {row["key"]: row for row in json.loads(file.read_text())["rows"]}
    assert run(*BRIEF, *ours, "reduce", "mismatch", "--update", file).returncode == 0
    after = {row["key"]: row for row in json.loads(file.read_text())["rows"]}
    assert list(after) == ["reduce/2/1024", "broadcast/2/1024", "mismatch/2/0"]
    assert [row["run"] for row in after.values()] == [1, 0, 1]
    assert after["broadcast/2/1024"] == before["broadcast/2/1024"]
    assert after["mismatch/2/0"]["cells"] != before["mismatch/2/0"]["cells"]
    shown = run("--read", file).stdout
    assert "reduce, 2 ranks" in shown
    assert "broadcast, 2 ranks" in shown


def test_a_rank_that_fails_ends_the_job_and_is_quoted(tmp_path):
    (tmp_path / "synk_comm").mkdir()
    (tmp_path / "synk_comm" / "__init__.py").write_text("raise ImportError('half a package')\n")
    done = run(*BRIEF, "--only", "synk-comm", "barrier", first=str(tmp_path))
    assert done.returncode == 1
    assert "not finished: 2 ranks" in done.stdout
    assert "half a package" in done.stdout


@pytest.mark.parametrize(
    "arguments, said",
    [
        (["--only", "all_redcue"], "there is no all_redcue"),
        (["--sizes", "6"], "is no size"),
        (["--ranks", "1"], "from 2 on"),
        (["--sizes", "4000G"], "take smaller --sizes"),
        (["--read", "/nowhere"], "No such file"),
    ],
)
def test_what_cannot_be_measured_is_refused_with_a_sentence(arguments, said):
    done = run(*arguments)
    assert done.returncode != 0
    assert said in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("size", [2, 3])
@pytest.mark.parametrize("nbytes", [4, 40_000])
def test_a_case_knows_the_right_result_from_a_wrong_one(cases, size, nbytes):
    ops = [*REDUCTIONS, "reduce", "reduce_scatter", "broadcast", "scatter", "gather"]
    for op in [*ops, "all_gather", "all_to_all", "fused"]:
        ranks = [cases.Case(op, nbytes, rank, size) for rank in range(size)]
        for case in ranks:
            case.fill(case.x, case.out)
        for case in ranks:
            right = by_numpy(op, [peer.x for peer in ranks], case.rank)
            if right is None:
                continue
            assert case.wrong(case.out), op
            case.out.reshape(-1)[:] = right.reshape(-1)
            assert not case.wrong(case.out), op
            case.out.reshape(-1)[-1] += 1
            assert case.wrong(case.out), op


def by_numpy(op, xs, rank):
    """What a rank receives when these are what the ranks give; None for nothing."""
    if op in REDUCTIONS or op == "fused":
        return np.sum(xs, axis=0)
    if op == "reduce":
        return np.sum(xs, axis=0) if rank == 0 else None
    if op == "reduce_scatter":
        return np.sum(xs, axis=0)[rank]
    if op == "broadcast":
        return xs[0]
    if op == "scatter":
        return xs[0][rank]
    if op == "all_to_all":
        return np.stack([x[rank] for x in xs])
    return np.stack(xs) if op == "all_gather" or rank == 0 else None
