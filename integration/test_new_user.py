"""What a new user meets: the README's first program, five mistakes, and what is said to each.

All of it in a fresh environment into which the built wheels were installed, with an empty home.
"""

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


# Runs a program, with changes of its environment: its exit status, and both of its outputs.
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


def last_line(text: str) -> str:
    return text.strip().splitlines()[-1]


def test_the_readmes_first_program_prints_what_the_readme_shows(
    attempt: Attempt, tmp_path: Path
) -> None:
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


@pytest.mark.nightly
def test_a_wrong_dtype(attempt: Attempt) -> None:
    program = BEGIN + (
        'y = T.fmatrix("y")\nf = synk.function([y], y.mean(), name="f")\nf(np.ones((4, 3)))\n'
    )
    status, _, said = attempt(program)
    assert status == 1
    error = last_line(said)
    assert "InputTypeError: input y of function 'f': got dtype float64, expected float32" in error
    assert ".astype('float32')" in error


@pytest.mark.parametrize(
    ("outputs", "expected", "cure"),
    [
        ('(x.mean(), "mean")', "OpError: outputs: got reduce op 'mean'", "'avg', 'sum'"),
        pytest.param(
            *("x.sum(axis=1)", "the ranks brought different shapes", "op 'gather', as in"),
            marks=pytest.mark.nightly,
        ),
    ],
)
def test_a_wrong_op(attempt: Attempt, outputs: str, expected: str, cure: str) -> None:
    program = BEGIN + f'f = synk.function([x], {outputs}, name="f")\nf(np.ones((5, 3)))\n'
    status, _, said = attempt(program)
    assert status == 1
    assert expected in said
    assert cure in said.strip()[-400:]


@pytest.mark.nightly
def test_a_forgotten_all_reduce(attempt: Attempt) -> None:
    program = BEGIN + (
        'w = theano.shared(np.ones(3), name="w")\n'
        "loss = T.sqr(x.dot(w)).mean()\n"
        'f = synk.function([x], loss, updates=[(w, w - 0.1 * T.grad(loss, w))], name="train")\n'
        "for _ in range(3):\n"
        "    f(np.random.rand(8, 3))\n"
        'print("done")\n'
    )
    status, printed, said = attempt(program)
    assert (status, last_line(printed)) == (0, "done")
    assert "LintWarning" in said
    assert "rank-local updates of 'w' by train are never averaged" in said
    assert "with make_train_function(loss, params, inputs, updates.adam)" in said


@pytest.mark.nightly
def test_a_killed_worker(attempt: Attempt) -> None:
    program = BEGIN + (
        "from theano.compile.ops import as_op\n"
        "master = os.getpid()\n"
        "@as_op([T.dmatrix], [T.dmatrix])\n"
        "def fatal(rows):\n"
        "    if os.getpid() != master:\n"
        "        os.kill(os.getpid(), signal.SIGKILL)\n"
        "    return rows\n"
        'f = synk.function([x], fatal(x).mean(), name="f")\n'
        "f(np.ones((4, 3)))\n"
    )
    status, _, said = attempt(program)
    assert status == 1
    error = last_line(said)
    assert "WorkerDied: the worker process of rank 1 was killed by SIGKILL" in error
    assert "computing function 'f'" in error
    assert "Call fork() to start again" in error


def test_no_compiler(attempt: Attempt, tmp_path: Path) -> None:
    tools = tmp_path / "bin"
    tools.mkdir()
    for tool in ("sh", "uname"):  # what Python's own library may call
        found = shutil.which(tool)
        if found:
            (tools / tool).symlink_to(found)
    program = BEGIN + 'f = synk.function([x], x.mean(), name="f")\nprint(f(np.ones((4, 3))))\n'
    status, printed, said = attempt(program, PATH=str(tools), HOME=str(tmp_path))
    assert (status, last_line(printed)) == (0, "1.0"), said
    assert "there is no C++ compiler" in printed
    assert "apt install g++" in printed
    assert said.count("configdefaults.py") == 1, f"workers do not repeat it: {said}"
