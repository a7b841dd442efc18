"""The command line: what it says, with which status, and what a mistake on it gives."""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
from importlib.metadata import version

import pytest
from _cli import command, invoke

import synk_testing
from synk_testing.engine import IS_THEANO
from synkhronos_cli import _terminal
from synkhronos_cli._programs import demo

COMMANDS = ("doctor", "demo", "run", "clean")


# ---- all commands ------------------------------------------------------------------------------


def test_help_names_every_command():
    done = invoke("--help")
    assert done.exit_code == 0
    for name in COMMANDS:
        assert f"\n  {name} " in done.stdout
    assert "synkhronos doctor  " in done.stdout, "an example"


def test_a_shell_completes_the_commands():
    typed = {"COMP_WORDS": "synkhronos do", "COMP_CWORD": "1"}
    done = command(_SYNKHRONOS_COMPLETE="bash_complete", **typed)
    assert (done.returncode, done.stdout, done.stderr) == (0, "plain,doctor\n", "")


def test_in_a_pipe_no_path_is_broken_into_lines(monkeypatch, capsys):
    path = "/folder/" + "cpython-311/" * 30
    monkeypatch.delenv("COLUMNS", raising=False)
    _terminal.console().print(path)
    assert capsys.readouterr().out == f"{path}\n"
    monkeypatch.setenv("COLUMNS", "90")
    assert _terminal.console().width == 90


@pytest.mark.parametrize("name", COMMANDS)
def test_help_of_a_command_has_an_example(name):
    done = invoke(name, "-h")
    assert done.exit_code == 0
    assert f"\n  synkhronos {name}" in done.stdout


@pytest.mark.parametrize(
    "arguments, complaint",
    [
        (["demo", "nothing"], "no demo 'nothing'; there are intro, shared"),
        (["demo", "intro", "--epochs", "3"], "demo intro has no option --epochs"),
        (["demo", "intro", "--devices", "cuda7"], "--devices cuda7"),
        (["demo", "digits", "--devices", "cuda7"], "--devices cuda7: demo digits runs on cores"),
        (["demo", "intro", "--processes", "0"], "'--processes'"),
        (["demo", "intro", "--processes", "two"], "'--processes'"),
        (["doctor", "--yes"], "--yes needs --fix"),
        (["clean", "--nothing"], "--nothing"),
        (["cure"], "'cure'"),
        (["flight", "none"], "no such record: none; synkhronos flight --list shows all"),
        (["train.py"], "got train.py, expected a command: synkhronos run train.py"),
    ],
)
def test_a_mistake_is_told_in_one_line(arguments, complaint):
    done = invoke(*arguments)
    assert done.exit_code == 2
    assert done.stdout == ""
    last = done.stderr.splitlines()[-1]
    assert complaint in last
    assert last.startswith(("synkhronos: ", "Error: "))
    assert "Traceback" not in done.stderr


def test_the_start_imports_nothing_heavy():
    code = (
        "import sys\n"
        "from synkhronos_cli import _app\n"
        "from synkhronos_cli._clean import command\n"
        "from synkhronos_cli._doctor import examine, fix\n"
        "from synkhronos_cli._flight import show\n"
        "from synkhronos_cli._programs import demo, run\n"
        "heavy = {'theano', 'numpy', 'synk_core', 'synk_shm', 'synk_comm', 'synkhronos', 'zmq'}\n"
        "assert not heavy & set(sys.modules), heavy & set(sys.modules)\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


# ---- demo --------------------------------------------------------------------------------------


def test_demos_are_listed_and_there():
    done = invoke("demo")
    assert done.exit_code == 0
    assert list(demo.DEMOS) == [
        *("intro", "shared", "gpu", "data", "batch", "digits", "mnist", "resnet", "pymc")
    ]
    for name, one in demo.DEMOS.items():
        assert f"synkhronos demo {name}" in done.stdout
        assert (demo.FOLDER / one.program).is_file()
    assert str(demo.FOLDER) in done.stdout


@pytest.mark.parametrize(
    "arguments, program, options, environment",
    [
        (
            ["intro", "--processes", "3", "--devices", "cpu"],
            "intro.py",
            [],
            {"SYNKHRONOS_N_PARALLEL": "3", "SYNKHRONOS_USE_GPU": "0"},
        ),
        (["data", "--processes", "3"], "demos/demo_2.py", ["--processes", "3"], {}),
        (["batch", "--devices", "cuda0"], "demos/demo_4.py", ["--devices", "cuda0"], {}),
        (["digits", "--processes", "3"], "train_digits.py", ["--processes", "3"], {}),
        (["digits", "--devices", "cpu", "--epochs", "2"], "train_digits.py", ["--epochs", "2"], {}),
        (["resnet"], "resnet/train_synk.py", ["--tiny"], {}),
        (["resnet", "--full"], "resnet/train_synk.py", [], {}),
        (
            ["mnist", "--model", "cnn"],
            "lasagne_mnist/train_cpu_data.py",
            ["--model", "cnn"],
            {},
        ),
    ],
)
def test_a_demo_gets_its_options(monkeypatch, arguments, program, options, environment):
    started = []
    monkeypatch.setattr(demo, "replace", lambda *given: started.append(given))
    monkeypatch.setattr(demo.importlib.util, "find_spec", lambda name: True)
    assert invoke("demo", *arguments).exit_code == 0
    # In a session of a user the program takes this one's place with the first.
    assert started[0] == ([str(demo.FOLDER / program), *options], environment)


@pytest.mark.parametrize(
    "name, absent, complaint",
    [
        ("mnist", ["lasagne"], "lasagne: pip install 'synkhronos[examples]'"),
        ("mnist", ["lasagne", "theano"], "Theano, on Python 3.9 to 3.11"),
        ("gpu", ["theano"], "Theano, on Python 3.9 to 3.11"),
        ("pymc", ["pymc"], "PyMC, on Python 3.12 or newer: pip install 'synkhronos[pymc]'"),
    ],
)
def test_a_demo_that_lacks_a_package_says_so(monkeypatch, name, absent, complaint):
    monkeypatch.setattr(demo.importlib.util, "find_spec", lambda name: name not in absent or None)
    done = invoke("demo", name)
    assert done.exit_code == 1
    assert done.stderr == f"synkhronos: demo {name} needs {complaint}\n"
    (line,) = (line for line in invoke("demo").stdout.splitlines() if f"demo {name} " in line)
    assert line.rstrip().endswith(")")
    assert all(module in line for module in absent)


def test_the_source_of_a_demo_is_its_program():
    done = invoke("demo", "intro", "--source")
    assert done.stdout == (demo.FOLDER / "intro.py").read_text(encoding="utf-8")


@pytest.mark.parametrize(
    "name, last",
    [
        ("intro", "All assertions passed."),
        # As a program, the suite "integration" runs it by day.
        pytest.param("shared", None, marks=pytest.mark.nightly),
    ],
)
def test_a_demo_prints_what_is_documented(name, last, tmp_path):
    done = command("demo", name, "--processes", "2", "--devices", "cpu", folder=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    expected = (demo.FOLDER / demo.DEMOS[name].program).with_suffix(".txt").read_text()
    # After the lines about this machine's cores and seconds.
    assert done.stdout.splitlines()[4:] == expected.splitlines()[4:]
    assert last is None or done.stdout.splitlines()[-1] == last
    assert list(tmp_path.iterdir()) == []


def test_the_status_of_a_demo_is_its_own():
    done = command("demo", "data", "--no-such-option")
    assert done.returncode == 2
    assert "demo_2.py: error: unrecognized arguments: --no-such-option" in done.stderr


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
from synkhronos_cli._doctor import fix

CODE = '''
import os, subprocess, sys, time
fd = os.open(sys.argv[-1], os.O_WRONLY)
if "alone" not in sys.argv:
    subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"], pass_fds=[fd])
os.write(fd, b"x")
time.sleep(600)
'''
words = ["-c", CODE, *sys.argv[2:]]
_app._app = lambda prog_name: {
    "probe": lambda: _probe._run(words, 600, str),
    "fix": lambda: fix._run([sys.executable, *words]),
}[sys.argv[1]]()
_app.main()
"""


@pytest.mark.parametrize("how", ["probe", "fix"])
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP, signal.SIGKILL], ids=str)
def test_what_a_command_has_started_ends_with_it(tmp_path, how, number):
    """Also what that has started, but after SIGKILL."""
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    reader = os.open(fifo, os.O_RDONLY | os.O_NONBLOCK)
    alone = ["alone"] if number == signal.SIGKILL else []
    with synk_testing.Program(["-c", STARTS, how, *alone, str(fifo)]) as program:
        assert select.select([reader], [], [], 60)[0]
        assert os.read(reader, 9) == b"x"
        program.send_signal(number)
        program.wait()
        # It ends when nobody has the other end any more.
        assert select.select([reader], [], [], 60)[0]
        assert os.read(reader, 9) == b""
    os.close(reader)


# ---- with PyTensor -----------------------------------------------------------------------------


@pytest.mark.skipif(IS_THEANO, reason="PyTensor only")
def test_the_doctor_examines_pytensor_and_nothing_of_theanos():
    done = command("doctor", "--json")
    report = json.loads(done.stdout)
    assert (done.returncode, done.stderr) == (0, "")
    found = {item["name"]: item for item in report["sections"]["Software"]}
    assert found["PyTensor"]["found"].startswith(version("pytensor"))
    assert not {"Theano", "BLAS"} & set(found)
    assert found["Lasagne"]["state"] == "good"
    assert "its extra installs nothing here" in found["Lasagne"]["found"]
    (gpus,) = report["sections"]["GPUs"]
    assert gpus["found"].startswith("not looked for: PyTensor has no back end for them")
