"""The program that plants faults says what came of each; test_house_rules.py has their table."""

from __future__ import annotations

import json
import signal
import subprocess
import time

import pytest
from _checkout import ROOT

from synk_testing import Program

SCRIPTS = ROOT / "scripts"
PACKAGES = [
    *("synk_shm", "synk_comm", "synk_core"),
    *("synk_theano", "synk_theano_compat", "synkhronos"),
]
LIMIT_S = 120

# In a checkout that is nothing but this, in place of the table.
PROGRAM = """
import sys
sys.path.insert(0, {scripts!r})
import planted_faults
from _planted_faults import Fault

FILE = "packages/all/src/synk_shm/__init__.py"
SLEEP = (
    "import subprocess, pathlib; pathlib.Path({began!r}).touch(); "
    "subprocess.run(['sleep', '600'], start_new_session=True)"
)

def fault(name, old, new):
    tests = ("packages/all/tests/test_value.py",)
    return Fault(name, "all", "plans", FILE, old, new, "It is wrong.", tests)

planted_faults.FAULTS = (
    fault("seen", "value = 1", "value = 2"),
    fault("sleeps", "value = 1", SLEEP),
    fault("unseen", "other = 1", "other = 2"),
    fault("gone", "third = 1", "third = 2"),
)
sys.exit(planted_faults.main(sys.argv[1:]))
"""
# What a child sees: it has to be the copy, too.
TEST = """
import subprocess, sys

def test_value():
    code = "import synk_shm; assert synk_shm.value == 1"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0
"""


@pytest.fixture
def start(tmp_path):
    for name in PACKAGES:
        package = tmp_path / "root/packages/all/src" / name
        package.mkdir(parents=True)
        (package / "__init__.py").write_text("value = 1\nother = 1\n")
    hook = tmp_path / "root/packages/all/src/synk_theano_compat/_hook.py"
    hook.write_text("def install(): pass\n")
    (tmp_path / "root/packages/all/tests").mkdir()
    (tmp_path / "root/packages/all/tests/test_value.py").write_text(TEST)
    subprocess.run(["git", "init", "--quiet", tmp_path / "root"], check=True)
    (tmp_path / "t").mkdir()
    program = PROGRAM.format(scripts=str(SCRIPTS), began=str(tmp_path / "began"))

    def begin(*arguments: str) -> Program:
        changes = {"TMPDIR": str(tmp_path / "t")}
        return Program(program, "--root", tmp_path / "root", *arguments, environment=changes)

    return begin


def test_verdicts(start, tmp_path):
    file = tmp_path / "results.json"
    with start("--jobs", "2", "--limit-s", "15", "--json", str(file)) as program:
        status, said, _ = program.finish()
    assert status == 1, said
    assert "fault gone no longer applies: packages/all/src/synk_shm/__init__.py has not" in said
    found = {row["name"]: row for row in json.loads(file.read_text())}
    verdicts = {name: row["verdict"] for name, row in found.items()}
    assert verdicts == {"seen": "caught", "sleeps": "hang", "unseen": "MISSED", "gone": "error"}
    assert found["seen"]["by"] == "packages/all/tests/test_value.py::test_value"
    assert "4 in all, 2 not as they should be" in said
    assert not list((tmp_path / "t").iterdir())


def test_without_a_fault_all_is_well(start):
    with start("--check") as program:
        status, said, _ = program.finish()
    assert status == 0, said
    assert "1 in all, 0 not as they should be" in said


def test_sigterm_ends_all_that_it_started(start, tmp_path):
    with start("--only", "sleeps", "seen", "unseen") as program:  # which are still to come
        deadline = time.monotonic() + LIMIT_S
        while not (tmp_path / "began").exists() and time.monotonic() < deadline:
            time.sleep(0.05)
        program.send_signal(signal.SIGTERM)
        assert program.finish().status == 128 + signal.SIGTERM
    assert not list((tmp_path / "t").iterdir())
