"""``synkhronos doctor``: on this machine, on broken ones, and on made-up ones with GPUs."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import time
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import pytest
from _cli import command, invoke

from synkhronos_cli import _terminal
from synkhronos_cli._doctor import examine, fix, gpu, machine, mpi, software
from synkhronos_cli._doctor.items import GOOD, MISSING, WARNING, DoctorReport, Item
from synkhronos_cli._probe import Answer, ask, ask_module


def states(items: list[Item]) -> dict[str, str]:
    return {item.name: item.state for item in items}


# ------------------------------------------------------------------------------- the command


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
    assert "GFLOP/s" in found.get("BLAS", {"found": "GFLOP/s"})["found"]
    assert report["flags"]["dnn.conv.algo_fwd"] == {
        "value": "time_on_shape_change",
        "set_by": "synk_theano_compat",
    }
    names = {item["name"] for item in report["sections"]["Machine"]}
    assert names == {
        "shared memory",
        "open files",
        "locked memory",
        "processes",
        "core files",
        "cores",
    }
    if not list(Path("/dev").glob("nvidia[0-9]*")):
        (item,) = report["sections"]["GPUs"]
        assert item["state"] == GOOD
        assert item["found"].startswith("none")


@pytest.mark.parametrize("module", ["theano", pytest.param("numpy", marks=pytest.mark.nightly)])
def test_a_broken_machine(tmp_path: Path, module: str):
    (tmp_path / f"{module}.py").write_text("import os\nos.abort()\n")
    path = os.pathsep.join(filter(None, [str(tmp_path), os.environ.get("PYTHONPATH", "")]))
    done = command("doctor", PYTHONPATH=path, COLUMNS="200")
    assert done.returncode == 1, done.stdout + done.stderr
    assert done.stderr == ""
    assert "Needed, and missing or broken:" in done.stdout
    assert "died of SIGABRT" in done.stdout


def test_a_compiler_that_is_missing_is_named_with_its_package(monkeypatch, tmp_path: Path):
    monkeypatch.setenv("PATH", str(tmp_path))
    compat = ask_module(["synk_theano_compat", "--json", "--activate"], 180)
    assert compat.problem == ""
    item = software._compiler(compat)
    assert item.broken
    assert item.cure.startswith("apt install g++")


def test_version():
    try:
        expected = f"synkhronos {version('synkhronos')}\n"
    except PackageNotFoundError:
        expected = "synkhronos, not installed as a package (a folder on PYTHONPATH)\n"
    assert command("--version").stdout == expected


@pytest.mark.nightly
def test_a_machine_on_which_much_is_wrong_at_once(tmp_path: Path):
    """No home, no compiler, a driver's tool that hangs, an old locale, 20 columns, no colours."""
    smi = tmp_path / "nvidia-smi"
    smi.write_text("#!/bin/sh\nsleep 600\n")
    smi.chmod(0o755)
    changes = {
        "HOME": "/proc/self/nowhere",  # neither there nor to be made
        "PATH": str(tmp_path),
        "LC_ALL": "C",
        "PYTHONIOENCODING": "ascii:strict",
        "COLUMNS": "20",
        "NO_COLOR": "1",
        "TMPDIR": str(tmp_path),
        "THEANO_FLAGS": "",
        "THEANORC": "/nowhere",  # where tests have their compile directory from
        "PYTHONPATH": os.pathsep.join(["/no\u00df", os.environ.get("PYTHONPATH", "")]),
    }
    done = command("doctor", **changes)
    assert done.returncode == 1
    assert done.stderr == ""
    assert "\x1b" not in done.stdout
    assert max(len(line) for line in done.stdout.splitlines()) <= 80
    done = command("doctor", "--json", **changes)
    report = json.loads(done.stdout)
    assert report["ok"] is False
    found = {item["name"]: item for item in report["sections"]["Software"]}
    assert found["C++ compiler"]["cure"].startswith("apt install g++")
    # Without a home it compiles in the temporary folder.
    assert f"{tmp_path}{os.sep}theano-" in found["Theano"]["found"]


@pytest.mark.parametrize("stream", ["stdout", "stderr"])
def test_a_closed_stream(stream: str):
    number = {"stdout": 1, "stderr": 2}[stream]
    code = (
        f"import os, sys; os.close({number}); "
        "os.execv(sys.executable, [sys.executable, '-m', 'synkhronos_cli', 'demo'])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, timeout=60)
    assert (done.returncode, done.stderr) == (0, b"")


def test_a_reader_that_leaves():
    """As `| head -1` does."""
    process = subprocess.Popen(
        [sys.executable, "-c", WRITE_MUCH],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    process.stdout.close()
    _, errors = process.communicate(timeout=60)
    assert errors == b""
    assert process.returncode == 1


WRITE_MUCH = """
import sys
from synkhronos_cli import main
from synkhronos_cli._doctor import examine
from synkhronos_cli._doctor.items import DoctorReport, Item
items = [Item(str(i), "good", "x" * 500) for i in range(500)]
examine.examine = lambda: DoctorReport({"Software": items})
sys.argv = ["synkhronos", "doctor"]
main()
"""


@pytest.mark.parametrize(
    "answer",
    [
        {"versions": [1, 2], "flags": 3, "blas": "x", "compiler": {}},
        {"versions": {"numpy": 1.5, "Theano": 2}, "flags": {"a": 1, "b": {"value": 3}}},
        {"versions": {"numpy": "one.two"}, "error": ["x"], "blas": None, "compiledir": 7},
        {"hardware": 5, "driver": "13", "devices": [1]},
        {},
    ],
)
def test_answers_of_no_sense(monkeypatch, capsys, answer: dict):
    """Whatever a probe says, there is a report, and it does not say that all is well."""
    monkeypatch.setattr(examine, "ask_module", lambda *_: Answer(answer))
    monkeypatch.setattr(software, "ask", lambda *_: Answer(answer))
    monkeypatch.setattr(gpu, "ask", lambda *_: Answer(answer))
    monkeypatch.setattr(mpi, "ask", lambda *_: Answer(answer))
    report = examine.examine()
    examine.print_table(report)
    assert "Needed, and missing or broken" in capsys.readouterr().out
    json.dumps(report.as_json())


@pytest.mark.parametrize("printed", ["{", "no {json}", "[1, 2]", "\udcff", "", "{}" * 3])
def test_a_module_that_prints_garbage(tmp_path: Path, monkeypatch, printed: str):
    text = f"import sys; sys.stdout.buffer.write({os.fsencode(printed)!r}); sys.exit(3)"
    (tmp_path / "garbage_of_test.py").write_text(text)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    answer = ask_module(["garbage_of_test"], 60)
    assert answer.problem == "ended with status 3 and no message"


# ------------------------------------------------------------------------------- --fix


def doctor(monkeypatch, reports: "list[DoctorReport]", *arguments: str, answer: str = ""):
    """Run `doctor` over reports made up, one for each examination; return what was run, too."""
    commands: list[list[str]] = []
    monkeypatch.setattr(examine, "examine", lambda: reports.pop(0))
    monkeypatch.setattr(fix, "_run", lambda command: commands.append(command) or "")
    done = invoke("doctor", *arguments, input=answer)
    return done, commands


def made_up(*items: Item) -> DoctorReport:
    return DoctorReport({"Software": list(items)})


NUMPY = Item("NumPy", MISSING, "2.1", "pip install 'numpy>=1.23,<1.27'")
COMPILER = Item("C++ compiler", MISSING, "none", "apt install g++ (yum: gcc-c++)")
WELL = Item("NumPy", GOOD, "1.23.5")


def test_fix_does_what_needs_no_root_and_examines_again(monkeypatch):
    reports = [made_up(NUMPY, COMPILER), made_up(WELL, COMPILER)]
    done, commands = doctor(monkeypatch, reports, "--fix", answer="y\n")
    assert commands == [[sys.executable, "-m", "pip", "install", "numpy>=1.23,<1.27"]]
    assert "  pip install 'numpy>=1.23,<1.27'\n" in done.stderr
    assert done.exit_code == 1
    last = done.stdout.splitlines()[-1]
    assert last == "Needed, and missing or broken: C++ compiler", "what is left"


@pytest.mark.parametrize("answer", ["n\n", ""])
def test_fix_does_nothing_unasked(monkeypatch, answer):
    done, commands = doctor(monkeypatch, [made_up(NUMPY)], "--fix", answer=answer)
    assert (commands, done.exit_code) == ([], 1)


def test_fix_with_yes_and_json(monkeypatch):
    reports = [made_up(NUMPY), made_up(WELL)]
    done, commands = doctor(monkeypatch, reports, "--fix", "--yes", "--json")
    assert (len(commands), done.exit_code) == (1, 0)
    assert json.loads(done.stdout)["ok"] is True


def test_fix_with_nothing_to_do(monkeypatch):
    done, commands = doctor(monkeypatch, [made_up(COMPILER)], "--fix", "--yes")
    assert (commands, done.exit_code) == ([], 1)
    assert "nothing to fix without root" in done.stderr


@pytest.mark.parametrize(
    "cure, command_",
    [
        ("pip install pyzmq", ["-m", "pip", "install", "pyzmq"]),
        (
            "python -m synk_theano_compat --install",
            ["-m", "synk_theano_compat", "--install"],
        ),
        ("synkhronos clean", ["-m", "synkhronos_cli", "clean"]),
        (
            "synkhronos clean --theano-cache",
            ["-m", "synkhronos_cli", "clean", "--theano-cache"],
        ),
        ("apt install g++", []),
        ("export A=/x, or pip install y", []),
        ("python -m synk_theano_compat", []),
        ("sudo pip install x", []),
        ("rm -r /somewhere", []),
    ],
)
def test_what_is_done_by_itself(cure, command_):
    item = Item("x", MISSING, "", cure)
    assert item.fix == ([sys.executable, *command_] if command_ else [])
    assert Item("x", GOOD, "", cure).fix == []


def test_a_fix_that_fails_is_told(monkeypatch, capfd):
    assert fix._run([sys.executable, "-c", "print('said'); raise SystemExit(3)"]) == "status 3"
    out, err = capfd.readouterr()
    assert (out, err) == ("", "said\n"), "standard output belongs to the report"
    assert "No such file" in fix._run(["/no/such/program"])


def test_fix_really_removes_what_the_dead_left(monkeypatch, tmp_path: Path):
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))

    def leftovers() -> DoctorReport:
        return DoctorReport({"Left behind": examine.examine_leftovers()})

    monkeypatch.setattr(examine, "examine", leftovers)
    group = tmp_path / "synk-comm-stale"
    group.mkdir(mode=0o700)
    with socket.socket(socket.AF_UNIX) as one:
        one.bind(str(group / "0-1"))
    assert any(str(group) in item.found for item in leftovers().items)
    done = invoke("doctor", "--fix", "--yes", "--json")
    assert "$ synkhronos clean\n" in done.stderr
    assert not group.exists()
    assert str(group) not in done.stdout


# ------------------------------------------------------------------------------- probes


def test_probe_answers():
    answer = ask("print('noise')\nanswer(one=1, two=[2])\nprint('more')", 30)
    assert (answer["one"], answer["two"], answer.problem) == (1, [2], "")


@pytest.mark.parametrize(
    "code, problem",
    [
        ("import os; os.abort()", "died of SIGABRT"),
        ("raise ValueError('no')", "ValueError: no"),
        ("pass", "ended with status 0 and no message"),
        ("raise SystemExit(3)", "ended with status 3 and no message"),
    ],
)
def test_probe_that_fails(code: str, problem: str):
    answer = ask(code, 30)
    assert answer.problem == problem
    assert answer.get("anything") is None


def test_probe_that_hangs_is_killed_with_what_it_started(tmp_path: Path):
    pid = tmp_path / "pid"
    code = (
        "import subprocess, sys, time, pathlib\n"
        "p = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)'])\n"
        f"pathlib.Path({str(pid)!r}).write_text(str(p.pid))\n"
        "time.sleep(600)\n"
    )
    assert ask(code, 3).problem == "no answer in 3 s"
    status = Path("/proc", pid.read_text(), "status")
    deadline = time.monotonic() + 20
    while status.exists() and "State:\tZ" not in status.read_text():
        assert time.monotonic() < deadline, "still there"
        time.sleep(0.05)


def test_module_that_is_missing():
    assert "No module named" in ask_module(["no_such_module_at_all"], 30).problem


# ------------------------------------------------------------------------------- GPUs

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
    "path_variable": "",
}
PYGPU = Answer({"version": "0.7.6", "api": [2, 10000], "path": "/pygpu"})
WORKS = Answer({"cudnn": 91400, "cudnn_problem": ""})


@pytest.fixture
def look(monkeypatch):
    def looked(changes: dict, pygpu: Answer = PYGPU, device: Answer = WORKS) -> list[Item]:
        probes = {gpu._PYGPU: pygpu, gpu._DEVICE: device}
        monkeypatch.setattr(gpu, "ask", lambda code, timeout_s: probes[code])
        monkeypatch.setattr(gpu, "other_pythons", list)
        return gpu.examine_gpus(Answer({**GPU, **changes}), True)

    return looked


def broken(items: list[Item]) -> list[str]:
    return [item.name for item in items if item.broken]


def test_a_machine_with_gpus(look):
    items = look({})
    found = states(items)
    assert broken(items) == []
    assert found.pop("nccl4py") in (GOOD, WARNING)
    assert set(found.values()) == {GOOD}
    assert "cuda1: NVIDIA H200, 140 GiB, compute capability 9.0" in items[1].found
    assert "RNNBlock" in next(item.found for item in items if item.name == "cuDNN")


@pytest.mark.parametrize(
    "changes, name, cure",
    [
        ({"driver": [0, 0]}, "driver", "nvidia-driver"),
        ({"devices": [], "error": "CUDA error 100: no device"}, "GPUs", "CUDA_VISIBLE_DEVICES"),
        (
            {"missing": {"nvrtc": "not found"}},
            "libnvrtc",
            "synkhronos[gpu-cu13]' 'nvidia-cuda-nvrtc==13.0.*'",
        ),
        ({"missing": {"cublas": "x"}, "driver": [12, 4]}, "libcublas", "synkhronos[gpu-cu12]"),
    ],
)
def test_what_is_needed_and_missing(look, changes, name, cure):
    items = look(changes)
    assert broken(items) == [name]
    assert cure in next(item.cure for item in items if item.name == name)


def test_pygpu_comes_from_apt(look):
    for pygpu in (Answer(problem="No module named 'pygpu'"), Answer({**PYGPU.values, "api": [3]})):
        items = look({}, pygpu)
        assert broken(items) == ["pygpu"]
        cure = next(item.cure for item in items if item.name == "pygpu")
        assert "apt install python3-pygpu libgpuarray-dev" in cure


def test_a_device_on_which_theano_fails(look):
    items = look({}, device=Answer(problem="died of SIGSEGV"))
    assert broken(items) == ["Theano on cuda0"]


@pytest.mark.parametrize(
    "changes, device",
    [
        ({"cudnn": None}, WORKS),
        ({"cudnn": None, "libraries": {}}, WORKS),
        ({"cudnn": {**GPU["cudnn"], "cuda_headers": None}}, WORKS),
        ({}, Answer({"cudnn": -1, "cudnn_problem": "cannot compile"})),
    ],
)
def test_cudnn_is_missed_but_not_needed(look, changes, device):
    items = look(changes, device=device)
    assert states(items)["cuDNN"] == WARNING
    assert broken(items) == []


def test_nccl_is_missed_by_several_gpus_only(look):
    assert states(look({"missing": {"nccl": "not found"}}))["NCCL"] == WARNING
    one = {"missing": {"nccl": "not found"}, "devices": GPU["devices"][:1]}
    assert states(look(one))["NCCL"] == GOOD


@pytest.mark.parametrize(
    "given, driver, state, text",
    [
        ("", [13, 0], GOOD, "replayed where that is quicker"),
        ("always", [13, 0], GOOD, "replayed where possible"),
        ("0", [13, 0], GOOD, "not used, by SYNKHRONOS_CUDA_GRAPHS"),
        ("on", [13, 0], WARNING, "SYNKHRONOS_CUDA_GRAPHS=on is no policy"),
        ("", [11, 3], GOOD, "need a driver for CUDA 11.4"),
    ],
)
def test_which_functions_are_replayed(look, monkeypatch, given, driver, state, text):
    monkeypatch.setenv("SYNKHRONOS_CUDA_GRAPHS", given)
    item = next(item for item in look({"driver": driver}) if item.name == "CUDA graphs")
    assert item.state == state
    assert text in item.found


@pytest.mark.parametrize(
    "ours, nvidias, state, text",
    [
        ("", "", GOOD, "cuDNN may round factors of convolutions to TF32"),
        ("tf32", "", GOOD, "by SYNKHRONOS_PRECISION"),
        ("float32", "", GOOD, "full, by SYNKHRONOS_PRECISION"),
        ("", "0", GOOD, "full, by NVIDIA_TF32_OVERRIDE=0"),
        ("tf32", "0", WARNING, "SYNKHRONOS_PRECISION=tf32, but NVIDIA_TF32_OVERRIDE=0"),
        ("half", "", WARNING, "SYNKHRONOS_PRECISION=half is no precision"),
    ],
)
def test_the_precision_of_float32(look, monkeypatch, ours, nvidias, state, text):
    monkeypatch.setenv("SYNKHRONOS_PRECISION", ours)
    monkeypatch.setenv("NVIDIA_TF32_OVERRIDE", nvidias)
    item = next(item for item in look({}) if item.name == "float32")
    assert item.state == state
    assert text in item.found


def test_libraries_of_other_pythons_are_offered(look, monkeypatch, tmp_path: Path):
    look({})
    monkeypatch.setattr(gpu, "other_pythons", lambda: ["/opt/torch/nvidia"])
    items = gpu.examine_gpus(Answer({**GPU, "missing": {"nvrtc": "not found"}}), True)
    cure = next(item.cure for item in items if item.name == "libnvrtc")
    assert cure.startswith("export SYNKHRONOS_CUDA_PATH=/opt/torch/nvidia, or pip install")


def test_other_pythons_are_those_with_nvidias_wheels(monkeypatch, tmp_path: Path):
    wheels = tmp_path / "lib/python3.12/site-packages/nvidia"
    wheels.mkdir(parents=True)
    program = tmp_path / "bin/python3"
    program.parent.mkdir()
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(program.parent))
    assert str(wheels) in gpu.other_pythons()


def test_a_driver_that_hangs():
    items = gpu.examine_gpus(Answer(problem="no answer in 60 s"), True)
    assert broken(items) == ["CUDA"]


# ------------------------------------------------------------------------------- the rest


@pytest.mark.parametrize(
    "compat, broken_",
    [
        (Answer(problem="died of SIGSEGV"), {"NumPy", "Theano", "C++ compiler"}),
        (Answer({"versions": {"Theano": None}, "compiler": "g++"}), {"NumPy"}),
        (Answer({"versions": {"numpy": "1.23.5"}, "error": "x", "compiler": "g++"}), {"pyzmq"}),
    ],
)
def test_software_that_is_broken(monkeypatch, compat, broken_):
    monkeypatch.setattr(software, "ask", lambda *_: Answer(problem="not asked"))
    monkeypatch.setattr(software.shutil, "which", lambda name: None)
    assert broken_ | {"Theano"} <= set(broken(software.examine_software(compat)))


@pytest.mark.parametrize(
    "version_, state", [("1.20.3", MISSING), ("1.23.5", GOOD), ("1.26.4", GOOD), ("2.1.0", MISSING)]
)
def test_the_numpy_that_theano_can_use(version_, state):
    item = software._numpy(Answer({"version": version_, "path": "/numpy"}))
    assert (item.state, item.broken) == (state, state == MISSING)
    assert bool(item.fix) == (state == MISSING)


def test_packages_of_ours_are_installed_or_on_the_path(monkeypatch):
    def unknown(name):
        raise PackageNotFoundError(name)

    monkeypatch.setattr(software, "version", unknown)
    assert software._packages().state == GOOD
    monkeypatch.setattr(software, "find_spec", lambda name: None if name == "synk_shm" else 1)
    item = software._packages()
    assert (item.broken, item.cure) == (True, "pip install synk-shm")


def test_a_hook_that_is_not_active_by_itself_is_told(monkeypatch):
    values = {"seconds": 0.01, "right": True, "version": "1.23.5"}
    monkeypatch.setattr(software, "ask", lambda *_: Answer(values))
    compat = {"versions": {"numpy": "1.23.5", "Theano": "1.0.5"}, "compiler": "g++", "pth": None}
    for active, state in ((True, GOOD), (False, WARNING)):
        items = software.examine_software(Answer({**compat, "active": active}))
        assert states(items)["Theano"] == state
        assert states(items)["BLAS"] == GOOD
    (theano,) = (item for item in items if item.name == "Theano")
    assert theano.cure == "python -m synk_theano_compat --install"


def test_a_python_that_cannot_be_executed_is_told_once(monkeypatch, tmp_path):
    file = tmp_path / "python"
    file.touch(0o600)
    monkeypatch.setattr(software.sys, "executable", str(file))
    (item,) = software.examine_software(Answer(problem="Permission denied"))
    assert (item.name, item.broken) == ("Python", True)
    assert f"{file}: cannot be executed" in item.found
    assert "pip install" not in item.cure


def test_the_version_of_lasagne_and_what_0_1_lacks():
    compat = Answer({"versions": {"Lasagne": "0.1"}})

    def found(**imported):
        return software._lasagne(compat, Answer({"path": "/lasagne/__init__.py", **imported}))

    newer = found(version="0.2.dev1")  # on PYTHONPATH, where 0.1 is installed
    assert (newer.state, newer.found) == (GOOD, "0.2.dev1, /lasagne/__init__.py")
    older = found(version="0.1")
    assert older.found.startswith("0.1, /lasagne/__init__.py; it has no batch_norm, no only_return")
    assert older.found.endswith("pip install https://github.com/Lasagne/Lasagne/archive/master.zip")
    assert (older.state, older.fix) == (GOOD, []), "a program of 2015 wants 0.1"
    absent = software._lasagne(Answer(), Answer(problem="ModuleNotFoundError: lasagne"))
    assert absent.state == WARNING
    assert absent.fix[-1].endswith("/master.zip")


def test_a_slow_blas_is_told(monkeypatch):
    compat = Answer({"blas": {"origin": "some BLAS"}})
    slow = software._blas(compat, Answer({"seconds": 1.0, "right": True}))
    assert (slow.state, slow.broken) == (WARNING, False)
    assert software._blas(compat, Answer({"seconds": 0.01, "right": True})).state == GOOD
    assert software._blas(compat, Answer({"seconds": 0.01, "right": False})).broken
    assert software._blas(compat, Answer(problem="died of SIGILL")).broken


@pytest.mark.skipif(not software.OF_THEANO, reason="PyTensor's functions are compiled by Numba")
def test_kernels_for_an_older_processor_are_a_warning(monkeypatch):
    monkeypatch.setenv("OPENBLAS_CORETYPE", "Prescott")
    item = software._blas(Answer(), ask(software._GEMM, software.GEMM_TIMEOUT_S))
    features = Path("/proc/cpuinfo").read_text().split()
    assert "avx2" in features
    assert (item.state, item.broken) == (WARNING, False)
    assert "OpenBLAS does not know this processor" in item.found
    monkeypatch.setenv("OPENBLAS_CORETYPE", item.cure.split("=")[1])
    item = software._blas(Answer(), ask(software._GEMM, software.GEMM_TIMEOUT_S))
    assert (item.state, item.cure) == (GOOD, "")


def test_limits(monkeypatch):
    monkeypatch.setattr(machine, "_limit", lambda kind: 512)
    few = machine.examine_machine(True)
    assert states(few)["open files"] == states(few)["locked memory"] == WARNING
    assert states(machine.examine_machine(False))["locked memory"] == GOOD
    assert states(few)["processes"] == WARNING
    monkeypatch.setattr(machine, "_SHARED_MEMORY", "/nowhere")
    (shared,) = (item for item in machine.examine_machine(False) if item.broken)
    assert shared.name == "shared memory"
    assert shared.cure == "mkdir -p /nowhere && mount -t tmpfs -o size=8g tmpfs /nowhere"


@pytest.mark.parametrize("contained, cure", [(True, "docker run --shm-size=8g"), (False, "mount")])
def test_little_shared_memory(monkeypatch, contained, cure):
    monkeypatch.setattr(machine, "_LEAST_SHARED", 1 << 60)
    monkeypatch.setattr(machine, "_in_container", lambda: contained)
    item = machine._shared_memory()
    assert (item.state, item.broken) == (WARNING, False)
    assert item.cure.startswith(cure)


def test_the_quota_of_cores(tmp_path: Path):
    groups = tmp_path / "groups"
    mount = tmp_path / "mount"
    assert machine.cpu_quota(mount, groups) is None, "nothing can be read"
    groups.write_text("0::/a/b\n")
    (mount / "a" / "b").mkdir(parents=True)
    (mount / "a" / "b" / "cpu.max").write_text("max 100000\n")
    assert machine.cpu_quota(mount, groups) is None
    (mount / "a" / "cpu.max").write_text("250000 100000\n")
    assert machine.cpu_quota(mount, groups) == 2.5, "that of a group around it"
    (mount / "cpu.max").write_text("50000 100000\n")
    assert machine.cpu_quota(mount, groups) == 0.5
    (mount / "cpu.max").write_text("garbage\n")
    assert machine.cpu_quota(mount, groups) == 2.5
    groups.write_text("4:cpu,cpuacct:/docker/x\n3:memory:/m\nnonsense\n")
    old = mount / "cpu" / "docker" / "x"
    old.mkdir(parents=True)
    (old / "cpu.cfs_quota_us").write_text("150000\n")
    (old / "cpu.cfs_period_us").write_text("100000\n")
    assert machine.cpu_quota(mount, groups) == 1.5


def test_a_quota_is_told_with_its_cure(monkeypatch):
    monkeypatch.setattr(machine.os, "sched_getaffinity", lambda _: set(range(16)))
    for quota, state, cure in (
        (None, GOOD, ""),
        (16.0, GOOD, ""),
        (2.5, WARNING, "export SYNKHRONOS_N_PARALLEL=2"),
        (0.5, WARNING, "docker run --cpus=4"),
    ):
        monkeypatch.setattr(machine, "cpu_quota", lambda *_, quota=quota: quota)
        item = machine._cores()
        assert item.state == state
        assert item.cure.startswith(cure)


def test_compiled_modules_that_are_damaged(monkeypatch, tmp_path: Path):
    """Theano fails, but not in an empty folder: that is the cure."""
    compat = Answer(
        {
            "versions": {"numpy": "1.23.5", "Theano": "1.0.5"},
            "compiler": "g++",
            "active": True,
            "compiledir": str(tmp_path),
        }
    )

    def asked(code, timeout_s, environment=None):
        if code == software._GEMM and environment is None:
            return Answer(problem="ImportError: undefined symbol")
        return Answer({"seconds": 0.01, "right": True, "version": "1"})

    monkeypatch.setattr(software, "ask", asked)
    items = {item.name: item for item in software.examine_software(compat)}
    assert items["compiled modules"].cure == "synkhronos clean --theano-cache"
    assert items["compiled modules"].broken
    assert "BLAS" not in items


def test_units():
    assert _terminal.in_units(1 << 30) == "1 GiB"
    assert _terminal.in_units(1536) == "1.5 KiB"
    assert _terminal.in_units(12) == "12 bytes"


def test_only_what_is_missing_is_broken():
    report = DoctorReport({"a": [Item("x", GOOD, ""), Item("y", WARNING, "")]})
    assert report.broken == []
    assert report.as_json()["ok"] is True
    report.sections["b"] = [Item("z", MISSING, "")]
    assert [item.name for item in report.broken] == ["z"]
    report = report.as_json()
    assert report["ok"] is False
    items = [item for section in report["sections"].values() for item in section]
    assert [(item["name"], item["needed"]) for item in items] == [
        ("x", False),
        ("y", False),
        ("z", True),
    ]


def test_with_pytensor_nothing_is_asked_about_theano_and_gpus(monkeypatch):
    asked: list[list[str]] = []
    for module in (examine, gpu):
        monkeypatch.setattr(module, "OF_THEANO", False)
    monkeypatch.setattr(examine, "ask_module", lambda words, _: asked.append(words) or Answer())
    for name in ("examine_software", "examine_machine", "examine_mpi", "examine_leftovers"):
        monkeypatch.setattr(examine, name, lambda *_: [])
    report = examine.examine()
    assert asked == []
    (item,) = report.sections["GPUs"]
    assert item.state == GOOD
    assert "PyTensor has no back end" in item.found
