"""``python -m synk_theano_compat``: the report and the .pth file."""

from __future__ import annotations

import json
import os
import sysconfig
import tempfile
from pathlib import Path

import pytest

import synk_theano_compat
from synk_theano_compat import _status

MAIN = """
import runpy, sys
sys.argv[1:] = {}
runpy.run_module("synk_theano_compat", run_name="__main__")
"""


def test_report(run):
    twice = "from synk_theano_compat._status import main\nmain(['--json'])\nmain([])"
    said = run(twice).stdout
    report, end = json.JSONDecoder().raw_decode(said)
    assert (report["active"], report["error"]) == (True, "")
    assert report["versions"]["Theano"] == "1.0.5"
    added = report["flags_added"]
    assert (added["device"], added["force_device"]) == ("cpu", "True")
    assert report["blas"]["ldflags"] == added["blas.ldflags"]
    assert added["blas.ldflags"] == "" or added["blas.ldflags"].startswith("-L")
    assert {"P1", "P5", "lock"} <= {entry["patch"] for entry in report["applied"]}
    text = said[end:].lstrip()
    assert text.startswith("synk_theano_compat: active\n")
    assert report["blas"]["origin"] in text


def test_report_of_an_environment_that_is_switched_off(run):
    ours = str(Path(synk_theano_compat.__file__).parents[1])
    code = f"import sys; sys.path.insert(0, {ours!r})\n" + MAIN.format([])
    done = run(code, env={"SYNK_THEANO_COMPAT": "0"}, fails=True)
    assert done.stdout.startswith("synk_theano_compat: switched off by SYNK_THEANO_COMPAT=0\n")
    assert "import theano: AttributeError" in done.stdout


@pytest.mark.nightly
def test_report_where_the_folder_for_compiled_modules_cannot_be_made(run, tmp_path):
    file = tmp_path / "file"
    file.touch()
    flags = f"base_compiledir={file}/below"
    report = json.loads(run(MAIN.format(["--json"]), flags=flags, fails=True).stdout)
    assert str(file) in report["error"]
    assert report["compiledir"] is None
    assert report["versions"]["Theano"] == "1.0.5"


@pytest.mark.nightly
def test_hook_is_put_in_place_where_no_pth_file_has(run):
    code = (
        "import sys, synk_theano_compat._hook as hook\n"
        "sys.meta_path[:] = [f for f in sys.meta_path if not isinstance(f, hook.Finder)]\n"
    )
    report = json.loads(run(code + MAIN.format(["--json", "--activate"])).stdout)
    assert (report["active"], report["error"]) == (False, "")
    assert report["flags"]["device"] == {"value": "cpu", "set_by": "synk_theano_compat"}


@pytest.mark.nightly
def test_cuda_report(run):
    report = json.loads(run(MAIN.format(["--cuda"])).stdout)
    assert set(report["prepared"]) == {"cuda", "nvrtc", "cublas", "nccl"}
    assert bool(report["devices"]) == (not report["error"])
    if not report["hardware"]:
        assert report["devices"] == []


def test_pth_file_is_written_and_removed(tmp_path: Path, monkeypatch, capsys):
    monkeypatch.setattr(sysconfig, "get_path", lambda name: str(tmp_path))
    path = tmp_path / "theano_compat_hook.pth"
    for arguments, said, there in (
        (["--install"], "written", True),
        (["--install"], "nothing to do", True),
        (["--uninstall"], "removed", False),
        (["--uninstall"], "nothing to do", False),
    ):
        assert _status.main(arguments) == 0
        assert capsys.readouterr().out == f"{path}: {said}\n"
        assert path.exists() == there

    ours = Path(synk_theano_compat.__file__).parents[1] / _status.PTH
    assert ours.read_text() == _status.PTH_TEXT, "the one of the wheel"
    with pytest.raises(SystemExit):
        _status.main(["--install", "--uninstall"])
    assert "not allowed" in capsys.readouterr().err


COMPILES_IN = "import theano\nprint(theano.config.base_compiledir)\n"


def test_a_home_that_cannot_be_written_is_no_obstacle(run, tmp_path):
    file = tmp_path / "file"
    file.touch()
    env = {"HOME": str(file / "home"), "TMPDIR": str(tmp_path), "THEANORC": str(tmp_path / "none")}
    folder = tmp_path / f"theano-{os.getuid()}"
    for said in (f"{file} cannot be written; Theano compiles in {folder}", ""):
        done = run(COMPILES_IN, env=env, flags="cxx=")
        assert done.stdout == f"{folder}\n"
        assert said in done.stderr
        assert ("cannot be written" in done.stderr) == bool(said)
    assert folder.stat().st_mode & 0o777 == 0o700
    chosen = run(COMPILES_IN, env=env, flags=f"cxx=,base_compiledir={tmp_path / 'mine'}")
    assert chosen.stdout == f"{tmp_path / 'mine'}\n"


def test_nor_is_one_that_cannot_be_entered(run, tmp_path):
    code = "import os\nfrom synk_theano_compat._patches import flags\n"
    code += "os.getuid() or os.setuid(65534)\n"
    code += "print(os.path.dirname(flags._compiledir_without_home()))\n"
    (tmp_path / "closed").mkdir(0o000)
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o777)
        env = {"HOME": str(tmp_path / "closed/home"), "TMPDIR": folder}
        assert run(code, env=env).stdout == f"{folder}\n"
