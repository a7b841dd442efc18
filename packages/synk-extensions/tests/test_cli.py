"""The command line: what it says, with which status, and what a mistake on it gives."""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
from types import SimpleNamespace

import pytest
from _cli import command, invoke

import synk_shm
import synk_testing
from synkhronos_cli import _programs, _terminal

COMMANDS = ("doctor", "demo", "run", "clean")
NO_HOSTS = ("a:0", "a:b", "a:4,,b", "-x:2", "a;b", "a:-1")


def test_help_names_every_command():
    done = invoke("--help")
    assert done.exit_code == 0
    for name in COMMANDS:
        assert f"\n  {name} " in done.stdout
        help_ = invoke(name, "-h")
        assert help_.exit_code == 0
        assert f"\n  synkhronos {name}" in help_.stdout, "an example"
    assert "synkhronos doctor  " in done.stdout, "an example"
    assert invoke("--version").stdout.startswith("synkhronos")


def test_closed_streams():
    code = "import os, sys; os.close(1); os.close(2); os.execv(sys.executable, sys.argv[1:])"
    words = [sys.executable, "-c", code, sys.executable, "-m", "synkhronos_cli", "demo"]
    assert subprocess.run(words, capture_output=True, timeout=60).returncode == 0


def test_in_a_pipe_no_path_is_broken_into_lines(monkeypatch, capsys):
    path = "/folder/" + "cpython-311/" * 30
    monkeypatch.delenv("COLUMNS", raising=False)
    _terminal.console().print(path)
    assert capsys.readouterr().out == f"{path}\n"
    monkeypatch.setenv("COLUMNS", "90")
    assert _terminal.console().width == 90
    assert [*map(_terminal.in_units, (1536, 1010 << 20))] == ["1.5 KiB", "1010 MiB"]


def test_a_mistake_is_reported_in_one_line():
    for words, complaint in (
        ("demo nothing", "no demo 'nothing'; there are intro, shared"),
        ("demo intro --epochs 3", "demo intro has no option --epochs"),
        ("demo intro --devices cuda7", "--devices cuda7"),
        ("demo digits --devices cuda7", "--devices cuda7: demo digits runs on cores"),
        ("demo intro --processes 0", "'--processes'"),
        ("demo intro --processes two", "'--processes'"),
        ("doctor --yes", "--yes needs --fix"),
        ("clean --nothing", "--nothing"),
        ("cure", "'cure'"),
        ("train.py", "got train.py, expected a command: synkhronos run train.py"),
        ("run", "no SCRIPT: synkhronos run train.py"),
        ("run no_such.py", "no such script: no_such.py"),
        ("run .", ". is a folder"),
        ("run --hosts a:2", "no SCRIPT"),
        *((f"run --hosts {hosts} train.py", f"--hosts {hosts}: got '") for hosts in NO_HOSTS),
    ):
        done = invoke(*words.split())
        assert (done.exit_code, done.stdout) == (2, "")
        last = done.stderr.splitlines()[-1]
        assert complaint in last
        assert last.startswith(("synkhronos: ", "Error: "))
        assert "Traceback" not in done.stderr


def test_the_start_imports_nothing_heavy():
    code = (
        "import sys\n"
        "from synkhronos_cli import _app, _doctor, _programs\n"
        "heavy = {'theano', 'numpy', 'synk_core', 'synk_shm', 'synk_comm', 'synkhronos', 'zmq'}\n"
        "assert not heavy & set(sys.modules), heavy & set(sys.modules)\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


def test_demos_are_listed_and_there():
    done = invoke("demo")
    assert done.exit_code == 0
    names = ["intro", "shared", "data", "batch", "digits", "mnist", "resnet", "pymc"]
    assert list(_programs.DEMOS) == names
    for name, one in _programs.DEMOS.items():
        assert f"synkhronos demo {name}" in done.stdout
        assert (_programs.FOLDER / one.program).is_file()
    assert str(_programs.FOLDER) in done.stdout
    source = (_programs.FOLDER / "intro.py").read_text(encoding="utf-8")
    assert invoke("demo", "intro", "--source").stdout == source


def test_a_demo_gets_its_options(monkeypatch):
    started = []
    monkeypatch.setattr(_programs, "_replace", lambda *given: started.append(given))
    monkeypatch.setattr(_programs.importlib.util, "find_spec", lambda name: True)
    three, cores = {"SYNKHRONOS_N_PARALLEL": "3"}, {"SYNKHRONOS_USE_GPU": "0"}
    for words, program, options, environment in (
        ("intro --processes 3 --devices cpu", "intro.py", "", {**three, **cores}),
        ("data --processes 3", "demos/demo_2.py", "", three),
        ("batch --devices cuda0", "demos/demo_4.py", "--devices cuda0", {}),
        ("digits --devices cpu --epochs 2", "train_digits.py", "--epochs 2", cores),
        ("resnet", "resnet/train_synk.py", "--tiny", {}),
        ("resnet --full", "resnet/train_synk.py", "", {}),
        ("mnist --model cnn", "lasagne_mnist/train_cpu_data.py", "--model cnn", {}),
    ):
        assert invoke("demo", *words.split()).exit_code == 0
        command_ = [sys.executable, str(_programs.FOLDER / program), *options.split()]
        # In a session of a user the program takes this one's place with the first.
        assert started[0] == (command_, environment)
        started.clear()


def test_a_demo_that_lacks_a_package_says_so(monkeypatch):
    for name, absent, complaint in (
        ("mnist", ["lasagne"], "lasagne: pip install 'synkhronos[examples]'"),
        ("mnist", ["lasagne", "theano"], "Theano, on Python 3.9 to 3.11"),
        ("pymc", ["pymc"], "PyMC, on Python 3.12 or newer: pip install 'synkhronos[pymc]'"),
    ):
        there = lambda module, absent=absent: module not in absent or None  # noqa: E731
        monkeypatch.setattr(_programs.importlib.util, "find_spec", there)
        done = invoke("demo", name)
        assert done.exit_code == 1
        assert done.stderr == f"synkhronos: demo {name} needs {complaint}\n"
        (line,) = (one for one in invoke("demo").stdout.splitlines() if f"demo {name} " in one)
        assert line.rstrip().endswith(")")
        assert all(module in line for module in absent)


def test_a_demo_runs(tmp_path):
    """Its lines: test_examples.py of `integration`."""
    done = command("demo", "intro", "--processes", "2", "--devices", "cpu", folder=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.endswith("\nAll assertions passed.\n")


def test_the_status_is_there_where_ended_children_are_ignored(tmp_path):
    """As by whoever started this: then the kernel keeps no status, and subprocess says 0."""
    script = tmp_path / "script.py"
    script.write_text("raise SystemExit(7)\n")
    ignore = "import os, signal, sys; signal.signal(signal.SIGCHLD, signal.SIG_IGN)\n"
    again = ("-c", ignore + "os.execv(sys.executable, [sys.executable, *sys.argv[1:]])")
    words = ("-m", "synkhronos_cli", "run", script)
    assert command(*words, program=again, folder=tmp_path).returncode == 7


STARTS = """
import sys
from synkhronos_cli import _app, _probe

CODE = '''
import os, subprocess, sys, time
fd = os.open(sys.argv[-1], os.O_WRONLY)
if "alone" not in sys.argv:
    subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"], pass_fds=[fd])
os.write(fd, b"x")
time.sleep(600)
'''
_app._app = lambda prog_name: _probe.ask_python(["-c", CODE, *sys.argv[1:]], 600)
_app.main()
"""


HANG_UP = pytest.param(signal.SIGHUP, marks=pytest.mark.nightly)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL, HANG_UP])
def test_processes_of_a_command_end_with_it(tmp_path, number):
    """SIGKILL leaves what the command's child has started."""
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    reader = os.open(fifo, os.O_RDONLY | os.O_NONBLOCK)
    alone = ["alone"] if number == signal.SIGKILL else []
    with synk_testing.Program(["-c", STARTS, *alone, str(fifo)]) as program:
        assert select.select([reader], [], [], 60)[0]
        assert os.read(reader, 9) == b"x"
        program.send_signal(number)
        program.wait()
        assert select.select([reader], [], [], 60)[0]
        assert os.read(reader, 9) == b""
    os.close(reader)


def test_stale_segments_are_listed_removed_or_kept(monkeypatch):
    """Of segments made up: another program may sweep real ones at any moment."""
    one = SimpleNamespace(name="weights", nbytes=3 << 20, alive=False, mine=False)
    stale, alive = [one], SimpleNamespace(name="busy", nbytes=1, alive=True, mine=False)
    removed = []
    monkeypatch.setattr(synk_shm, "list", lambda: [*stale, alive])
    monkeypatch.setattr(synk_shm, "cleanup", lambda: removed.append(1))
    done = invoke("clean", "--dry-run")
    assert (done.exit_code, done.stdout) == (0, "would remove segment weights, 3 MiB\n")
    assert removed == []
    done = invoke("clean")
    assert (done.exit_code, done.stdout) == (1, "not removed: segment weights, 3 MiB\n")
    monkeypatch.setattr(synk_shm, "cleanup", stale.clear)
    done = invoke("clean", "--json")
    expected = [{"name": "weights", "nbytes": 3 << 20, "removed": True}]
    assert json.loads(done.stdout) == {"dry_run": False, "found": expected}
    assert (done.exit_code, invoke("clean").stdout) == (0, "Nothing is stale.\n")


def test_without_numpy_it_says_so(monkeypatch):
    monkeypatch.setitem(sys.modules, "synk_shm", None)
    done = invoke("clean")
    assert (done.exit_code, done.stdout) == (1, "")
    assert done.stderr.startswith("synkhronos: clean needs synk-shm, which cannot be imported: ")
