"""The documented programs, and the first example of every README, run as a reader would."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
HELPERS = {"display"}  # imported by the programs
TRAINED_ELSEWHERE = "train_digits.py"  # takes minutes: the tests of synk-extensions run it shorter
EXAMPLES = sorted(p for p in (ROOT / "examples").glob("*.py") if p.stem not in HELPERS)
READMES = [ROOT / "README.md", *sorted((ROOT / "packages").glob("*/README.md"))]
LIMIT_S = 200


def run(program: Path, folder: Path) -> str:
    """Run a program in an empty folder; it has to succeed and to keep silent on stderr."""
    done = subprocess.run(
        [sys.executable, str(program)],
        cwd=folder,
        env={**os.environ, "SYNKHRONOS_N_PARALLEL": "2"},
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
    )
    assert done.returncode == 0, f"{program}:\n{done.stdout}\n{done.stderr}"
    return done.stdout


def test_there_are_examples() -> None:
    names = {path.name for path in EXAMPLES}
    assert {"intro.py", "shared_variables.py", "train_digits.py"} <= names


@pytest.mark.slow
@pytest.mark.parametrize(
    "program",
    [path for path in EXAMPLES if path.name != TRAINED_ELSEWHERE],
    ids=lambda path: path.stem,
)
def test_example_runs(program: Path, tmp_path: Path) -> None:
    assert run(program, tmp_path).strip()
    assert list(tmp_path.iterdir()) == [], "a program leaves no file behind"


@pytest.mark.slow
@pytest.mark.parametrize("name", ["intro", "shared_variables"])
def test_a_documented_program_prints_what_is_documented(name: str, tmp_path: Path) -> None:
    """Two processes; the machine's number of cores and its seconds are its own."""
    expected = (ROOT / "examples" / f"{name}.txt").read_text(encoding="utf-8")
    assert comparable(run(ROOT / "examples" / f"{name}.py", tmp_path)) == comparable(expected)


def comparable(printed: str) -> str:
    cores = r"use 2 (of|processes on) \d+ detected CPU cores"
    printed = re.sub(cores, "use 2 CPU cores", printed)
    return re.sub(r"complete \(\d+ s\)", "complete", printed)


@pytest.mark.slow
@pytest.mark.parametrize("readme", READMES, ids=lambda path: path.parent.name)
def test_the_first_example_of_a_readme_runs(readme: Path, tmp_path: Path) -> None:
    text = readme.read_text(encoding="utf-8")
    blocks = re.findall(r"^```python\n(.*?)^```", text, flags=re.MULTILINE | re.DOTALL)
    assert blocks, "a README begins with something to run"
    # A program with workers is read from a file, as a user's would be.
    program = tmp_path / "program.py"
    program.write_text(blocks[0], encoding="utf-8")
    printed = run(program, tmp_path)
    promised = re.findall(r"#-> (.*)", blocks[0])
    lines = [line for line in printed.splitlines() if "ynkhronos" not in line]
    assert not promised or lines == promised
    shown = re.search(r"^```text\n(.*?)^```", text, flags=re.MULTILINE | re.DOTALL)
    if readme == ROOT / "README.md":
        assert shown, "the example is shown with its output"
        assert comparable(printed) == comparable(shown.group(1))
