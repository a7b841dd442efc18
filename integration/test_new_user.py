"""A new user, with built wheels in a fresh environment and an empty home, runs the README."""

from __future__ import annotations

import re
import shutil
from pathlib import Path
from typing import Callable

import pytest
from _checkout import ROOT, ran
from _wheels import run

LIMIT_S = 180
BEGIN = """
import os, signal
import numpy as np, theano, theano.tensor as T
import synkhronos as synk
synk.fork(2, use_gpu=False)
x = T.matrix("x")
"""


Attempt = Callable[..., tuple[int, str, str]]


@pytest.fixture
def attempt(installed: Path, clean_environment: dict[str, str], tmp_path: Path) -> Attempt:
    def run_it(program: str, **changes: str) -> tuple[int, str, str]:
        script = tmp_path / "program.py"
        script.write_text(program, encoding="utf-8")
        environment = {**clean_environment, **changes}
        done = ran(installed, script, env=environment, cwd=tmp_path, timeout=LIMIT_S)
        return done.returncode, done.stdout, done.stderr

    return run_it


def test_the_readmes_first_program_prints_the_shown_lines(attempt: Attempt, tmp_path: Path) -> None:
    page = (ROOT / "README.md").read_text(encoding="utf-8")
    program = re.findall(r"^```python\n(.*?)^```", page, re.DOTALL | re.MULTILINE)[0]
    assert "synk.fork()" in program
    status, printed, said = attempt(program)
    assert status == 0, said
    assert "Synkhronos distributing functions..." in printed
    assert sorted(path.name for path in tmp_path.iterdir()) == ["program.py"]


def test_the_command_line_is_there(
    installed: Path, clean_environment: dict[str, str], tmp_path: Path
) -> None:
    command = installed.with_name("synkhronos")
    assert run(command, "--version", env=clean_environment).startswith("synkhronos ")
    printed = run(command, "demo", "intro", env=clean_environment, cwd=tmp_path)
    assert printed.splitlines()[-1] == "All assertions passed."


def test_no_compiler(attempt: Attempt, tmp_path: Path) -> None:
    tools = tmp_path / "bin"
    tools.mkdir()
    for tool in ("sh", "uname"):  # what Python's own library may call
        found = shutil.which(tool)
        if found:
            (tools / tool).symlink_to(found)
    program = BEGIN + 'f = synk.function([x], x.mean(), name="f")\nprint(f(np.ones((4, 3))))\n'
    status, printed, said = attempt(program, PATH=str(tools), HOME=str(tmp_path))
    assert (status, printed.strip().splitlines()[-1]) == (0, "1.0"), said
    assert "there is no C++ compiler" in printed
    assert "apt install g++" in printed
    assert said.count("configdefaults.py") == 1, f"workers do not repeat it: {said}"
