"""``synkhronos run``: without a launcher, with `--hosts`, and on the ranks of a launcher."""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path

import numpy as np
import pytest
from _cli import SETTINGS, command, invoke
from _programs import zygote

import synk_testing
from synkhronos_cli import _doctor

LIMIT_S = 120
# Of jobs in which this test may itself be.
NO_LAUNCHER = dict.fromkeys(("SLURM_JOB_ID", "PMI_SIZE", "OMPI_COMM_WORLD_SIZE"))


@pytest.fixture
def script(tmp_path):
    def write(text, name="script.py"):
        path = tmp_path / name
        path.write_text(text, encoding="utf-8")
        return path

    return write


SHOW = """
import os, sys, beside
import __main__
print(sys.argv, __name__, __file__, sys.path[0], __main__.beside is beside)
sys.exit(3)
"""


@pytest.mark.parametrize("as_module", [False, True])
def test_a_script_and_a_module_run_as_python_runs_them(script, tmp_path, as_module):
    path = script(SHOW, "module.py")
    script("", "beside.py")
    words = [*(["-m", "module"] if as_module else [path]), "--rate", "0.1", "--help", "-m", "x"]
    done = command("run", *words, folder=tmp_path, **NO_LAUNCHER)
    plain = command(*words, program=(), folder=tmp_path)
    assert (done.returncode, done.stdout) == (plain.returncode, plain.stdout) == (3, plain.stdout)
    assert plain.stdout.startswith(f"['{path}', '--rate', '0.1', '--help', '-m', 'x'] __main__ ")
    assert done.stderr == ""


HERE = """
import sys
from synkhronos._running import run_script
sys.exit(run_script(sys.argv[1], sys.argv[2:]))
"""


def run_here(path, folder=None):
    """Run a script as the command does, in a process that has imported everything."""
    return zygote().run(HERE, path, folder=folder, environment=NO_LAUNCHER)


def test_an_error_is_shown_without_frames_of_the_command(script):
    path = script("def f():\n    raise ValueError('mine')\n\n\nf()\n")
    done = run_here(path)
    assert (done.status, done.out) == (1, "")
    shown = [line for line in done.err.splitlines() if line.startswith("  File")]
    assert shown == [f'  File "{path}", line 5, in <module>', f'  File "{path}", line 2, in f']
    assert done.err.endswith("ValueError: mine\n")


def test_a_script_ends_as_it_does_in_python(script):
    for text, status, words in (
        ("import sys; sys.exit('my last words')\n", 1, "my last words\n"),
        ("def f(:\n", 1, "SyntaxError"),
    ):
        done = run_here(script(text))
        assert (done.status, done.out) == (status, "")
        assert words in done.err
        assert "_running" not in done.err


def test_a_script_may_change_the_folder_and_find_its_own_file(tmp_path):
    (tmp_path / "real").mkdir()
    (tmp_path / "real" / "beside.py").write_text("name = 'found'\n", encoding="utf-8")
    path = tmp_path / "real" / "script.py"
    path.write_text(
        "import os, sys, beside\nos.chdir('/')\nprint(open(__file__).readline(), beside.name)\n",
        encoding="utf-8",
    )
    (tmp_path / "linked.py").symlink_to(path)
    done = run_here("linked.py", tmp_path)
    assert (done.status, done.out) == (0, "import os, sys, beside\n found\n"), done.err


def test_workers_of_one_machine_are_started_without_a_launcher(script):
    path = script(
        "import numpy as np, theano.tensor as T, synkhronos as synk\n"
        "print(synk.fork(2, use_gpu=False, verbose=False))\n"
        "x = T.vector('x')\n"
        "print(synk.function([x], (x.sum(), 'sum'))(np.arange(5.0)))\n"
    )
    done = run_here(path)
    assert (done.status, done.out) == (0, "2\n10.0\n"), done.err


HYDRA = "HYDRA build details:\n    Version:                                 5.0.2"
OPEN_MPI = "mpiexec (Open MPI) 5.0.11"
RUNNING = [sys.executable, "-m", "synkhronos._running"]


@pytest.fixture
def launchers(tmp_path, monkeypatch):
    """Return what puts a stand-in on PATH, where nothing else is: it prints its arguments."""
    folder = tmp_path / "bin"
    folder.mkdir()
    monkeypatch.setenv("PATH", str(folder))

    def put(name, version="", then="printf '%s\\n' \"$@\"; exit 5"):
        path = folder / name
        said = f"if [ \"$1\" = --version ]; then echo '{version}'; exit 0; fi\n"
        path.write_text(f"#!/bin/sh\n{said if version else ''}{then}\n", encoding="utf-8")
        path.chmod(0o755)
        return str(path)

    return put


def started(hosts, *arguments, **changes):
    """Run on hosts; return the words that the launcher was given, which ended with status 5."""
    environment = {**NO_LAUNCHER, "PATH": os.environ["PATH"], **changes}
    done = command("run", "--hosts", hosts, *arguments, **environment)
    assert done.returncode == 5, done.stderr
    words = done.stdout.splitlines()
    told = done.stderr.splitlines()
    assert told[-1].startswith("+ ")
    assert told[-1].endswith(" ".join(words)), "it says what it runs"
    return words


def test_hosts_by_each_launcher(launchers):
    launchers("mpiexec", HYDRA)
    launchers("srun")
    of_mpich = ["-hosts", "a:4,b.site:2,c:1", "-n", "7"]
    of_srun = ["--kill-on-bad-exit=1", "--nodelist=a,b", "--ntasks-per-node=4", "-n", "8"]
    of_open_mpi = ["--host", "a:4,b:4", "-n", "8", "--with-ft", "ulfm", "--bind-to", "none"]
    script = ["train.py", "--rate", "0.1"]
    assert started("a:4,b.site:2,c", *script) == [*of_mpich, *RUNNING, *script]
    assert started("a:4,b:4", *script, SLURM_JOB_ID="77") == [*of_srun, *RUNNING, *script]
    launchers("mpiexec", OPEN_MPI)
    assert started("a:4,b:4", "-m", "train", "x") == [*of_open_mpi, *RUNNING, "-m", "train", "x"]


def test_hosts_that_no_launcher_can_use(launchers, monkeypatch, tmp_path):
    for name in NO_LAUNCHER:
        monkeypatch.delenv(name, raising=False)

    def refused(hosts):
        done = invoke("run", "--hosts", hosts, "train.py")
        assert (done.exit_code, done.stdout) == (2, "")
        assert done.stderr.count("\n") == 1
        return done.stderr

    assert "there is no mpiexec on PATH; pip install mpich" in refused("a:2")
    path = launchers("mpiexec", "launcher of nobody, version 7")
    assert f"{path} is neither MPICH's nor Open MPI's (launcher of nobody" in refused("a:2")
    monkeypatch.setattr(_doctor, "VERSION_TIMEOUT_S", 1.0)
    pid = tmp_path / "pid"
    launchers("mpiexec", then=f"/bin/sleep 600 & echo $! >{pid}; wait")
    assert "(--version: no answer in 1 s)" in refused("a:2")
    synk_testing.wait_gone([int(pid.read_text())])
    launchers("srun")
    monkeypatch.setenv("SLURM_JOB_ID", "77")
    assert "each host needs as many ranks as the others" in refused("a:2,b:1")


needs_mpi = pytest.mark.skipif(bool(synk_testing.why_no_mpi()), reason=synk_testing.why_no_mpi())


def job(*words):
    """Return a program of Python's words that runs on two hosts, as MPICH and the ranks believe."""
    environment = {**SETTINGS, "SYNKHRONOS_N_PARALLEL": None}
    how = {"environment": environment, "limit_s": LIMIT_S, "stacks": False}
    return synk_testing.mpi_job([*map(str, words)], size=2, **how)


def ended(*words):
    with job(*words) as program:
        return program.finish()


RUN = ("-m", "synkhronos_cli", "run")


@needs_mpi
def test_a_script_that_never_forks_runs_once(script):
    done = ended(*RUN, script("import sys\nprint(sys.argv)\nsys.exit(3)\n"), "x")
    assert done.status == 3, done.err
    assert len(done.out.splitlines()) == 1
    assert "'x']" in done.out


@needs_mpi
@pytest.mark.parametrize("forks", [True, pytest.param(False, marks=pytest.mark.nightly)])
def test_an_error_of_the_script_ends_the_job(script, forks):
    fork = "import synkhronos as synk\nsynk.fork(verbose=False)\n" if forks else ""
    path = script(f"{fork}raise ValueError('mine')\n")
    done = ended(*RUN, path)
    assert done.status == 1, done.err
    assert done.err.count("ValueError: mine") == 1
    shown = re.findall(r'^  File "(.*)", line', done.err, re.MULTILINE)
    assert shown == [str(path)]


TWICE = """
import sys
# At once: lines of two ranks would mix.
sys.stdout.write(f"above {sys.argv[1:]}\\n")
sys.stdout.flush()
import numpy as np
import theano.tensor as T
import synkhronos as synk

for number in range(2):
    ranks = synk.fork(use_gpu=False, verbose=False)
    x = T.matrix("x")
    f = synk.function([x], [x.mean(), (x.sum(axis=1), "gather")])
    rows = synk.data(np.arange(21.0).reshape(7, 3))
    mean, sums = f(rows)
    print(ranks, mean, *sums, flush=True)
    if number:
        input()
    synk.close()
print("below")
"""
ROWS = np.arange(21.0).reshape(7, 3)
RESULT = " ".join(map(str, [2, ROWS.mean(), *ROWS.sum(axis=1)]))


def segments(pids):
    maps = "".join(Path(f"/proc/{pid}/maps").read_text() for pid in pids)
    return set(re.findall(r"/dev/shm/synk\S+", maps))


@needs_mpi
def test_a_script_that_forks_twice_runs_on_rank_0_alone(script):
    with job(*RUN, script(TWICE), "x") as program:
        assert [program.line() for _ in range(3)] == ["above ['x']", RESULT, RESULT]
        used = segments(program.members())
        done = program.finish("")
    assert (done.status, done.out) == (0, "below\n"), done.err
    assert len(used) > 1, "the master's array and its copy on the other host"
    assert not [name for name in used if os.path.exists(name)]
