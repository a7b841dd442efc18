"""What the guides show under *After* runs on three ranks, and prints what they say."""

from __future__ import annotations

import ast
import importlib.util
import json
import re
import sys
import traceback
from pathlib import Path

import numpy as np
import pytest
from _helpers import printed_by
from _jobs import job

import synk_comm
from synk_comm.testing import run_ranks

DOCS = Path(__file__).parents[1] / "docs"
SIZE = 3
LIMIT_S = 60.0
BLOCK = r"^\*\*%s\*\*[^\n]*\n\n```python\n(.*?)^```"
PAGES = {path.stem: path.read_text(encoding="utf-8") for path in sorted(DOCS.glob("from_*.md"))}


def blocks(mark: str) -> dict[str, str]:
    """The programs under a mark, by page, title and number."""
    found = {}
    for page, text in PAGES.items():
        for part in re.split(r"^## ", text, flags=re.MULTILINE)[1:]:
            title = part.partition("\n")[0]
            programs = re.findall(BLOCK % mark, part, re.DOTALL | re.MULTILINE)
            for number, code in enumerate(programs, 1):
                found[f"{page}, {title}, {number}"] = code
    return found


AFTER = blocks("After")
TORCH = blocks("With torch")
WHOLE = {title for title, code in AFTER.items() if "synk_comm.connect(" in code}
CALLERS = {title for title, code in AFTER.items() if "synk_comm.launch(" in code}
ON_RANKS = {title: code for title, code in AFTER.items() if title not in WHOLE | CALLERS}


def promised(code: str) -> dict[int, str]:
    """What each line that prints says that it prints, by its number."""
    lines = enumerate(code.splitlines(), 1)
    return {number: line.split("#-> ")[1] for number, line in lines if "#-> " in line}


def on_rank(promise: str, rank: int) -> str | None:
    """What one rank prints: all the same, unless it says ``rank 0: this; rank 1: that``."""
    if not re.match(r"rank \d+: ", promise):
        return promise
    said = dict(re.fullmatch(r"rank (\d+): (.*)", p).groups() for p in promise.split("; "))
    return said.get(str(rank))


def run_blocks(comm, codes):
    """Run each program in a group of its own; return the lines that it printed, or what failed."""
    said = {}
    for title, code in codes.items():
        lines = []

        def show(*values, lines=lines):
            lines.append((sys._getframe(1).f_lineno, " ".join(map(str, values))))

        with comm.split(0) as own:
            names = {"np": np, "synk_comm": synk_comm, "comm": own, "print": show}
            try:
                exec(compile(code, title, "exec"), names)
            except Exception as exc:
                own.abort(f"{title} failed: {exc}")
                lines = traceback.format_exc()
        said[title] = lines
    return said


def check(code: str, said: list) -> None:
    """Compare what all ranks printed with what the program promises."""
    expected = promised(code)
    assert expected, "it shows nothing"
    shown = set()
    for rank, lines in enumerate(said):
        assert not isinstance(lines, str), f"rank {rank}:\n{lines}"
        for number, text in lines:
            assert (rank, text) == (rank, on_rank(expected[number], rank))
            shown.add((number, rank))
    for number, promise in expected.items():
        ranks = [rank for rank in range(len(said)) if on_rank(promise, rank) is not None]
        printed = [rank for rank in ranks if (number, rank) in shown]
        assert printed == ranks if promise.startswith("rank ") else printed, promise


@pytest.fixture(scope="module")
def said():
    """What all programs that are given a communicator printed, on each rank."""
    return run_ranks(SIZE, run_blocks, ON_RANKS, timeout_s=LIMIT_S)


def test_the_pages_have_all_their_programs_here():
    assert sorted(PAGES) == ["from_mpi4py", "from_torch_distributed"]
    text = "".join(PAGES.values())
    assert len(AFTER) == text.count("\n**After**") >= 30
    assert (len(WHOLE), len(CALLERS), len(TORCH)) == (2, 2, 1)
    for code in re.findall(r"^```python\n(.*?)^```", text, re.DOTALL | re.MULTILINE):
        ast.parse(code)  # those under *Before* too


@pytest.mark.parametrize("title", ON_RANKS)
def test_program(said, title):
    check(ON_RANKS[title], [rank[title] for rank in said])


UNDER_MPI = f"""
import json, sys
sys.path.insert(0, {str(Path(__file__).parent)!r})
import synk_comm, test_guides
with synk_comm.connect(backend="mpi", timeout_s={LIMIT_S}) as comm:
    said = comm.gather_object(test_guides.run_blocks(comm, test_guides.ON_RANKS))
    if comm.rank == 0:
        print(json.dumps(said))
"""


def test_programs_under_mpi():
    with job(UNDER_MPI, size=SIZE, on_a_host=2) as program:
        done = program.finish()
    assert done.status == 0, done.err
    said = json.loads(done.out)
    for title, code in ON_RANKS.items():
        check(code, [rank[title] for rank in said])


@pytest.mark.parametrize("title", sorted(WHOLE))
def test_whole_program(tmp_path, title):
    program = tmp_path / "program.py"
    program.write_text(AFTER[title])
    printed = printed_by("-m", "synk_comm.run", "-n", SIZE, program).splitlines()
    (promise,) = promised(AFTER[title]).values()
    assert sorted(printed) == [f"[{rank}] {on_rank(promise, rank)}" for rank in range(SIZE)]


@pytest.mark.parametrize("title", sorted(CALLERS))
def test_program_that_launches(tmp_path, title):
    program = tmp_path / "program.py"
    program.write_text(AFTER[title])
    assert printed_by(program).splitlines() == list(promised(AFTER[title]).values())


@pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="torch is not installed")
@pytest.mark.parametrize("title", TORCH)
def test_program_with_torch(title):
    said = run_ranks(SIZE, run_blocks, TORCH, timeout_s=LIMIT_S)
    check(TORCH[title], [rank[title] for rank in said])
