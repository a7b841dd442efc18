"""The examples succeed, alone and on ranks, and print what is said of them."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from _helpers import run_python

HOME = Path(__file__).parents[1] / "examples"
EXAMPLES = sorted(path.name for path in HOME.glob("*.py"))
_, *PARTS = re.split(r"^## ", (HOME / "README.md").read_text(encoding="utf-8"), flags=re.MULTILINE)
PRINTED = {
    part.partition("\n")[0]: re.search(r"```text\n(.*?)```", part, re.DOTALL).group(1)
    for part in PARTS
}


def run(*command, **more):
    return run_python(*command, PYTHONWARNINGS="error", **more)


def test_the_examples_are_described():
    assert sorted(PRINTED) == EXAMPLES
    assert len(EXAMPLES) == 3


@pytest.mark.parametrize(
    "name, size",
    [
        *((name, 3) for name in EXAMPLES),
        (EXAMPLES[0], 1),
        *(pytest.param(name, 1, marks=pytest.mark.nightly) for name in EXAMPLES[1:]),
    ],
)
def test_example(name, size):
    start = [] if size == 1 else ["-m", "synk_comm.run", "-n", str(size), "--no-tag-output"]
    done = run(*start, str(HOME / name))
    assert (done.returncode, done.stderr, done.stdout) == (0, "", PRINTED[name])
