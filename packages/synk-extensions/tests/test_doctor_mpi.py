"""``synkhronos doctor`` on MPI: here, under a launcher, and on made-up machines."""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import sys
from importlib.metadata import version
from pathlib import Path

import pytest

import synk_testing
from synkhronos_cli._doctor import mpi
from synkhronos_cli._doctor.items import GOOD, MISSING, WARNING, Item
from synkhronos_cli._probe import Answer

MPICH = Answer({"name": "MPICH 5.0.2", "file": "/lib/libmpi.so.12", "mpi4py": "4.1.2"})
OPEN_MPI = Answer({"name": "Open MPI v5.0.11", "file": "/lib/libmpi.so.40", "mpi4py": "4.1.2"})
ALONE = Answer()
LAUNCHED = Answer({"name": "srun", "size": 8, "rank": 3})
HYDRA = "HYDRA build details:\n    Version:                                 5.0.2"
OF_OPEN_MPI = "mpiexec (Open MPI) 5.0.11\n\nReport bugs to https://www.open-mpi.org"
PLUGINS = "MPI plugin types are...\n\tnone\n\tcray_shasta\n\tpmi2"
# Of jobs in which this test may itself be.
NO_LAUNCHER = dict.fromkeys(("PMI_SIZE", "OMPI_COMM_WORLD_SIZE", "SLURM_STEP_NUM_TASKS"))

EXAMINE = """
import dataclasses, json
from synkhronos_cli._doctor.mpi import examine_mpi
report = {item.name: dataclasses.asdict(item) for item in examine_mpi()}
"""


def needs_mpi() -> None:
    if importlib.util.find_spec("mpi4py") is None:
        pytest.skip("mpi4py is not installed; pip install mpi4py mpich")


def test_this_environment():
    needs_mpi()
    alone = {**NO_LAUNCHER, "SYNKHRONOS_BACKEND": None}
    done = synk_testing.run(f"{EXAMINE}print(json.dumps(report))", environment=alone)
    items = json.loads(done.out)
    assert items["mpi4py"]["found"].startswith(f"{version('mpi4py')}, with ")
    assert Path(items["mpi4py"]["found"].rpartition(", ")[2]).is_file()
    assert items["launcher"]["found"] == "none has started this process"
    assert MISSING not in {item["state"] for item in items.values()}


def test_ranks_of_a_launcher_are_told_apart_and_end():
    """Each examines in processes of its own, which must not take the rank's place in the job."""
    needs_mpi()
    mpiexec = shutil.which("mpiexec.hydra", path=os.path.dirname(sys.executable))
    if mpiexec is None:
        pytest.skip("this environment has no mpiexec of MPICH; pip install mpich")
    gather = (
        "from mpi4py import MPI\n"
        "reports = MPI.COMM_WORLD.gather(report)\n"
        "print(json.dumps(reports) if reports else '', end='', flush=True)\n"
    )
    path = f"{os.path.dirname(mpiexec)}:{os.environ['PATH']}"
    how = {"prefix": [mpiexec, "-n", "2"], "environment": {"PATH": path}, "stacks": False}
    done = synk_testing.run(EXAMINE + gather, **how)
    assert done.status == 0, done.err
    reports = json.loads(done.out)
    told = "mpiexec has started 2 processes; this is rank"
    assert [report["launcher"]["found"] for report in reports] == [f"{told} 0", f"{told} 1"]
    assert {item["state"] for report in reports for item in report.values()} == {GOOD}


# ---- made-up machines --------------------------------------------------------------------------


@pytest.fixture
def look(monkeypatch, tmp_path):
    """Return what examines a machine of these answers, and of these programs on PATH."""
    folder = tmp_path / "bin"
    folder.mkdir()
    monkeypatch.setenv("PATH", str(folder))
    monkeypatch.delenv("SYNKHRONOS_BACKEND", raising=False)
    # No mpiexec lies beside this Python.
    monkeypatch.setattr(mpi.sys, "executable", str(tmp_path / "python"))

    def looked(library=None, launched=ALONE, **programs: str) -> dict[str, Item]:
        for name, text in programs.items():
            path = folder / name
            path.write_text(f"#!/bin/sh\n[ $# = 1 ] || exit 9\necho '{text}'\n", encoding="utf-8")
            path.chmod(0o755)
        answers = {mpi._LAUNCHED: launched, mpi._LIBRARY: library}
        monkeypatch.setattr(mpi, "ask", lambda code, timeout_s: answers[code])
        monkeypatch.setattr(mpi, "find_spec", lambda name: library and name)
        return {item.name: item for item in mpi.examine_mpi()}

    return looked


def test_mpi_is_no_need_of_a_machine_that_does_not_use_it(look):
    items = look(mpiexec=HYDRA, srun=PLUGINS)
    assert list(items) == ["mpi4py"]
    item = items["mpi4py"]
    assert (item.state, item.cure) == (GOOD, "pip install 'synkhronos[mpi]'")
    assert item.fix == [], "--fix installs nothing that nobody needs"


def test_mpi4py_is_needed_by_who_uses_several_hosts(look, monkeypatch):
    items = look(launched=LAUNCHED)
    assert items["mpi4py"].state == MISSING
    assert items["mpi4py"].fix[-2:] == ["install", "synkhronos[mpi]"]
    assert items["launcher"].found == "srun has started 8 processes; this is rank 3"
    monkeypatch.setenv("SYNKHRONOS_BACKEND", "mpi")
    assert look()["mpi4py"].state == MISSING


@pytest.mark.parametrize("launched, state", [(ALONE, WARNING), (LAUNCHED, MISSING)])
def test_mpi4py_without_an_mpi(look, launched, state):
    items = look(Answer(problem="RuntimeError: cannot load MPI library"), launched)
    item = items["mpi4py"]
    assert (item.state, item.fix) == (state, []), "which MPI is for a person to decide"
    assert "cannot load MPI library" in item.found
    assert "module load" in item.cure
    assert "pip install mpich" in item.cure


@pytest.mark.parametrize(
    "library, mpiexec, state, found",
    [
        (MPICH, HYDRA, GOOD, "of MPICH (Version: 5.0.2)"),
        (OPEN_MPI, OF_OPEN_MPI, GOOD, "of Open MPI (mpiexec (Open MPI) 5.0.11)"),
        (MPICH, OF_OPEN_MPI, WARNING, "is of Open MPI, but mpi4py uses MPICH 5.0.2"),
        (OPEN_MPI, HYDRA, WARNING, "is of MPICH, but mpi4py uses Open MPI v5.0.11"),
        (MPICH, "of nobody, 7", WARNING, "of nobody, 7"),
    ],
)
def test_whether_mpiexec_fits(look, library, mpiexec, state, found):
    item = look(library, mpiexec=mpiexec)["mpiexec"]
    assert item.state == state
    assert found in item.found
    named = f"start with the mpiexec of {library['name']}"
    assert item.cure == ("" if state == GOOD else named)


def test_the_mpiexec_beside_python_is_offered(look, tmp_path):
    assert look(MPICH)["mpiexec"].found == "none on PATH"
    beside = tmp_path / "mpiexec"
    beside.write_text(f"#!/bin/sh\necho '{HYDRA}'\n")
    beside.chmod(0o755)
    item = look(MPICH)["mpiexec"]
    assert (item.state, item.cure) == (WARNING, f"export PATH={tmp_path}:$PATH")
    assert look(OPEN_MPI)["mpiexec"].cure == "start with the mpiexec of Open MPI v5.0.11"


@pytest.mark.parametrize(
    "library, plugins, state",
    [
        (MPICH, PLUGINS, GOOD),
        (OPEN_MPI, PLUGINS, WARNING),
        (OPEN_MPI, f"{PLUGINS}\n\tpmix_v4", GOOD),
        (MPICH, "MPI plugin types are...\n\tnone", WARNING),
    ],
)
def test_whether_srun_fits(look, library, plugins, state):
    items = look(library, srun=plugins)
    assert items["srun"].state == state
    assert "none" in items["srun"].found
    assert "mpiexec" not in items, "srun is enough"


def test_the_mpich_of_pip_needs_short_addresses_under_srun(look, monkeypatch):
    file = os.path.join(sys.prefix, "lib/libmpi.so.12")
    of_pip = Answer({"name": "MPICH 5.0.2", "file": file, "mpi4py": "4.1.2"})
    monkeypatch.delenv("MPIR_CVAR_CH4_NETMOD", raising=False)
    item = look(of_pip, srun=PLUGINS)["srun"]
    assert (item.state, item.cure) == (WARNING, "export MPIR_CVAR_CH4_NETMOD=ofi")
    monkeypatch.setenv("MPIR_CVAR_CH4_NETMOD", "ofi")
    assert look(of_pip, srun=PLUGINS)["srun"].state == GOOD


def test_launchers_that_do_not_answer(look, monkeypatch, tmp_path):
    monkeypatch.setattr(mpi, "VERSION_TIMEOUT_S", 1.0)
    look(MPICH, mpiexec="")
    pid = tmp_path / "pid"
    program = tmp_path / "bin" / "mpiexec"
    program.write_text(f"#!/bin/sh\n/bin/sleep 600 & echo $! >{pid}\nwait\n", encoding="utf-8")
    item = look(MPICH)["mpiexec"]
    assert (item.state, "no answer in 1 s" in item.found) == (WARNING, True)
    synk_testing.wait_gone([int(pid.read_text())])
    program.write_text("#!/bin/sh\necho 'no allocation' >&2\nexit 1\n", encoding="utf-8")
    program.rename(tmp_path / "bin" / "srun")
    item = look(MPICH)["srun"]
    assert (item.state, "no allocation" in item.found) == (WARNING, True)


@pytest.mark.parametrize("answer", [Answer(problem="died of SIGABRT"), Answer({"size": "x"})])
def test_answers_of_no_sense(look, answer):
    items = look(answer, answer)
    assert {"mpi4py", "launcher"} <= set(items)
    if answer.problem:
        assert {item.state for item in items.values()} == {WARNING}
