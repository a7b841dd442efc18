"""What the README, the guides and the page of the examples show runs, and prints what they say."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from _helpers import printed_by

import synk_comm

HOME = Path(__file__).parents[1]
README = (HOME / "README.md").read_text(encoding="utf-8")
FENCE = r"^```python\n(.*?)^```"
PROGRAMS = re.findall(FENCE, README, re.DOTALL | re.MULTILINE)
HELLO, LAUNCHES, PAIRS, REQUESTS, PARENT = PROGRAMS
(MISMATCH,) = re.findall(r"```text\n  (the ranks .*?)  ```", README, re.DOTALL)
CATCH = """
try:
    comm.split(comm.rank // 2).all_reduce(np.ones(3 + comm.rank % 2))
except synk_comm.MismatchError as error:
    print(error)
"""
GUIDES = {path.stem: path.read_text("utf-8") for path in sorted(HOME.glob("docs/from_*.md"))}
EXAMPLES = sorted(path.name for path in HOME.glob("examples/*.py"))
_, *PARTS = re.split(r"^## ", (HOME / "examples/README.md").read_text("utf-8"), flags=re.MULTILINE)
PRINTED = {
    part.partition("\n")[0]: re.search(r"```text\n(.*?)```", part, re.DOTALL).group(1)
    for part in PARTS
}
ON_THREE = ("-m", "synk_comm.run", "-n", 3)


@pytest.fixture
def run(tmp_path):
    """A function that runs a program of this name in a folder of its own; returns its output."""

    def run(code, *before, name="program.py"):
        (tmp_path / name).write_text(code, encoding="utf-8")
        return printed_by(*before, name, cwd=tmp_path)

    return run


def promised(code, rank=None):
    """Return the lines that a program promises, or one rank's: ``rank 0: this; rank 1: that``."""
    lines = []
    for promise in re.findall(r"#-> (.*)", code):
        if rank is None or not promise.startswith("rank "):
            lines.append(promise)
        else:
            lines += re.findall(rf"rank {rank}: (.*?)(?:; rank \d|$)", promise)
    return lines


def test_first_program(run):
    command, *shown = re.search(r"```console\n(.*?)```", README, re.DOTALL).group(1).splitlines()
    start, *arguments = command.split()[1:]
    assert start == "python"
    *before, name = arguments
    assert sorted(run(HELLO, *before, name=name).splitlines()) == shown
    assert run(HELLO, "-W", "error") == "rank 0 of 1: [0 1 2]\n"


@pytest.mark.parametrize("code", [LAUNCHES, PARENT], ids=["launch", "parent"])
def test_programs_that_start_ranks(run, code):
    assert run(code, "-W", "error").splitlines() == promised(code) != []


def test_pairs_requests_and_a_mismatch(run):
    begin = "import numpy as np\nimport synk_comm\n\ncomm = synk_comm.connect()\n"
    code = begin + PAIRS + REQUESTS + CATCH
    printed = run(code, "-m", "synk_comm.run", "-n", "4").splitlines()
    (received, pairs), (ring, mean) = promised(PAIRS), promised(REQUESTS)
    expected = [f"[1] {received}"]
    expected += [re.sub(r"rank (\d): ", r"[\1] ", one) for one in f"{pairs}; {ring}".split("; ")]
    everywhere = [mean, *MISMATCH.replace("\n  ", "\n").splitlines()]
    expected += [f"[{rank}] {line}" for rank in range(4) for line in everywhere]
    assert sorted(printed) == sorted(expected)


def test_calls_and_errors_are_those_there_are():
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
    assert shown - own == {"ValueError", "TypeError"}


@pytest.mark.parametrize("page", ["from_mpi4py", "from_torch_distributed"])
def test_program_of_a_guide(run, page):
    assert page in GUIDES
    assert len(GUIDES) == 2
    (code,) = re.findall(FENCE, GUIDES[page], re.DOTALL | re.MULTILINE)
    printed = run(code, *ON_THREE).splitlines()
    for rank in range(3):
        mine = [line[4:] for line in printed if line.startswith(f"[{rank}] ")]
        assert mine == promised(code, rank) != []


@pytest.mark.parametrize(
    "name, size",
    [
        *((name, 3) for name in EXAMPLES),
        (EXAMPLES[0], 1),
        *(pytest.param(name, 1, marks=pytest.mark.nightly) for name in EXAMPLES[1:]),
    ],
)
def test_example(name, size):
    assert sorted(PRINTED) == EXAMPLES
    start = [] if size == 1 else [*ON_THREE, "--no-tag-output"]
    printed = printed_by(*start, HOME / "examples" / name, PYTHONWARNINGS="error")
    assert printed == PRINTED[name]
