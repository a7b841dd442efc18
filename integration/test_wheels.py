"""The built wheels are whole: installed in a fresh environment, away from the source, they work."""

from __future__ import annotations

import shutil
import zipfile
from pathlib import Path

import pytest
from _checkout import PACKAGES, ROOT
from _wheels import make_environment, run

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("folder", PACKAGES)
def test_a_wheel_holds_every_module_of_its_source(wheels: dict[str, Path], folder: str) -> None:
    source = ROOT / "packages" / folder / "src"
    expected = {
        path.relative_to(source).as_posix()
        for path in source.rglob("*")
        if path.is_file() and "__pycache__" not in path.parts and ".egg-info" not in str(path)
    }
    assert any(name.endswith("py.typed") for name in expected)
    names = set(zipfile.ZipFile(wheels[folder]).namelist())
    assert expected - names == set()
    foreign = {name for name in names - expected if ".dist-info/" not in name}
    assert {name for name in foreign if not name.endswith(".pth")} == set()


@pytest.mark.nightly  # by day, the same program runs as a demo, in test_new_user.py
def test_the_first_example_runs_from_the_wheels(
    installed: Path, clean_environment: dict[str, str], tmp_path: Path
) -> None:
    example = shutil.copy(ROOT / "examples" / "intro.py", tmp_path)
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    printed = run(installed, example, cwd=elsewhere, env=clean_environment)
    assert printed.splitlines()[-1] == "All assertions passed."
    assert list(elsewhere.iterdir()) == [], "a program leaves no file behind"


@pytest.mark.parametrize(
    ("folder", "module", "allowed"),
    [
        ("synk-shm", "synk_shm", {"synk-shm", "numpy", "posix-ipc"}),
        ("synk-comm", "synk_comm", {"synk-comm", "numpy", "pyzmq"}),
    ],
)
def test_a_lower_package_works_alone(
    wheels: dict[str, Path],
    clean_environment: dict[str, str],
    tmp_path: Path,
    folder: str,
    module: str,
    allowed: set[str],
) -> None:
    python = make_environment(tmp_path / "venv", [wheels[folder]])
    names = "print(*(d.metadata['Name'] for d in importlib.metadata.distributions()))"
    listed = run(python, "-c", f"import importlib.metadata; {names}", env=clean_environment)
    assert {name.replace("_", "-").lower() for name in listed.split()} == allowed
    program = (
        f"import sys, {module}\n"
        f"missing = [name for name in {module}.__all__ if not hasattr({module}, name)]\n"
        "assert not missing, missing\n"
        "assert 'theano' not in sys.modules\n"
        f"print({module}.__version__)\n"
    )
    printed = run(python, "-c", program, cwd=tmp_path, env=clean_environment)
    assert printed.strip() == wheels[folder].name.split("-")[1]
