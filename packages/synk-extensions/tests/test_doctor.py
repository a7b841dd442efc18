"""``synkhronos doctor``: on this machine, on broken ones, and on made-up ones."""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import sys
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import pytest
from _cli import command, invoke

import synk_testing
from synk_testing.engine import IS_THEANO
from synkhronos_cli import _doctor as doctor
from synkhronos_cli import _report
from synkhronos_cli._probe import ask, ask_python
from synkhronos_cli._report import GOOD, MISSING, WARNING, DoctorReport, Item

MACHINE = ["shared memory", "stale segments", "locked memory", "cores"]


def broken(items: dict[str, Item]) -> list[str]:
    return [name for name, item in items.items() if item.state == MISSING]


def by_name(items) -> dict[str, Item]:
    return {item.name: item for item in items}


def test_this_machine(tmp_path: Path):
    settings = tmp_path / "theanorc"  # no flags; but where the home may be read-only
    settings.write_text(f"[global]\nbase_compiledir = {tmp_path / 'theano'}\n")
    done = command("doctor", "--json", THEANORC=str(settings), SYNKHRONOS_PROOF="warn")
    report = json.loads(done.stdout)
    assert done.stderr == ""
    assert done.returncode == (0 if report["ok"] else 1)
    found = {item["name"]: item for item in report["sections"]["Software"]}
    assert found["NumPy"]["found"].startswith(f"{version('numpy')}, ")
    assert "SYNKHRONOS_PROOF=warn" in found["settings"]["found"].split(", ")
    assert [item["name"] for item in report["sections"]["Machine"]] == MACHINE
    if IS_THEANO:
        assert found["Theano"]["state"] in (GOOD, WARNING)
        assert "GFLOP/s" in found["BLAS"]["found"]
        chosen = {"value": "time_on_shape_change", "set_by": "synk_theano_compat"}
        assert report["flags"]["dnn.conv.algo_fwd"] == chosen
    else:
        assert found["PyTensor"]["found"].startswith(version("pytensor"))
        assert not {"Theano", "BLAS"} & set(found)
        assert "its extra installs nothing here" in found["Lasagne"]["found"]
    if not IS_THEANO or not list(Path("/dev").glob("nvidia[0-9]*")):
        (gpus,) = report["sections"]["GPUs"]
        assert gpus["found"].startswith(("none: functions run", "not looked for: PyTensor has no"))


@pytest.mark.parametrize("answer", [{"versions": [1], "hardware": 5}, {"problem": "no answer"}])
def test_answers_of_no_sense_or_none(monkeypatch, capsys, answer: dict):
    monkeypatch.setattr(doctor, "OF_THEANO", True)
    monkeypatch.setattr(doctor, "glob", lambda _: ["/dev/nvidia0"])
    for name in ("ask_python", "ask"):
        monkeypatch.setattr(doctor, name, lambda *_: answer)
    report = doctor.examine()
    report.print_table()
    assert "Needed, and missing or broken" in capsys.readouterr().out
    (gpus,) = report.as_json()["sections"]["GPUs"]
    assert gpus["needed"], "a driver that hangs is no machine without GPUs"


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
    monkeypatch.setattr(_report, "run_to_end", lambda command, **_: commands.append(command))
    done = invoke("doctor", "--fix", *words.split(), input=answer)
    assert (commands, done.exit_code, reports) == (runs, status, [])
    assert says in done.stderr
    if "--json" in words:
        (item,) = json.loads(done.stdout)["sections"]["Software"]
        assert (item["name"], item["needed"]) == ("NumPy", False)
    else:
        assert f"broken: {(again or items)[-1].name}\n" in done.stdout, "what is left"


def test_cures_that_are_applied(capfd):
    for cure, words in (
        ("pip install pyzmq", ["-m", "pip", "install", "pyzmq"]),
        ("python -m synk_theano_compat --install", ["-m", "synk_theano_compat", "--install"]),
        ("synkhronos clean", ["-m", "synkhronos_cli", "clean"]),
        ("export A=/x, or pip install y", []),
        ("python -m synk_theano_compat", []),
        ("sudo pip install x", []),
    ):
        assert Item("x", MISSING, "", cure).fix == ([sys.executable, *words] if words else [])
        assert Item("x", GOOD, "", cure).fix == []
    fails = [sys.executable, "-c", "print('said'); raise SystemExit(3)"]
    assert _report.run_fixes({"a cure": fails}, yes=True)
    out, err = capfd.readouterr()
    assert out == "", "standard output belongs to the report"
    assert "$ a cure\nsaid\n  failed: status 3 (" in err


def test_probes():
    answer = ask("print('noise')\nanswer(one=1, two=[2])\nprint('more')", 30)
    assert answer == {"one": 1, "two": [2]}
    for code, problem in (
        ("import os; os.abort()", "died of SIGABRT"),
        ("raise ValueError('no')", "ValueError: no"),
        ("pass", "ended with status 0 and no message"),
        ("import time; time.sleep(600)", "no answer in 3 s"),
    ):
        assert ask(code, 3 if "sleep" in code else 30) == {"problem": problem}
    assert "No module named" in ask_python(["-m", "no_such_module_at_all"], 30)["problem"]


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
NO_HEADERS = {**GPU["cudnn"], "cuda_headers": None}
NO_NCCL = {"missing": {"nccl": "not found"}}
NVRTC = "synkhronos[gpu-cu13]' 'nvidia-cuda-nvrtc==13.0.*'"
FOUND = {"version": "0.7.6", "path": "/pygpu"}


@pytest.mark.parametrize(
    "changes, answers, name, state, text",
    [
        ({}, {}, "GPUs", GOOD, "cuda1: NVIDIA H200, 140 GiB, compute capability 9.0"),
        ({}, {}, "cuDNN", GOOD, "RNNBlock"),
        ({"driver": [0, 0]}, {}, "driver", MISSING, "nvidia-driver"),
        ({"devices": [], "error": "x"}, {}, "GPUs", MISSING, "CUDA_VISIBLE_DEVICES"),
        ({"missing": {"nvrtc": "not found"}}, {}, "libnvrtc", MISSING, NVRTC),
        ({"missing": {"cublas": "x"}, "driver": [12, 4]}, {}, "libcublas", MISSING, "gpu-cu12]"),
        ({}, {"pygpu": {"problem": "No module"}}, "pygpu", MISSING, "apt install python3-py"),
        ({}, {"device": {"problem": "died"}}, "Theano on cuda0", MISSING, "device=cuda0"),
        ({"problem": "no answer in 60 s"}, {}, "CUDA", MISSING, "nvidia-smi"),
        ({"cudnn": None}, {}, "cuDNN", WARNING, "no cudnn.h of its version"),
        ({"cudnn": None, "libraries": {}}, {}, "cuDNN", WARNING, "not found"),
        ({"cudnn": NO_HEADERS}, {}, "cuDNN", WARNING, "no cuda_runtime.h"),
        ({}, {"device": {"cudnn_problem": "cannot"}}, "cuDNN", WARNING, "cannot"),
        (NO_NCCL, {}, "NCCL", WARNING, "through host memory"),
        ({**NO_NCCL, "devices": GPU["devices"][:1]}, {}, "NCCL", GOOD, "does not need it"),
    ],
)
def test_gpus(monkeypatch, changes, answers, name, state, text):
    answers = {"pygpu": FOUND, "device": {}, **answers}
    asked = lambda code, _: answers["device" if code == doctor._DEVICE else "pygpu"]  # noqa: E731
    monkeypatch.setattr(doctor, "OF_THEANO", True)
    monkeypatch.setattr(doctor, "ask", asked)
    items = by_name(doctor.examine_gpus({**GPU, **changes}))
    assert broken(items) == ([name] if state == MISSING else [])
    assert items[name].state == state
    assert text in f"{items[name].found} {items[name].cure}"


@pytest.mark.parametrize(
    "compat, lacking, cure",
    [
        ({"problem": "died of SIGSEGV"}, {"C++ compiler"}, "python -m synk_theano_compat"),
        ({"problem": "No module named synk_theano_compat"}, {"NumPy"}, "pip install synk-theano"),
        ({"problem": "cannot make compiledir"}, {"NumPy"}, "export THEANO_FLAGS="),
        ({"versions": {}, "compiler": "g++"}, {"NumPy"}, "pip install Theano==1.0.5"),
        ({"error": "x", "compiler": "g++"}, {"pyzmq"}, "python -m synk_theano_compat --install"),
        ({"error": "x", "switched_off": True}, {"pyzmq"}, "unset SYNK_THEANO_COMPAT"),
        ({"versions": {"Theano": "1.0.5"}}, {"BLAS"}, "python -m synk_theano_compat --install"),
        ({"versions": {"Theano": "1.0.5"}, "active": True}, {"BLAS"}, ""),
    ],
)
def test_software_that_is_broken(monkeypatch, compat, lacking, cure):
    monkeypatch.setattr(doctor, "OF_THEANO", True)
    monkeypatch.setattr(doctor, "ask", lambda *_: {"problem": "not asked"})
    monkeypatch.setattr(doctor.shutil, "which", lambda name: None)
    items = by_name(doctor.examine_software(compat))
    assert lacking <= set(broken(items))
    assert items["Theano"].cure.startswith(cure)
    works = "GOOD" if "active" in compat else "WARNING" if "BLAS" in lacking else "MISSING"
    assert items["Theano"].state == getattr(_report, works)


def test_packages_that_do_not_fit_or_are_not_there(monkeypatch):
    fits = doctor._NUMPY_FITS.format([9], [99], "it needs another")
    item = doctor._module("NumPy", "numpy", "pip install x", fits)
    assert (item.state, item.found) == (MISSING, f"{version('numpy')}; it needs another")

    def unknown(name):
        raise PackageNotFoundError(name)

    monkeypatch.setattr(doctor, "version", unknown)
    monkeypatch.setattr(doctor, "find_spec", lambda name: None if name == "synk_shm" else 1)
    _python, item, *_ = doctor.examine_software({})
    assert (item.state, item.cure) == (MISSING, "pip install synk-shm")


@pytest.mark.parametrize(
    "lasagne, state, found",
    [
        ("__version__ = '0.2.dev1'", GOOD, "0.2.dev1, "),
        ("__version__ = '0.1'", GOOD, "it has no batch_norm, no only_return"),
        ("raise ImportError('x')", WARNING, "ImportError: x"),
        (None, WARNING, "not installed; only"),
    ],
)
def test_lasagne(monkeypatch, tmp_path, lasagne, state, found):
    for name, text in (("synk_theano", ""), ("lasagne/layers", ""), ("lasagne/__init__", lasagne)):
        (tmp_path / f"{name}.py").parent.mkdir(exist_ok=True)
        (tmp_path / f"{name}.py").write_text(text or "")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.setattr(doctor, "_version", lambda name: lasagne)
    monkeypatch.setattr(doctor, "_theano", lambda _: Item("Theano", GOOD, ""))
    monkeypatch.setattr(doctor, "_GEMM", "answer()")
    monkeypatch.setattr(doctor, "_blas", lambda *_: Item("BLAS", GOOD, ""))
    item = by_name(doctor._theano_and_its_tools({}))["Lasagne"]
    assert (item.state, found in item.found) == (state, True), item.found
    assert state == GOOD or item.fix[-1].endswith("/master.zip")


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
    monkeypatch.setattr(doctor.resource, "getrlimit", lambda kind: (512, 512))
    monkeypatch.setattr(doctor, "_LEAST_SHARED", 1 << 60)
    monkeypatch.setattr(doctor, "ask", lambda *_: stale)
    monkeypatch.setattr(doctor.os, "sched_getaffinity", lambda _: set(range(16)))
    items = by_name(doctor.examine_machine(True))
    assert {name: item.state for name, item in items.items()} == dict.fromkeys(MACHINE, WARNING)
    assert items["stale segments"].fix[-1] == "clean"
    assert items["cores"].cure.startswith("docker run --cpus=4")
    stale.update(stale=[], cores=16)
    monkeypatch.setattr(doctor, "_SHARED_MEMORY", "/nowhere")
    items = by_name(doctor.examine_machine(False))
    assert items["locked memory"].state == items["cores"].state == GOOD
    assert broken(items) == ["shared memory"]
    cure = "mkdir -p /nowhere && mount -t tmpfs -o size=8g tmpfs /nowhere"
    assert items["shared memory"].cure == cure


MPICH = {"name": "MPICH 5.0.2", "file": "/lib/libmpi.so.12", "mpi4py": "4.1.2"}
OF_PIP = {**MPICH, "file": os.path.join(sys.prefix, "lib/libmpi.so.12")}
OPEN_MPI = {"name": "Open MPI v5.0.11", "file": "/lib/libmpi.so.40", "mpi4py": "4.1.2"}
NO_MPI = {"problem": "RuntimeError: cannot load MPI library"}
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
    monkeypatch.setattr(doctor.sys, "executable", str(tmp_path / "python"))

    def looked(library=None, launched=None, **programs: str) -> dict[str, Item]:
        for name, text in programs.items():
            # `beside` is the mpiexec in the folder of this Python.
            path = tmp_path / "mpiexec" if name == "beside" else folder / name
            path.write_text(f"#!/bin/sh\n[ $# = 1 ] || exit 9\necho '{text}'\n", encoding="utf-8")
            path.chmod(0o755)
        answers = {doctor._LAUNCHED: launched or {}, doctor._LIBRARY: library}
        monkeypatch.setattr(doctor, "ask", lambda code: answers[code])
        monkeypatch.setattr(doctor, "find_spec", lambda name: library and name)
        return by_name(doctor.examine_mpi())

    return looked


def test_mpi4py_is_needed_for_several_hosts(hosts, monkeypatch):
    items = hosts(mpiexec=HYDRA, srun=PLUGINS)
    assert [(item.name, item.state, item.fix) for item in items.values()] == [("mpi4py", GOOD, [])]
    items = hosts(launched=LAUNCHED)
    assert items["mpi4py"].state == MISSING
    assert items["mpi4py"].fix[-2:] == ["install", "synkhronos[mpi]"]
    assert items["launcher"].found == "srun has started 8 processes; this is rank 3"
    for launched, state in ((None, WARNING), (LAUNCHED, MISSING)):
        item = hosts(NO_MPI, launched)["mpi4py"]
        assert (item.state, item.fix) == (state, []), "which MPI is for a person to decide"
        assert "cannot load MPI library" in item.found
        assert "module load" in item.cure
    monkeypatch.setenv("SYNKHRONOS_BACKEND", "mpi")
    assert hosts()["mpi4py"].state == MISSING


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
    assert hosts(MPICH, beside=HYDRA)["mpiexec"].cure == f"export PATH={tmp_path}:$PATH"
    assert hosts(OPEN_MPI)["mpiexec"].cure == "start with the mpiexec of Open MPI v5.0.11"
