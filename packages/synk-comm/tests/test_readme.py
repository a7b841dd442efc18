"""What the README shows is run as it says, and prints what it says."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest
from _helpers import printed_by

import synk_comm
from synk_comm.testing import in_threads

README = (Path(__file__).parents[1] / "README.md").read_text(encoding="utf-8")
PROGRAMS = re.findall(r"^```python\n(.*?)^```", README, re.DOTALL | re.MULTILINE)
HELLO, LAUNCHES, SYMMETRIC, PAIRS, REQUESTS, BEGUN, PARENT, CONTRACT = PROGRAMS


@pytest.fixture
def run(tmp_path):
    """A function that runs a program of this name in a folder of its own; returns its output."""

    def run(code, *before, name="program.py"):
        (tmp_path / name).write_text(code, encoding="utf-8")
        return printed_by(*before, name, cwd=tmp_path)

    return run


def promised(code):
    return re.findall(r"#-> (.*)", code)


def test_first_program(run):
    command, *shown = re.search(r"```console\n(.*?)```", README, re.DOTALL).group(1).splitlines()
    start, *arguments = command.split()[1:]
    assert start == "python"
    *before, name = arguments
    assert sorted(run(HELLO, *before, name=name).splitlines()) == shown


def test_first_program_alone(run):
    assert run(HELLO, "-W", "error") == "rank 0 of 1: [0 1 2]\n"


@pytest.mark.parametrize("code", [LAUNCHES, PARENT], ids=["launch", "parent"])
def test_programs_that_start_ranks(run, code):
    assert run(code, "-W", "error").splitlines() == promised(code) != []


def test_symmetric_arrays_pairs_and_requests(run):
    """All in one program, on the four ranks of the page's first one."""
    begin = "import numpy as np\nimport synk_comm\n\ncomm = synk_comm.connect()\n"
    code = begin + SYMMETRIC + PAIRS + REQUESTS + BEGUN
    printed = run(code, "-m", "synk_comm.run", "-n", "4").splitlines()
    (totals, mean), (received, *by_rank) = promised(SYMMETRIC + BEGUN), promised(PAIRS + REQUESTS)
    expected = [f"[{rank}] {same}" for rank in range(4) for same in (totals, mean)]
    expected += [f"[1] {received}"]
    said = [one for line in by_rank for one in line.split("; ")]
    expected += [re.sub(r"rank (\d): ", r"[\1] ", one) for one in said]
    assert sorted(printed) == sorted(expected)


def test_contract_as_it_is_taken_up(run):
    arguments = ("-m", "pytest", "-q", "-p", "no:cacheprovider", "-k", "one_thread_after")
    assert "1 passed" in run(CONTRACT, *arguments, name="test_mine.py")


def test_mismatch_says_what_is_shown():
    shown = re.search(r"```text\n(the ranks .*?)```", README, re.DOTALL).group(1)
    sizes = [int(size) for size in re.findall(r"\((\d+),\)", shown)]

    def call(comm):
        with pytest.raises(synk_comm.MismatchError) as caught:
            comm.all_reduce(np.ones(sizes[comm.rank]))
        return str(caught.value)

    assert in_threads(synk_comm.local_group(2), call) == [shown.rstrip()] * 2


def test_calls_and_errors_are_those_there_are():
    """No call or error is missing in the tables, and none is there that does not exist."""
    calls = README.partition("## The calls")[2].partition("\n`op` is")[0]
    named = set(re.findall(r"^\| ((?:`[^|]*`(?:, | and its like)?)+) \|", calls, re.MULTILINE))
    named = {name for cell in named for name in re.findall(r"`(\w+)", cell)}
    contract = vars(synk_comm.Communicator)
    members = {name for name in contract if name[0] != "_" and callable(contract[name])}
    objects = {name for name in members if name.endswith("_object")}
    assert named == members - objects | {"broadcast_object"}
    errors = README.partition("## Errors")[2].partition("\n## ")[0]
    shown = set(re.findall(r"^\| (.*?) \|", errors, re.MULTILINE))
    shown = {name for cell in shown for name in re.findall(r"`(\w+)`", cell)}
    own = {name for name in synk_comm.exceptions.__all__ if name != "CommError"}
    assert own <= shown
    assert shown - own == {"ValueError", "TypeError", "MemoryError"}


def test_links_lead_somewhere():
    home = Path(__file__).parents[1]
    links = [link for link in re.findall(r"\]\(([^)#]+)\)", README) if "://" not in link]
    assert links
    assert [link for link in links if not (home / link).exists()] == []
