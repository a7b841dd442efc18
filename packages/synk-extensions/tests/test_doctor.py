"""``synkhronos doctor``: on this machine, on broken ones, and on made-up ones."""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import subprocess
import sys
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import pytest
from _cli import command, invoke

import synk_testing
from synk_testing.engine import theano_only
from synkhronos_cli import _doctor as doctor
from synkhronos_cli import _report
from synkhronos_cli._probe import ask, ask_module
from synkhronos_cli._report import GOOD, MISSING, WARNING, DoctorReport, Item

MACHINE = ["shared memory", "stale segments", "open files", "locked memory", "processes", "cores"]


def states(items: list[Item]) -> dict[str, str]:
    return {item.name: item.state for item in items}


def broken(items: list[Item]) -> list[str]:
    return [item.name for item in items if item.state == MISSING]


def named(items: list[Item], name: str) -> Item:
    return next(item for item in items if item.name == name)


# ---- the command ---------------------------------------------------------------------------------


@theano_only("the report of PyTensor is examined in test_cli.py")
def test_this_machine(tmp_path: Path):
    settings = tmp_path / "theanorc"  # no flags; but where the home may be read-only
    settings.write_text(f"[global]\nbase_compiledir = {tmp_path / 'theano'}\n")
    done = command("doctor", "--json", THEANORC=str(settings))
    report = json.loads(done.stdout)
    assert done.stderr == ""
    assert done.returncode == (0 if report["ok"] else 1)
    found = {item["name"]: item for item in report["sections"]["Software"]}
    assert found["NumPy"]["found"].startswith(f"{version('numpy')}, ")
    assert found["Theano"]["state"] in (GOOD, WARNING)
    assert "GFLOP/s" in found["BLAS"]["found"]
    assert report["flags"]["dnn.conv.algo_fwd"] == {
        "value": "time_on_shape_change",
        "set_by": "synk_theano_compat",
    }
    assert [item["name"] for item in report["sections"]["Machine"]] == MACHINE
    if not list(Path("/dev").glob("nvidia[0-9]*")):
        (item,) = report["sections"]["GPUs"]
        assert item["found"].startswith("none")


def test_version():
    try:
        expected = f"synkhronos {version('synkhronos')}\n"
    except PackageNotFoundError:
        expected = "synkhronos, not installed as a package (a folder on PYTHONPATH)\n"
    assert invoke("--version").stdout == expected


def test_closed_streams():
    code = (
        "import os, sys; os.close(1); os.close(2); "
        "os.execv(sys.executable, [sys.executable, '-m', 'synkhronos_cli', 'demo'])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, timeout=60)
    assert done.returncode == 0


@pytest.mark.parametrize(
    "answer",
    [
        {"versions": [1, 2], "flags": 3, "blas": "x", "compiler": {}},
        {"versions": {"numpy": 1.5, "Theano": 2}, "flags": {"a": 1, "b": {"value": 3}}},
        {"hardware": 5, "driver": "13", "devices": [1]},
        {},
    ],
)
def test_answers_of_no_sense(monkeypatch, capsys, answer: dict):
    """Whatever a probe says, there is a report, and it does not say that all is well."""
    monkeypatch.setattr(doctor, "ask_module", lambda *_: answer)
    monkeypatch.setattr(doctor, "ask", lambda *_: answer)
    report = doctor.examine()
    report.print_table()
    assert "Needed, and missing or broken" in capsys.readouterr().out
    json.dumps(report.as_json())


# ---- --fix ---------------------------------------------------------------------------------------

NUMPY = Item("NumPy", MISSING, "2.1", "pip install 'numpy>=1.23,<1.27'")
COMPILER = Item("C++ compiler", MISSING, "none", "apt install g++ (yum: gcc-c++)")
WELL = Item("NumPy", GOOD, "1.23.5")
INSTALLS = [[sys.executable, "-m", "pip", "install", "numpy>=1.23,<1.27"]]


@pytest.mark.parametrize(
    "items, again, words, answer, runs, status, says",
    [
        ([NUMPY, COMPILER], [WELL, COMPILER], "", "y\n", INSTALLS, 1, "pip install 'numpy>=1.23"),
        ([NUMPY], None, "", "n\n", [], 1, "Apply them?"),
        ([NUMPY], None, "", "", [], 1, "--yes does not ask"),
        ([NUMPY], [WELL], "--yes --json", "", INSTALLS, 0, "$ pip install 'numpy>=1.23"),
        ([COMPILER], None, "--yes", "", [], 1, "nothing to fix without root"),
    ],
    ids=["yes", "no", "no answer", "json", "nothing to do"],
)
def test_fix(monkeypatch, items, again, words, answer, runs, status, says):
    reports = [DoctorReport({"Software": each}) for each in (items, again) if each]
    commands: list[list[str]] = []
    monkeypatch.setattr(doctor, "examine", lambda: reports.pop(0))
    monkeypatch.setattr(_report, "_run", lambda command: commands.append(command) or "")
    done = invoke("doctor", "--fix", *words.split(), input=answer)
    assert (commands, done.exit_code, reports) == (runs, status, [])
    assert says in done.stderr
    if "--json" in words:
        (item,) = json.loads(done.stdout)["sections"]["Software"]
        assert (item["name"], item["needed"]) == ("NumPy", False)
    else:
        assert f"broken: {(again or items)[-1].name}\n" in done.stdout, "what is left"


def test_what_is_done_by_itself():
    for cure, words in (
        ("pip install pyzmq", ["-m", "pip", "install", "pyzmq"]),
        ("python -m synk_theano_compat --install", ["-m", "synk_theano_compat", "--install"]),
        ("synkhronos clean", ["-m", "synkhronos_cli", "clean"]),
        ("apt install g++", []),
        ("export A=/x, or pip install y", []),
        ("python -m synk_theano_compat", []),
        ("sudo pip install x", []),
        ("rm -r /somewhere", []),
    ):
        assert Item("x", MISSING, "", cure).fix == ([sys.executable, *words] if words else [])
        assert Item("x", GOOD, "", cure).fix == []


def test_a_fix_that_fails_is_reported(capfd):
    assert _report._run([sys.executable, "-c", "print('said'); raise SystemExit(3)"]) == "status 3"
    out, err = capfd.readouterr()
    assert (out, err) == ("", "said\n"), "standard output belongs to the report"
    assert "No such file" in _report._run(["/no/such/program"])


# ---- probes --------------------------------------------------------------------------------------


def test_probes():
    answer = ask("print('noise')\nanswer(one=1, two=[2])\nprint('more')", 30)
    assert answer == {"one": 1, "two": [2]}
    for code, problem in (
        ("import os; os.abort()", "died of SIGABRT"),
        ("raise ValueError('no')", "ValueError: no"),
        ("pass", "ended with status 0 and no message"),
        ("raise SystemExit(3)", "ended with status 3 and no message"),
    ):
        assert ask(code, 30) == {"problem": problem}
    assert "No module named" in ask_module(["no_such_module_at_all"], 30)["problem"]


def test_a_probe_that_hangs_is_killed_with_what_it_started(tmp_path: Path):
    pid = tmp_path / "pid"
    code = (
        "import subprocess, sys, time, pathlib\n"
        "p = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)'])\n"
        f"pathlib.Path({str(pid)!r}).write_text(str(p.pid))\n"
        "time.sleep(600)\n"
    )
    assert ask(code, 3) == {"problem": "no answer in 3 s"}
    synk_testing.wait_gone([int(pid.read_text())])


# ---- GPUs ----------------------------------------------------------------------------------------

GPU = {
    "hardware": ["/dev/nvidia0", "/dev/nvidia1"],
    "driver": [13, 0],
    "devices": [{"name": "NVIDIA H200", "memory": 150754820096, "capability": [9, 0]}] * 2,
    "error": "",
    "prepared": {"cuda": "found by its own name", "nvrtc": "/n", "cublas": "/b", "nccl": "/c"},
    "missing": {},
    "libraries": {"cudnn": [{"path": "/lib/libcudnn.so.9", "version": [9], "origin": "x"}]},
    "cudnn": {
        "library": "/lib/libcudnn.so.9",
        "header": "/include/cudnn.h",
        "version": 91400,
        "cuda_headers": ["/include"],
    },
}
PYGPU = {"version": "0.7.6", "path": "/pygpu"}
NO_HEADERS = {**GPU["cudnn"], "cuda_headers": None}
NO_NCCL = {"missing": {"nccl": "not found"}}
ONE = {"devices": GPU["devices"][:1]}


@pytest.fixture
def look(monkeypatch):
    monkeypatch.setattr(doctor, "OF_THEANO", True)

    def looked(changes: dict, pygpu=PYGPU, cudnn_problem="", problem="") -> list[Item]:
        device = {"problem": problem} if problem else {"cudnn_problem": cudnn_problem}
        asked = lambda code, _: device if code == doctor._DEVICE else pygpu  # noqa: E731
        monkeypatch.setattr(doctor, "ask", asked)
        return doctor.examine_gpus({**GPU, **changes}, True)

    return looked


def test_a_machine_with_gpus(look):
    items = look({})
    found = states(items)
    assert found.pop("nccl4py") in (GOOD, WARNING)
    assert set(found.values()) == {GOOD}
    assert "cuda1: NVIDIA H200, 140 GiB, compute capability 9.0" in items[1].found
    assert "RNNBlock" in named(items, "cuDNN").found


@pytest.mark.parametrize(
    "changes, how, name, cure",
    [
        ({"driver": [0, 0]}, {}, "driver", "nvidia-driver"),
        ({"devices": [], "error": "CUDA error 100"}, {}, "GPUs", "CUDA_VISIBLE_DEVICES"),
        (
            {"missing": {"nvrtc": "not found"}},
            {},
            "libnvrtc",
            "synkhronos[gpu-cu13]' 'nvidia-cuda-nvrtc==13.0.*'",
        ),
        ({"missing": {"cublas": "x"}, "driver": [12, 4]}, {}, "libcublas", "[gpu-cu12]"),
        ({}, {"pygpu": {"problem": "No module named 'pygpu'"}}, "pygpu", "apt install python3-py"),
        ({}, {"problem": "died of SIGSEGV"}, "Theano on cuda0", "device=cuda0"),
        ({"problem": "no answer in 60 s"}, {}, "CUDA", "nvidia-smi"),
    ],
)
def test_what_gpus_need_and_lack(look, changes, how, name, cure):
    items = look(changes, **how)
    assert broken(items) == [name]
    assert cure in named(items, name).cure


def test_what_gpus_miss_but_do_not_need(look):
    for changes, how, name, state in (
        ({"cudnn": None}, {}, "cuDNN", WARNING),
        ({"cudnn": None, "libraries": {}}, {}, "cuDNN", WARNING),
        ({"cudnn": NO_HEADERS}, {}, "cuDNN", WARNING),
        ({}, {"cudnn_problem": "cannot compile"}, "cuDNN", WARNING),
        (NO_NCCL, {}, "NCCL", WARNING),
        ({**NO_NCCL, **ONE}, {}, "NCCL", GOOD),
    ):
        items = look(changes, **how)
        assert (broken(items), named(items, name).state) == ([], state)


# ---- software and the machine --------------------------------------------------------------------


def test_software_that_is_broken(monkeypatch):
    monkeypatch.setattr(doctor, "OF_THEANO", True)
    monkeypatch.setattr(doctor, "ask", lambda *_: {"problem": "not asked"})
    monkeypatch.setattr(doctor.shutil, "which", lambda name: None)
    for compat, broken_, cure in (
        ({"problem": "died of SIGSEGV"}, {"C++ compiler"}, "python -m synk_theano_compat"),
        ({"problem": "No module named synk_theano_compat"}, {"NumPy"}, "pip install synk-theano"),
        ({"problem": "cannot make compiledir"}, {"NumPy"}, "export THEANO_FLAGS="),
        ({"versions": {}, "compiler": "g++"}, {"NumPy"}, "pip install Theano==1.0.5"),
        ({"error": "x", "compiler": "g++"}, {"pyzmq"}, "python -m synk_theano_compat --install"),
        ({"error": "x", "switched_off": True}, {"pyzmq"}, "unset SYNK_THEANO_COMPAT"),
    ):
        items = doctor.examine_software(compat)
        assert broken_ | {"Theano"} <= set(broken(items))
        assert named(items, "Theano").cure.startswith(cure)


def test_a_hook_that_is_not_active_by_itself_is_reported():
    compat = {"versions": {"Theano": "1.0.5"}, "pth": None}
    assert doctor._theano({**compat, "active": True}).state == GOOD
    item = doctor._theano({**compat, "active": False})
    assert (item.state, item.cure) == (WARNING, "python -m synk_theano_compat --install")


@pytest.mark.parametrize("wanted, state", [("[0] <= numbers", GOOD), ("numbers < [1]", MISSING)])
def test_the_numpy_that_the_engine_can_use(wanted, state):
    fits = doctor._NUMPY_FITS.format(wanted, "it needs another")
    item = doctor._module("NumPy", "numpy", "pip install x", fits)
    assert (item.state, "it needs another" in item.found) == (state, state == MISSING)
    assert item.found.startswith(version("numpy"))


def test_packages_of_ours_are_installed_or_on_the_path(monkeypatch):
    def unknown(name):
        raise PackageNotFoundError(name)

    monkeypatch.setattr(doctor, "version", unknown)
    assert doctor._packages().state == GOOD
    monkeypatch.setattr(doctor, "find_spec", lambda name: None if name == "synk_shm" else 1)
    item = doctor._packages()
    assert (item.state, item.cure) == (MISSING, "pip install synk-shm")


def test_the_version_of_lasagne_and_what_0_1_lacks():
    compat = {"versions": {"Lasagne": "0.1"}}
    newer = doctor._lasagne(compat, {"version": "0.2.dev1", "path": "/l"})
    assert (newer.state, newer.found) == (GOOD, "0.2.dev1, /l")  # on PYTHONPATH, 0.1 is installed
    older = doctor._lasagne(compat, {"version": "0.1", "path": "/l"})
    assert older.found.startswith("0.1, /l; it has no batch_norm, no only_return")
    assert (older.state, older.fix) == (GOOD, []), "a program of 2015 wants 0.1"
    absent = doctor._lasagne({}, {"problem": "ModuleNotFoundError: lasagne"})
    assert (absent.state, absent.fix[-1].endswith("/master.zip")) == (WARNING, True)


def test_a_blas_that_is_slow_wrong_or_old(monkeypatch):
    monkeypatch.setattr(doctor.Path, "read_text", lambda *_, **__: "flags: avx2")
    quick = {"seconds": 0.01, "right": True}
    for gemm, state, cure in (
        (quick, GOOD, ""),
        ({**quick, "seconds": 1.0}, WARNING, "apt install libopenblas-dev"),
        ({**quick, "kernels": ["Prescott"]}, WARNING, "export OPENBLAS_CORETYPE=Haswell"),
        ({**quick, "right": False}, MISSING, "name another BLAS"),
        ({"problem": "ImportError: undefined symbol"}, MISSING, "theano-cache purge"),
    ):
        item = doctor._blas({"blas": {"origin": "some BLAS"}}, gemm)
        assert (item.state, item.cure[: len(cure)]) == (state, cure)


def test_limits_of_the_machine(monkeypatch):
    stale = {"stale": ["weights"], "cores": 1}
    monkeypatch.setattr(doctor, "_limit", lambda kind: 512)
    monkeypatch.setattr(doctor, "_LEAST_SHARED", 1 << 60)
    monkeypatch.setattr(doctor, "ask", lambda *_: stale)
    monkeypatch.setattr(doctor.os, "sched_getaffinity", lambda _: set(range(16)))
    items = doctor.examine_machine(True)
    assert states(items) == dict.fromkeys(MACHINE, WARNING)
    assert named(items, "stale segments").fix[-1] == "clean"
    assert named(items, "cores").cure.startswith("docker run --cpus=4")
    stale.update(stale=[], cores=16)
    monkeypatch.setattr(doctor, "_SHARED_MEMORY", "/nowhere")
    items = doctor.examine_machine(False)
    assert states(items)["locked memory"] == states(items)["cores"] == GOOD
    assert broken(items) == ["shared memory"]
    cure = "mkdir -p /nowhere && mount -t tmpfs -o size=8g tmpfs /nowhere"
    assert named(items, "shared memory").cure == cure


# ---- several hosts -------------------------------------------------------------------------------

MPICH = {"name": "MPICH 5.0.2", "file": "/lib/libmpi.so.12", "mpi4py": "4.1.2"}
OF_PIP = {**MPICH, "file": os.path.join(sys.prefix, "lib/libmpi.so.12")}
OPEN_MPI = {"name": "Open MPI v5.0.11", "file": "/lib/libmpi.so.40", "mpi4py": "4.1.2"}
LAUNCHED = {"name": "srun", "size": 8, "rank": 3}
HYDRA = "HYDRA build details:\n    Version:                                 5.0.2"
OF_OPEN_MPI = "mpiexec (Open MPI) 5.0.11\n\nReport bugs to https://www.open-mpi.org"
PLUGINS = "MPI plugin types are...\n\tnone\n\tcray_shasta\n\tpmi2"
REPORTS = """
import json
from mpi4py import MPI
from synkhronos_cli._doctor import examine_mpi
reports = MPI.COMM_WORLD.gather({item.name: [item.state, item.found] for item in examine_mpi()})
print(json.dumps(reports) if reports else '', end='', flush=True)
"""


def test_ranks_of_a_launcher_are_distinguished_and_end():
    """Each examines in processes of its own, which must not take the rank's place in the job."""
    mpiexec = shutil.which("mpiexec.hydra", path=os.path.dirname(sys.executable))
    if mpiexec is None or importlib.util.find_spec("mpi4py") is None:
        pytest.skip("this environment has no MPICH; pip install mpi4py mpich")
    path = f"{os.path.dirname(mpiexec)}:{os.environ['PATH']}"
    how = {"prefix": [mpiexec, "-n", "2"], "environment": {"PATH": path}, "stacks": False}
    done = synk_testing.run(REPORTS, **how)
    assert done.status == 0, done.err
    reports = json.loads(done.out)
    told = "mpiexec has started 2 processes; this is rank"
    assert [report["launcher"][1] for report in reports] == [f"{told} 0", f"{told} 1"]
    assert reports[0]["mpi4py"][1].startswith(f"{version('mpi4py')}, with ")
    assert {state for report in reports for state, _ in report.values()} == {GOOD}


@pytest.fixture
def hosts(monkeypatch, tmp_path):
    """Return what examines a machine of these answers, and of these programs on PATH."""
    folder = tmp_path / "bin"
    folder.mkdir()
    monkeypatch.setenv("PATH", str(folder))
    for name in ("SYNKHRONOS_BACKEND", "MPIR_CVAR_CH4_NETMOD"):
        monkeypatch.delenv(name, raising=False)
    # No mpiexec lies beside this Python.
    monkeypatch.setattr(doctor.sys, "executable", str(tmp_path / "python"))

    def looked(library=None, launched=None, **programs: str) -> dict[str, Item]:
        for name, text in programs.items():
            path = folder / name
            path.write_text(f"#!/bin/sh\n[ $# = 1 ] || exit 9\necho '{text}'\n", encoding="utf-8")
            path.chmod(0o755)
        answers = {doctor._LAUNCHED: launched or {}, doctor._LIBRARY: library}
        monkeypatch.setattr(doctor, "ask", lambda code, timeout_s: answers[code])
        monkeypatch.setattr(doctor, "find_spec", lambda name: library and name)
        return {item.name: item for item in doctor.examine_mpi()}

    return looked


def test_mpi4py_is_needed_by_who_uses_several_hosts(hosts, monkeypatch):
    items = hosts(mpiexec=HYDRA, srun=PLUGINS)
    assert list(items) == ["mpi4py"]
    assert (items["mpi4py"].state, items["mpi4py"].fix) == (GOOD, [])
    items = hosts(launched=LAUNCHED)
    assert items["mpi4py"].state == MISSING
    assert items["mpi4py"].fix[-2:] == ["install", "synkhronos[mpi]"]
    assert items["launcher"].found == "srun has started 8 processes; this is rank 3"
    monkeypatch.setenv("SYNKHRONOS_BACKEND", "mpi")
    assert hosts()["mpi4py"].state == MISSING


def test_mpi4py_without_an_mpi(hosts):
    for launched, state in ((None, WARNING), (LAUNCHED, MISSING)):
        item = hosts({"problem": "RuntimeError: cannot load MPI library"}, launched)["mpi4py"]
        assert (item.state, item.fix) == (state, []), "which MPI is for a person to decide"
        assert "cannot load MPI library" in item.found
        assert "module load" in item.cure


@pytest.mark.parametrize(
    "library, program, printed, state, found",
    [
        (MPICH, "mpiexec", HYDRA, GOOD, "of MPICH (Version: 5.0.2)"),
        (OPEN_MPI, "mpiexec", OF_OPEN_MPI, GOOD, "of Open MPI (mpiexec (Open MPI) 5.0.11)"),
        (MPICH, "mpiexec", OF_OPEN_MPI, WARNING, "of Open MPI, but mpi4py uses MPICH 5.0.2"),
        (MPICH, "mpiexec", "of nobody, 7", WARNING, "of nobody, 7"),
        (MPICH, "srun", PLUGINS, GOOD, "pmi2"),
        (OPEN_MPI, "srun", PLUGINS, WARNING, "nothing for Open MPI"),
        (OPEN_MPI, "srun", f"{PLUGINS}\n\tpmix_v4", GOOD, "pmix_v4"),
        (OF_PIP, "srun", PLUGINS, WARNING, "may not read the addresses of pip's MPICH"),
    ],
)
def test_whether_a_launcher_fits(hosts, library, program, printed, state, found):
    items = hosts(library, **{program: printed})
    assert items[program].state == state
    assert found in items[program].found
    assert (items[program].cure == "") == (state == GOOD)
    assert "mpiexec" in items or program == "srun", "srun is enough"


def test_the_mpiexec_beside_python_is_offered(hosts, tmp_path):
    assert hosts(MPICH)["mpiexec"].found == "none on PATH"
    beside = tmp_path / "mpiexec"
    beside.write_text(f"#!/bin/sh\necho '{HYDRA}'\n")
    beside.chmod(0o755)
    assert hosts(MPICH)["mpiexec"].cure == f"export PATH={tmp_path}:$PATH"
    assert hosts(OPEN_MPI)["mpiexec"].cure == "start with the mpiexec of Open MPI v5.0.11"
