"""What scripts/bootstrap.sh says about machines that lack something, played with stand-ins."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
TOOLS = ("sh", "dirname", "cat", "cksum", "rm")


@pytest.fixture
def tools(tmp_path: Path) -> Path:
    """A folder with the few tools the script itself uses, to stand for a whole PATH."""
    folder = tmp_path / "bin"
    folder.mkdir()
    for tool in TOOLS:
        found = shutil.which(tool)
        assert found, tool
        (folder / tool).symlink_to(found)
    return folder


def add(folder: Path, name: str, script: str) -> None:
    path = folder / name
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)


def python_that_answers(folder: Path, name: str, answer: str) -> None:
    add(folder, name, f"cat >/dev/null\necho '{answer}'")


def check(folder: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["sh", str(ROOT / "scripts/bootstrap.sh"), "--check"],
        env={"PATH": str(folder), "HOME": str(folder), **environment},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def test_a_bare_machine_is_told_everything_at_once(tools: Path) -> None:
    done = check(tools)
    assert done.returncode == 1
    assert done.stdout == ""
    lines = done.stderr.splitlines()
    assert len(lines) == 3
    assert all(line.startswith("missing: ") and "apt install" in line for line in lines)
    assert "Python 3.9, 3.10 or 3.11" in lines[0]
    assert "g++" in lines[1]
    assert "make" in lines[2]


@pytest.mark.parametrize(
    ("answer", "cure"),
    [
        ("venv 3.11", "apt install python3.11-venv"),
        ("headers 3.10", "apt install python3.10-dev"),
        ("version", "apt install python3.11 python3.11-venv python3.11-dev"),
    ],
)
def test_an_incomplete_python_is_named_with_its_cure(tools: Path, answer: str, cure: str) -> None:
    add(tools, "g++", "true")
    add(tools, "make", "true")
    python_that_answers(tools, "python3", answer)
    done = check(tools)
    assert done.returncode == 1
    (line,) = done.stderr.splitlines()
    assert cure in line


def test_a_shim_that_cannot_run_is_passed_over(tools: Path) -> None:
    add(tools, "g++", "true")
    add(tools, "make", "true")
    add(tools, "python3.11", "echo 'command not found' >&2; exit 127")
    python_that_answers(tools, "python3.10", "headers 3.10")
    python_that_answers(tools, "python3.9", "ok 3.9")
    done = check(tools)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip().endswith(f"{tools}/python3.9")


def test_a_second_python_of_the_same_name_further_down_path_is_found(
    tools: Path, tmp_path: Path
) -> None:
    add(tools, "g++", "true")
    add(tools, "make", "true")
    add(tools, "python3.11", "exit 127")
    later = tmp_path / "later"
    later.mkdir()
    python_that_answers(later, "python3.11", "ok 3.11")
    done = check(tools, PATH=f"{tools}{os.pathsep}{later}")
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip().endswith(f"{later}/python3.11")


def test_this_interpreter_is_good_enough(tools: Path) -> None:
    add(tools, "g++", "true")
    add(tools, "make", "true")
    done = check(tools, PYTHON=sys.executable)
    assert done.returncode == 0, done.stderr


def test_a_chosen_python_is_not_replaced_by_another(tools: Path) -> None:
    add(tools, "g++", "true")
    add(tools, "make", "true")
    python_that_answers(tools, "python3.11", "ok 3.11")
    done = check(tools, PYTHON="/nonexistent/python")
    assert done.returncode == 1
    assert "/nonexistent/python is not Python 3.9" in done.stderr
