"""The benchmarks run, know right results from wrong ones, and read what was ever recorded."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import time
from types import SimpleNamespace
from typing import Iterator

import numpy as np
import psutil
import pytest
from _checkout import ROOT, ran

from synk_testing import Zygote

sys.path.append(str(ROOT / "benchmarks"))

from synk_benchmarks.contender import NotOfferedError
from synk_benchmarks.process import READY, Failed, Process, ask
from synk_benchmarks.results import (
    ADDED,
    AMOUNT,
    SPEED,
    Cell,
    Result,
    Row,
    Run,
    Spread,
    compare,
    load,
    merged,
)
from synk_benchmarks.rounds import calls_for, take_turns, turns
from synk_benchmarks.tables import Page, Table, cell_text, remarks_on
from synk_benchmarks.targets import BEST, Target
from synk_benchmarks.text import amount, number, size_name

COMM, SHM, THEANO = (
    ROOT / f"packages/synk-{name}/benchmarks" for name in ("comm", "shm", "theano")
)
GPU = ROOT / "integration/benchmarks/gpu"
LIMIT_S = 200
BRIEF = ("--quick", "--ranks", "2", "--sizes", "1K", "--rounds", "2")
REDUCTIONS = ("all_reduce", "all_reduce_in_place", "all_reduce_shared", "all_reduce_zmq")
RECORDED = [path for folder in (COMM, SHM, THEANO) for path in folder.glob("results/*.json")]


def run(folder, *arguments, first=""):
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, [first, *sys.path]))}
    how = {"env": environment, "cwd": ROOT, "stdin": subprocess.DEVNULL, "timeout": LIMIT_S}
    return ran(sys.executable, folder / "run.py", *arguments, **how)


def measured(folder, file, *arguments):
    """Run a benchmark that has to succeed; return its rows by key, and what it printed."""
    done = run(folder, *arguments)
    assert done.returncode == 0, done.stderr + done.stdout
    return {row["key"]: row for row in json.loads(file.read_text())["rows"]}, done.stdout


@pytest.fixture(scope="module")
def zygote() -> Iterator[Zygote]:
    """A process that has imported what the programs import, for those that measure nothing."""
    with Zygote("import numpy, psutil, rich.console, synk_comm, synk_shm") as made:
        yield made


@pytest.fixture
def cases(monkeypatch):
    monkeypatch.syspath_prepend(str(COMM))
    from side_by_side import cases

    yield cases
    for name in [name for name in sys.modules if name.partition(".")[0] == "side_by_side"]:
        del sys.modules[name]


# ---- results, comparisons, targets ---------------------------------------------------------------


def row(key="a", unit="s", **samples):
    cells = {name: Cell(tuple(taken)) for name, taken in samples.items()}
    return Row(key, key, key, cells, unit, ranks=2, nbytes=1024)


def test_comparisons_are_medians_of_the_rounds_own():
    one = row(ours=[1, 4, 9], theirs=[2, 2, 2], shorter=[2, 3], nothing=[], zero=[0, 1, 1])
    assert compare(one, "ours", "theirs") == Spread(2, 1.25, 3.25)
    assert compare(one, "ours", "theirs", SPEED).value == 0.5
    assert compare(one, "ours", "theirs", ADDED).value == 2
    assert compare(one, "ours", "", AMOUNT) == Spread(4, 2.5, 6.5)
    assert compare(one, "ours", "shorter") == Spread(1.6, 1.6, 1.6)
    assert compare(one, "ours", "nothing") is None
    assert compare(one, "ours", "absent") is None
    assert compare(one, "ours", "zero") is None
    assert compare(one, "zero", "ours").value == pytest.approx(1 / 9)
    assert one.best(["theirs", "shorter", "nothing"]) == "theirs"
    assert one.best(["nothing"]) == ""


def test_targets_are_judged_and_tell_when_luck_decided():
    one = row(ours=[1, 4, 9], theirs=[2, 2, 2], others=[8, 8, 8])

    def said(*target, **more):
        verdict = Target("a", *target, **more).judge(one, "ours", ["theirs", "others"])
        return verdict.text, verdict.to

    assert said(2, "theirs") == ("<= 2 yes~", "theirs")
    assert said(0.5, "others") == ("<= 0.5 yes~", "others")
    assert said(1, BEST) == ("<= 1 NO", "theirs")
    assert said(4, "others", at_least=True) == (">= 4 NO", "others")
    assert said(1.5, "others", SPEED) == (">= 3 NO~", "others")
    assert said(5e-3) == ("<= 5 ms NO", "")
    assert said(1, "absent") == ("<= 1 ?", "absent")
    assert said(1 / 5000, "theirs") == ("<= 1/5000 NO", "theirs")
    holds = [Target("a", 1, **more).holds_for(one) for more in ({"ranks": 4}, {"smallest": 2048})]
    assert [*holds, Target("a", 1, ranks=2, largest=1024).holds_for(one)] == [False, False, True]


def test_a_result_comes_back_from_its_file_and_new_rows_replace_the_same(tmp_path):
    first = Result([Run({"cores": "2"}, {}, {"b": "c"}, {"d": "e"})], [row("x", ours=[1])])
    first.rows.append(row("y", "B", ours=[3, 5], theirs=[]))
    first.save(tmp_path / "r.json")
    assert load(tmp_path / "r.json") == first
    assert list(tmp_path.iterdir()) == [tmp_path / "r.json"]
    second = Result([Run({"cores": "4"}, {})], [row("y", ours=[7])])
    both = merged(first, second, lambda one: one.key)
    assert [(one.key, one.run, one.value("ours")) for one in both.rows] == [
        ("x", 0, 1),
        ("y", 1, 7),
    ]
    assert len(merged(first, Result([Run({}, {})], first.rows), lambda one: one.key).runs) == 1
    (tmp_path / "r.json").write_text('{"schema": 99}')
    with pytest.raises(ValueError, match="of this version"):
        load(tmp_path / "r.json")


@pytest.mark.parametrize("path", RECORDED, ids=lambda path: f"{path.parts[-4]}-{path.stem}")
def test_what_was_recorded_is_still_read_and_shown_as_then(zygote, path, tmp_path):
    page = tmp_path / "page.md"
    done = zygote.run(path.parents[1] / "run.py", "--read", path, "--markdown", page, folder=ROOT)
    assert done.status == 0, done.err
    assert lines(page.read_text()) == lines(path.with_suffix(".md").read_text())


@pytest.mark.parametrize("date", ["2026-11-21", "2026-11-22"])
def test_what_was_recorded_on_gpus_is_still_read_and_shown_as_then(zygote, date, tmp_path):
    path = GPU / f"results/{date}-two-h200.json"
    shutil.copy(path, tmp_path / "results.json")
    done = zygote.run(GPU / "run.py", "--out", tmp_path, "--read")
    assert done.status == 0, done.err
    page = path.with_suffix(".md").read_text().replace("\\", "")
    begin = page.index("## ResNet-50")
    told = [line for line in page[begin:].splitlines() if line.startswith("| ")]
    assert len(told) > 20
    shown = {without_target(line) for line in done.out.splitlines()}
    # Headers name what targets are beside.
    rows = [line for line in told if "target |" not in line]
    assert [line for line in rows if without_target(line.replace("|", "")) not in shown] == []


def without_target(line):
    """Return a row without spaces, and without its target, which is today's."""
    return "".join(re.sub(r"\*{0,2}[<>]= [\d.]+( \w+)? (yes|NO)\*{0,2}", "", line).split())


def lines(page):
    """Return the first four cells of each row: what it is, and numbers."""
    rows = [line.replace("\\", "").split(" | ")[:4] for line in page.splitlines()]
    found = [row for row in rows if row[0].startswith("| ") and len(row) == 4]
    assert len(found) > 6
    return found


def test_a_benchmark_runs_in_any_folder_and_through_a_link(tmp_path):
    clone = tmp_path / "a clone"
    for folder in (SHM, ROOT / "benchmarks"):
        shutil.copytree(folder, clone / folder.relative_to(ROOT))
    link = tmp_path / "link"
    link.symlink_to(SHM)
    recorded = next(SHM.glob("results/*.json"))
    for folder in (clone / SHM.relative_to(ROOT), link):
        program = (sys.executable, folder / "run.py", "--read", recorded)
        done = ran(*program, cwd=tmp_path, timeout=LIMIT_S)
        assert "targets reached" in done.stdout, done.stderr


# ---- turns ---------------------------------------------------------------------------------------


def test_every_round_begins_with_another_one():
    taken = [f"{number}{name}" for number, name in turns(["a", "b", "c"], 3, warm=True)]
    assert " ".join(taken) == "-1c -1a -1b 0a 0b 0c 1b 1c 1a 2c 2a 2b"


def test_who_fails_is_out_and_the_first_round_does_not_count():
    asked = []

    def measure(contender):
        asked.append(contender.name)
        if contender.name == "poor":
            raise NotOfferedError("no address")
        if contender.name == "broken" and len(asked) > 3:
            raise OSError("disk full")
        return {"all": float(len(asked)), contender.name: 1.0}

    names = ("good", "broken", "poor")
    contenders = [SimpleNamespace(name=name) for name in names]
    cells = take_turns(contenders, 3, measure, lambda _text: None)
    assert asked == ["poor", "good", "broken", "good", "broken", "good", "good"]
    assert cells["all"]["good"].samples == (4.0, 6.0, 7.0)
    assert cells["all"]["broken"].note == "failed: OSError: disk full"
    assert cells["all"]["broken"].samples == ()
    assert cells["all"]["poor"].note == "no address"
    assert cells["good"]["good"].samples == (1.0, 1.0, 1.0)


@pytest.mark.parametrize(
    "seconds, give_up_s, calls", [(1e-3, 99, 10), (1e-9, 99, 2000), (5, 99, 1), (5, 1, 1)]
)
def test_a_turn_has_as_many_calls_as_fit(seconds, give_up_s, calls):
    tried = []

    def trial(count):
        tried.append(count)
        return seconds

    assert calls_for(10.5e-3, trial, give_up_s) == calls
    assert tried == ([1] if seconds > give_up_s else [1, calls])


# ---- what is shown -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "value, unit, text",
    [
        (3.8e-7, "s", "380 ns"),
        (1.31e-6, "s", "1.31 us"),
        (5.8e-4, "s", "580 us"),
        (0.1314, "s", "131 ms"),
        (47, "s", "47.00 s"),
        (102_400_000, "B", "102 MB"),
        (1175, "B", "1,175 B"),
        (12, "B", "12 B"),
        (2581, "1", "2,581"),
        (0.5, "1", "0.5"),
    ],
)
def test_amounts_have_the_unit_that_suits_them(value, unit, text):
    assert amount(value, unit) == text


def test_ratios_and_sizes_are_short():
    assert [number(x) for x in (2.0901, 0.0471, 0.0066, 0)] == ["2.09", "0.047", "1/152", "0"]
    assert [number(x, exact=True) for x in (0.05, 1.0, 0.0002)] == ["0.05", "1", "1/5000"]
    sizes = (4, 1 << 10, 64 << 10, 1 << 20, 1500)
    assert [size_name(n) for n in sizes] == ["4 B", "1 KB", "64 KB", "1 MB", "1500 B"]


def test_a_page_tells_remarks_once_and_marks_what_was_missed():
    cells = {
        "a": Cell(note="failed: no memory"),
        "b": Cell(note="not offered"),
        "c": Cell((5000.0,), "stopped", at_least=True),
    }
    assert [cell_text(cell, "1") for cell in cells.values()] == ["failed*", "-", ">= 5,000*"]
    run = Run({"cores": "2"}, {"took": "1 s"}, {"d": "pip install d"})
    result = Result([run], [Row(key, key, key, cells) for key in "xy"])
    table = Table(["", "of_"], [["x|y", "<= 1 NO~"], ["z", "12"]], (0,), "xz", "Title")
    remarks = remarks_on(result, lambda one: one.label)
    page = Page("Name", result, [table], "A sentence.", "a_b ~", remarks)
    assert page.plain().splitlines() == [
        *["Title:", "          of_", "-------------", "x|y  <= 1 NO~", "", "z          12", ""],
        *["a_b ~", "", "A sentence."],
        *["* x and 1 more: a: failed: no memory", "* x and 1 more: c: stopped"],
        "left out: d: pip install d",
    ]
    text = page.markdown("p.png")
    for part in ("# Name\n\nA sentence.", "![Name](p.png)", "| took | 1 s |", "a_b \\~"):
        assert part in text
    assert "### Title\n\n|  | of\\_ |\n|---|--:|\n| x\\|y | **<= 1 NO\\~** |" in text
    assert text.endswith("- left out: d: pip install d\n")


# ---- processes -----------------------------------------------------------------------------------


def test_a_process_that_takes_too_long_is_ended_with_all_it_started(tmp_path):
    code = (
        "import subprocess, sys, time; child = subprocess.Popen(['sleep', '100']);"
        "print(child.pid, file=sys.stderr, flush=True); print('ready', flush=True);"
        "sys.stdin.readline(); time.sleep(100)"
    )
    log = tmp_path / "log"
    process = Process([sys.executable, "-c", code], 3, log)
    process.hear(READY)
    process.tell("go")
    with pytest.raises(Failed, match="not done after 3 s"):
        process.finish()
    process.end()
    child = int(log.read_text())
    deadline = time.monotonic() + 10
    while psutil.pid_exists(child) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not psutil.pid_exists(child) or psutil.Process(child).status() == psutil.STATUS_ZOMBIE


def test_a_process_that_fails_is_quoted(tmp_path):
    command = [sys.executable, "-c", "import sys; sys.exit('no device of that name')"]
    process = Process(command, 30, tmp_path / "log")
    with pytest.raises(Failed, match="exit status 1: no device of that name"):
        process.hear(READY)
    process.end()
    with pytest.raises(Failed, match="exit status 1: no device of that name"):
        ask(command, 30, os.environ)


# ---- runs ----------------------------------------------------------------------------------------


def test_shared_arrays_are_measured_beside_those_who_are_there(tmp_path):
    file = tmp_path / "r.json"
    only = ("again", "pass", "import", "RawArray")
    brief = ("--quick", "--large", "4", "--only", *only)
    rows, printed = measured(SHM, file, *brief, "--json", file)
    assert {"again/1K", "again/1M", "pass/large", "handle/1K", "import/first"} <= set(rows)
    assert list(rows["again/1K"]["cells"]) == ["synk-shm", "RawArray"]
    assert len(rows["again/1K"]["cells"]["RawArray"]["samples"]) == 3
    assert rows["pass/1K"]["cells"]["RawArray"]["note"] == "only while a child is started"
    assert rows["bytes/message"]["cells"]["synk-shm"]["median"] < 200
    assert "create+touch 1 KB, again" in printed
    assert "(a quick run: no result to quote)" in printed


@pytest.mark.nightly
def test_calls_are_measured_beside_plain_theano(tmp_path):
    file = tmp_path / "r.json"
    brief = ("--quick", "--rounds", "1", "--only", "calls")
    rows, printed = measured(THEANO, file, *brief, "--json", file)
    assert {"calls/Data/plain Theano", "calls/Data/two Barrier waits"} <= set(rows)
    assert all(len(cell["samples"]) == 1 for row in rows.values() for cell in row["cells"].values())
    assert "of 7 targets reached" in printed


@pytest.mark.nightly
def test_scaling_is_measured_on_several_numbers_of_ranks(tmp_path):
    file = tmp_path / "r.json"
    brief = ("--quick", "--rounds", "1", "--only", "scaling", "--ranks", "2", "3")
    rows, printed = measured(THEANO, file, *brief, "--json", file)
    for what in ("six matrix products", "a step of two convolutions", "the sum of an array"):
        assert [rows[f"scaling/{what}/one process, {n} ranks"]["ranks"] for n in (2, 3)] == [2, 3]
        assert f"the same by hand: {what}, 3 ranks" in printed


@pytest.mark.nightly
def test_waits_are_measured_with_either_engine():
    program = ROOT / "integration/benchmarks/waits.py"
    done = ran(sys.executable, program, "--quick", timeout=LIMIT_S)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.startswith("Theano 1.0.5, linker ")
    lines = re.findall(
        r"^(.+?)  .* at most (20 us|5\.00 s|2\.00 s): (?:yes|NO)$", done.stdout, re.M
    )
    assert [what for what, _ in lines] == [
        "a call on 2 ranks",
        "a second start: first result",
        "60 operations to 4 workers",
    ]


def test_a_brief_run_measures_ours_and_says_which_peers_are_missing(tmp_path):
    file, page = tmp_path / "r.json", tmp_path / "r.md"
    only = ("--only", "all_reduce", "mismatch")
    rows, printed = measured(COMM, file, *BRIEF, *only, "--json", file, "--markdown", page)
    (about,) = json.loads(file.read_text())["runs"]
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
            assert "pip install" in about["left_out"][peer]
            assert f"left out: {peer}" in printed
            assert f"left out: {peer}" in page.read_text()
    assert "all_reduce, 2 ranks  1 KB" in printed
    assert about["machine"]["numpy"] == np.__version__


@pytest.mark.nightly
def test_an_update_replaces_the_same_rows_and_keeps_the_others(tmp_path):
    file = tmp_path / "r.json"
    ours = ("--only", "synk-comm")
    before, _ = measured(COMM, file, *BRIEF, *ours, "broadcast", "mismatch", "--json", file)
    after, _ = measured(COMM, file, *BRIEF, *ours, "reduce", "mismatch", "--update", file)
    assert list(after) == ["reduce/2/1024", "broadcast/2/1024", "mismatch/2/0"]
    assert [row["run"] for row in after.values()] == [1, 0, 1]
    assert after["broadcast/2/1024"] == before["broadcast/2/1024"]
    assert after["mismatch/2/0"]["cells"] != before["mismatch/2/0"]["cells"]
    shown = run(COMM, "--read", file).stdout
    assert "reduce, 2 ranks" in shown
    assert "broadcast, 2 ranks" in shown


def test_a_rank_that_fails_ends_the_job_and_is_quoted(tmp_path):
    (tmp_path / "synk_comm").mkdir()
    (tmp_path / "synk_comm" / "__init__.py").write_text("raise ImportError('half a package')\n")
    done = run(COMM, *BRIEF, "--only", "synk-comm", "barrier", first=str(tmp_path))
    assert done.returncode == 1
    assert "not finished: 2 ranks" in done.stdout
    assert "half a package" in done.stdout


@pytest.mark.nightly
def test_a_tiny_run_of_the_gpu_benchmarks_goes_from_end_to_end(tmp_path):
    only = "allreduce,fork,resnet,timeline,distribution,ddp"
    tiny = ("--device", "cpu", "--tiny", "--together", "--gpus", "2")
    done = run(GPU, "--out", tmp_path, "--only", only, *tiny, "--torch-python", "no-such-python")
    assert done.returncode == 0, done.stdout + done.stderr
    result = json.loads((tmp_path / "results.json").read_text())
    (about,) = result["runs"]
    assert about["left_out"] == {"ddp-2": "no-such-python has no torch and torchvision"}
    found = {(row["group"], *row["cells"]) for row in result["rows"]}
    assert found >= {
        ("resnet", "plain Theano, x[idx]"),
        ("resnet", "plain Theano, np.take(out=)"),
        ("resnet", "synkhronos"),
        ("allreduce", "synkhronos"),
        ("allreduce", "synkhronos, 8 in a step"),
        ("distribution", "synkhronos"),
        ("fork", "synkhronos"),
        ("timeline", "all ranks"),
        ("timeline", "the master alone"),
    }
    cells = [cell for row in result["rows"] for cell in row["cells"].values()]
    assert all(min(cell["samples"]) > 0 for cell in cells)
    page = (tmp_path / "results.md").read_text()
    for title in ("ResNet-50: training steps", "all_reduce", "Where a step's time goes"):
        assert f"## {title}" in page
        assert title in done.stdout
    assert "no result to quote" in page
    shown = run(GPU, "--out", tmp_path, "--read")
    assert shown.stdout == done.stdout


@pytest.mark.parametrize(
    "program, arguments, status, said",
    [
        (COMM, ["--only", "all_redcue"], 2, "there is no all_redcue"),
        (COMM, ["--sizes", "6"], 2, "is no size"),
        (COMM, ["--ranks", "1"], 2, "from 2 on"),
        (COMM, ["--sizes", "4000G"], 1, "take smaller --sizes"),
        (COMM, ["--read", "/nowhere"], 1, "No such file"),
        (SHM, ["--only", "attach", "detach"], 2, "there is no detach"),
        (SHM, ["--large", "5"], 2, "an even number"),
        (SHM, ["--read", "README.md"], 1, "README.md is not a result"),
        (THEANO, ["--rounds", "0"], 2, "from 1 on"),
        (GPU, ["--out", "{folder}", "--only", "resnat"], 2, "there is no part resnat"),
        (GPU, ["--out", "{folder}", "--gpus", "0"], 2, "from 1 on"),
        (GPU, ["--out", "{folder}", "--gpus", "two"], 2, "two"),
    ],
)
def test_what_cannot_be_measured_is_refused_with_a_sentence(
    zygote, program, arguments, status, said, tmp_path
):
    words = [word.format(folder=tmp_path) for word in arguments]
    done = zygote.run(program / "run.py", *words, folder=ROOT)
    assert done.status == status
    assert said in done.err
    assert "Traceback" not in done.err


@pytest.mark.parametrize("size", [2, pytest.param(3, marks=pytest.mark.nightly)])
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
    """Return what a rank receives when the ranks give these; None for nothing."""
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
