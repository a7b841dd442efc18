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


@pytest.mark.parametrize(
    "name, right, wrong",
    [
        ("average_gradients.py", "weight=float(len(mine))", "weight=float(len(mine) > 0)"),
        *(
            pytest.param(*example, marks=pytest.mark.nightly)
            for example in (
                ("pi.py", "comm.size) + 0.5", "comm.size) + 0.6"),
                ("halo.py", "tag=LEFTWARDS, out=rod[-1:]", "tag=LEFTWARDS"),
            )
        ),
    ],
)
def test_examples_would_notice(tmp_path, name, right, wrong):
    """Each fails on three ranks if something in it is wrong."""
    code = (HOME / name).read_text(encoding="utf-8")
    assert code.count(right) == 1
    (tmp_path / name).write_text(code.replace(right, wrong), encoding="utf-8")
    done = run("-m", "synk_comm.run", "-n", "3", str(tmp_path / name))
    assert done.returncode == 1
    assert "AssertionError" in done.stderr
