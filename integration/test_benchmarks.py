"""The harness of the benchmarks, the figures of the pages, and a brief run of each program."""

from __future__ import annotations

import json
import os
import re
import sys
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace

import pytest
from _checkout import ROOT, ran

sys.path.append(str(ROOT / "benchmarks"))

from synk_benchmarks.results import (
    Cell,
    NotOfferedError,
    Row,
    joined,
    ratio,
    read_rows,
    row_of,
    write_row,
)
from synk_benchmarks.rounds import calls_for, take_turns, turns
from synk_benchmarks.tables import amount, number, page, size_name

FOLDERS = {name: ROOT / f"packages/synk-{name}/benchmarks" for name in ("comm", "shm", "theano")}
FOLDERS["gpu"] = ROOT / "integration/benchmarks/gpu"
LIMIT_S = 280


def test_ratios_are_medians_of_the_rounds_own() -> None:
    one = row_of("a", "b", {"ours": [1, 4, 9], "theirs": [2, 2, 2], "few": [2, 3], "no": []})
    assert ratio(one, "ours", "theirs") == 2
    assert ratio(one, "ours", "few") == 1.6
    assert ratio(one, "ours", "no") is ratio(one, "ours", "absent") is None


def test_rows_come_back_from_their_file_without_half_a_line(tmp_path: Path) -> None:
    first = row_of("a", "b", {"x": [1, 2]}, ranks=2, images=3)
    second = Row("a", "b", {"y": Cell((), "failed: y")}, ranks=2)
    for row in (first, second):
        write_row(tmp_path / "rows", row)
    with (tmp_path / "rows").open("a") as file:
        file.write('{"group": "c')
    assert read_rows(tmp_path / "rows") == [first, second]
    assert read_rows(tmp_path / "nothing") == []
    (both,) = joined([first, second])
    assert list(both.cells) == ["x", "y"]


def test_every_round_begins_with_another_one() -> None:
    taken = [f"{number}{name}" for number, name in turns(["a", "b", "c"], 3, warm=True)]
    assert " ".join(taken) == "-1c -1a -1b 0a 0b 0c 1b 1c 1a 2c 2a 2b"


def test_who_fails_is_out_and_the_first_round_does_not_count() -> None:
    asked: list[str] = []

    def measure(contender: SimpleNamespace) -> dict[str, float]:
        asked.append(contender.name)
        if contender.name == "poor":
            raise NotOfferedError("no address")
        if contender.name == "broken" and len(asked) > 3:
            raise OSError("disk full")
        return {"all": float(len(asked))}

    contenders = [SimpleNamespace(name=name) for name in ("good", "broken", "poor")]
    cells = take_turns(contenders, 3, measure)["all"]
    assert asked == ["poor", "good", "broken", "good", "broken", "good", "good"]
    assert cells["good"].samples == (4.0, 6.0, 7.0)
    assert (cells["broken"].samples, cells["broken"].note) == ((), "failed: OSError: disk full")
    assert cells["poor"].note == "no address"


def test_a_turn_has_as_many_calls_as_fit() -> None:
    cases = ((1e-3, 99, 10), (1e-9, 99, 2000), (5, 99, 1), (5, 1, 1))
    for seconds, give_up_s, calls in cases:
        assert calls_for(10.5e-3, lambda _count, s=seconds: s, give_up_s) == calls


def test_a_page_has_ratios_and_each_remark_once() -> None:
    cells = {"ours": Cell((2e-6,)), "b": Cell((1e-6,), "cold"), "c": Cell(note="not offered")}
    cells["d"] = Cell(note="failed: no memory")
    rows = [Row("sum", label, cells) for label in ("1|KB", "2 KB")]
    text = page("Name", {"cores": "2"}, rows, ["left out: e: pip install e"]).markdown()
    lines = [re.sub(" +", " ", line) for line in text.splitlines()]
    assert lines[:5] == ["# Name", "", "| | |", "|---|---|", "| cores | 2 |"]
    assert "| | ours | b | c | d | to b | to c | to d |" in lines
    assert r"| 1\|KB | 2 us | 1 us\* | - | failed\* | 2.00 | | |" in lines
    assert r"- sum, 1\|KB and 1 more: d: failed: no memory" in lines
    assert lines[-1] == "- left out: e: pip install e"


def test_numbers_have_the_unit_that_suits_them() -> None:
    seconds = [amount(value) for value in (3.8e-7, 1.31e-6, 0.1314, 47)]
    assert seconds == ["380 ns", "1.31 us", "131 ms", "47.00 s"]
    assert [amount(value, "B") for value in (102_400_000, 1175)] == ["102 MB", "1,175 B"]
    assert [number(x) for x in (2.0901, 0.0471, 0.0066, 0)] == ["2.09", "0.047", "1/152", "0"]
    assert [size_name(n) for n in (4, 1 << 16, 1 << 20, 1500)] == ["4 B", "64 KB", "1 MB", "1500 B"]


def test_the_page_on_performance_shows_the_kept_figures() -> None:
    text = (ROOT / "docs/performance.md").read_text("utf-8")
    shown = re.findall(r"^<!-- figures: .*? -->\n+((?:\|.*\n)+)", text, re.MULTILINE)
    figures = json.loads((ROOT / "docs/pictures/figures.json").read_text("utf-8"))
    kept = [figures[name] for name in figures if name != "speed"]
    tables = [[one["header"], *one["rows"]] for one in kept]
    assert tables == [
        [[cell.strip() for cell in line[1:-1].split("|")] for line in table.splitlines()]
        for table in [re.sub(r"^\|-.*\n", "", table, flags=re.MULTILINE) for table in shown]
    ]
    assert all(one["date"] and one["machine"] and one["versions"] for one in figures.values())


@pytest.mark.nightly
@pytest.mark.parametrize(
    "program, arguments, said",
    [
        (
            "comm",
            "--quick --ranks 2 --sizes 1K --only all_reduce mismatch",
            "all_reduce, 2 ranks",
        ),
        ("shm", "--quick --large 4 --only create pass RawArray", "bytes of a message"),
        ("theano", "--quick --rounds 1 --only calls", "two Barrier waits"),
        ("waits", "--quick --only call start", "first result"),
        pytest.param(
            *("waits", "--quick --only posterior", "two halves apart"),
            marks=pytest.mark.skipif(not find_spec("pymc"), reason="needs PyMC"),
        ),
        ("hosts", "--quick --plain --rounds 2 --only orders", "an order"),
        ("gpu", "--out {folder} --device cpu --tiny --gpus 2 --only resnet", "synkhronos, steps()"),
    ],
)
def test_a_brief_run_goes_from_end_to_end(
    program: str, arguments: str, said: str, tmp_path: Path
) -> None:
    folder = FOLDERS.get(program, ROOT / "integration/benchmarks")
    file = folder / ("run.py" if program in FOLDERS else f"{program}.py")
    words = arguments.format(folder=tmp_path).split()
    # Convolutions need the C code that other tests do without.
    environment = {**os.environ, "THEANO_FLAGS": ""}
    environment["PYTHONPATH"] = os.pathsep.join(filter(None, sys.path))
    done = ran(sys.executable, file, *words, env=environment, cwd=ROOT, timeout=LIMIT_S)
    assert done.returncode == 0, done.stdout + done.stderr
    assert said in done.stdout
