"""The documented programs run as a reader would run them; `test_docs_blocks.py` runs pages."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest
from _checkout import ROOT, ran
from _run_page import alike

# The first takes minutes, the second needs PyMC: the tests of synk-extensions run them, shorter.
RUN_ELSEWHERE = {"train_digits.py", "pymc_regression.py"}
EXAMPLES = sorted((ROOT / "examples").glob("*.py"))
DOCUMENTED = {"intro", "shared_variables"}  # with what they print
LIMIT_S = 280


def run(program: Path, folder: Path) -> str:
    environment = {**os.environ, "SYNKHRONOS_N_PARALLEL": "2"}
    done = ran(sys.executable, program, cwd=folder, env=environment, timeout=LIMIT_S)
    assert done.returncode == 0, f"{program}:\n{done.stdout}\n{done.stderr}"
    return done.stdout


def test_there_are_examples() -> None:
    names = {path.name for path in EXAMPLES}
    assert {"intro.py", "shared_variables.py", *RUN_ELSEWHERE} <= names


@pytest.mark.slow
@pytest.mark.parametrize(
    "program",
    [pytest.param(path, id=path.stem) for path in EXAMPLES if path.name not in RUN_ELSEWHERE],
)
def test_example_runs(program: Path, tmp_path: Path) -> None:
    printed = run(program, tmp_path)
    assert printed.strip()
    if program.stem in DOCUMENTED:
        expected = program.with_suffix(".txt").read_text(encoding="utf-8")
        assert alike(expected, printed), printed
    assert list(tmp_path.iterdir()) == [], "a program leaves no file behind"
