"""`scripts/run_tests.py` on small suites: what it runs, what it says, and how it ends."""

from __future__ import annotations

import json
import shutil
import signal
import sys
import time
from pathlib import Path
from typing import Any, Callable

import pytest
from _checkout import ROOT, ran

from synk_testing import Done, Program

SUITES = {
    "good": ("import pytest\n\ndef test_right(): pass\n\ndef test_no_gpu(): pytest.skip('no GPU')"),
    "bad": "def test_wrong():\n    assert 6 * 9 == 42, 'the question'",
    "broken": "import nonsense_that_is_not_there",
    "dead": "import os\n\ndef test_dies():\n    os._exit(3)",
    "strict": (
        "import os, pathlib, pytest, time\n\n"
        "@pytest.mark.alone\n"
        "def test_quiet():\n    assert not list(pathlib.Path(os.environ['MARKS']).iterdir())\n\n"
        "def test_loud():\n    pass"
    ),
    "slow": (
        "import os, pathlib, time\n\n"
        "def test_long():\n"
        "    mark = pathlib.Path(os.environ['MARKS'], 'slow')\n"
        "    mark.touch()\n"
        "    time.sleep(float(os.environ['SLEEP']))\n"
        "    mark.unlink()"
    ),
    "busy": (
        "import subprocess, sys\n\ndef test_it():\n"
        "    code = 'import time\\nwhile time.process_time() < 6: pass'\n"
        "    subprocess.run([sys.executable, '-c', code], check=True)"
    ),
}
PROGRAM = """
import sys
from pathlib import Path
sys.path.insert(0, {scripts!r})
import run_tests
folder = Path({folder!r})
run_tests.LOGS = run_tests.ENDURANCE = folder / "logs"
run_tests.HAS_THEANO, run_tests.BUDGETS = {has_theano}, folder / "budgets.json"
run_tests.SUITES = [
    run_tests.Suite(name, (str(folder / name),), needs_theano=name != "good") for name in {names!r}
]
sys.exit(run_tests.main(sys.argv[1:]))
"""


BUDGETS = {"tests": 100, "cpu_s": {"day": {}, "night": {}}}
Start = Callable[..., Program]


@pytest.fixture
def start(tmp_path: Path) -> Start:
    def make(
        *names: str,
        arguments: tuple[str, ...] = (),
        sleep: str = "0.5",
        has_theano: bool = True,
        budgets: dict[str, Any] = BUDGETS,
        **options: Any,
    ):
        for name in names:
            (tmp_path / name).mkdir()
            (tmp_path / name / "test_it.py").write_text(SUITES[name] + "\n")
        (tmp_path / "pytest.ini").write_text("[pytest]\nmarkers = alone\n")
        (tmp_path / "conftest.py").symlink_to(ROOT / "conftest.py")
        (tmp_path / "marks").mkdir()
        (tmp_path / "budgets.json").write_text(json.dumps(budgets))
        values = {"scripts": str(ROOT / "scripts"), "folder": str(tmp_path), "names": names}
        values["has_theano"] = has_theano
        changes = {"MARKS": str(tmp_path / "marks"), "SLEEP": sleep}
        return Program(PROGRAM.format(**values), *arguments, environment=changes, **options)

    return make


def run(start: Start, *names: str, **how: Any) -> Done:
    with start(*names, **how) as program:
        return program.finish()


def test_all_suites_run_and_failures_are_shown_whole_at_the_end(start: Start) -> None:
    status, said, _ = run(start, "good", "bad", "broken", "dead")
    assert status == 1, said
    assert "4 suites" in said
    assert "1 passed, 1 skipped" in said
    whole = said.index("===== bad")
    assert said.index("assert (6 * 9) == 42", whole)
    assert "nonsense_that_is_not_there" in said
    assert "ENDED WITH STATUS 3" in said
    alone = said.index("===== to run what failed alone")
    assert said.index("-m pytest ", alone) < said.index("test_wrong", alone)
    assert "     1  no GPU" in said
    assert said.splitlines()[-1] == "1 passed, 3 failed, 1 skipped"


def test_a_test_marked_alone_waits_for_all_others(start: Start) -> None:
    status, said, _ = run(start, "strict", "slow", arguments=("--jobs", "2"))
    assert status == 0, said
    assert "3 suites, 2 at a time" in said
    assert said.splitlines()[-1] == "3 passed, 0 failed, 0 skipped"


def test_more_tests_than_the_budget_are_a_failure(start: Start) -> None:
    budgets = {**BUDGETS, "tests": 1}
    status, said, _ = run(start, "good", budgets=budgets)
    assert status == 1, said
    assert "FAILED: 2 tests by day, scripts/budgets.json allows 1" in said


def test_processor_time_is_noted_and_growth_is_a_warning(start: Start, tmp_path: Path) -> None:
    budgets = {**BUDGETS, "cpu_s": {"day": {"busy": 0.1, "good": 9}, "night": {"good": 1}}}
    status, said, _ = run(start, "busy", "good", arguments=("--table",), budgets=budgets)
    assert status == 0, said
    warning = said.index("===== WARNING: slower than in scripts/budgets.json")
    assert " CPU s, it was 0\n" in said[warning:]
    noted = json.loads((tmp_path / "budgets.json").read_text())["cpu_s"]
    assert 6 < noted["day"]["busy"] < 60, "its child's time is counted, too"
    assert 0 < noted["day"]["good"] < 6
    assert noted["night"] == {"good": 1}


def test_without_theano_suites_that_need_it_are_left_out_and_named(start: Start) -> None:
    status, said, _ = run(start, "good", "bad", "dead", has_theano=False)
    assert status == 0, said
    assert "===== left out, because they need Theano, and that Python 3.9 to 3.11" in said
    assert "\n  bad, dead\n" in said
    assert said.splitlines()[-1] == "1 passed, 0 failed, 1 skipped"


@pytest.mark.parametrize(
    ("asked", "answer"),
    [
        ("bad", "bad: needs Theano, and that Python 3.9 to 3.11\n"),
        ("nowhere", "no such suite: nowhere; known are bad, good\n"),
    ],
)
def test_a_suite_that_cannot_run_is_refused(start: Start, asked: str, answer: str) -> None:
    status, said, error = run(start, "good", "bad", arguments=(asked,), has_theano=False)
    assert (status, said, error) == (1, "", answer)


@pytest.mark.parametrize(
    "number",
    [signal.SIGINT, signal.SIGTERM, pytest.param(signal.SIGHUP, marks=pytest.mark.nightly)],
)
def test_a_signal_ends_all_that_it_started(start: Start, tmp_path, number) -> None:
    with start("slow", sleep="100") as program:
        deadline = time.monotonic() + 60
        while not (tmp_path / "marks" / "slow").exists():
            assert program.status is None
            assert time.monotonic() < deadline
            time.sleep(0.02)
        program.send_signal(number)
        # `Program` fails if a process of it is left.
        assert program.finish().status == 128 + number


IGNORED = ["SIGHUP", "SIGINT", "SIGQUIT"]  # by nohup, and by a shell for what it starts with `&`

STRUCK = """
import os, runpy, signal, subprocess, sys
names = sys.argv[2:]
assert all(signal.getsignal(getattr(signal, name)) is signal.SIG_IGN for name in names)
runpy.run_path(sys.argv[1])
for name in names:
    end = f"import os, signal; os.kill(os.getpid(), signal.{name})"
    command = [sys.executable, "-c", end]
    status = subprocess.run(command, stderr=subprocess.DEVNULL, timeout=60).returncode
    assert status == -getattr(signal, name), (name, status)
os.kill(os.getpid(), signal.SIGHUP)
print("still here")
"""


@pytest.mark.skipif(shutil.which("sh") is None, reason="needs a shell, to have signals ignored")
def test_children_begin_with_the_usual_signals():
    trap = f"trap '' {' '.join(name[3:] for name in IGNORED)}; exec \"$@\""
    program = (sys.executable, "-c", STRUCK, ROOT / "conftest.py", *IGNORED)
    done = ran("sh", "-c", trap, "sh", *program, timeout=200)
    assert done.returncode == 0, done.stderr
    assert done.stdout == "still here\n"
