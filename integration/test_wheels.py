"""The built wheels are whole: installed in a fresh environment, away from the source, they work."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
FOLDERS = ("synk-shm", "synk-comm", "synk-theano", "synk-extensions")
INSTALL_LIMIT_S = 240

pytestmark = pytest.mark.slow


def run(*command: object, **options: object) -> str:
    """Run a command to its end and return what it printed; everything it said is in a failure."""
    done = subprocess.run(
        [str(part) for part in command],
        capture_output=True,
        text=True,
        check=False,
        timeout=INSTALL_LIMIT_S,
        **options,  # type: ignore[call-overload]
    )
    assert done.returncode == 0, f"{command}:\n{done.stdout}\n{done.stderr}"
    return str(done.stdout)


@pytest.fixture(scope="session")
def wheels(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """One wheel for each package folder, built from a copy of its source."""
    source = tmp_path_factory.mktemp("source")
    target = tmp_path_factory.mktemp("wheels")
    for folder in FOLDERS:
        # A copy, so that the build can leave nothing in the tree and take nothing left from it.
        shutil.copytree(
            ROOT / "packages" / folder,
            source / folder,
            ignore=shutil.ignore_patterns("__pycache__", "dist", "build", "*.egg-info"),
        )
    copies = [source / folder for folder in FOLDERS]
    run(sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "-w", target, *copies)
    built = {}
    for folder in FOLDERS:
        distribution = "synkhronos" if folder == "synk-extensions" else folder.replace("-", "_")
        (built[folder],) = target.glob(f"{distribution}-*.whl")
    return built


def make_environment(folder: Path, wheels: list[Path], environment: dict[str, str]) -> Path:
    """Create a virtual environment with these wheels and return its interpreter."""
    run(sys.executable, "-m", "venv", folder)
    python = folder / "bin" / "python"
    run(python, "-m", "pip", "install", "--quiet", *wheels, env=pip_environment(environment))
    return python


def pip_environment(environment: dict[str, str]) -> dict[str, str]:
    """The clean environment, with the cache and settings of the user's own pip where there are."""
    home = {name: os.environ[name] for name in ("HOME", "XDG_CACHE_HOME") if name in os.environ}
    return {**environment, **home, "PIP_DISABLE_PIP_VERSION_CHECK": "1"}


@pytest.mark.parametrize("folder", FOLDERS)
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


def test_the_first_example_runs_from_the_wheels(
    wheels: dict[str, Path], clean_environment: dict[str, str], tmp_path: Path
) -> None:
    python = make_environment(tmp_path / "venv", list(wheels.values()), clean_environment)
    example = shutil.copy(ROOT / "examples" / "intro.py", tmp_path)
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    printed = run(python, example, cwd=elsewhere, env=clean_environment)
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
    python = make_environment(tmp_path / "venv", [wheels[folder]], clean_environment)
    listed = run(python, "-m", "pip", "list", "--format=freeze", env=clean_environment)
    installed = {line.split("==")[0].replace("_", "-").lower() for line in listed.splitlines()}
    assert installed - {"pip", "setuptools", "wheel"} == allowed
    program = (
        f"import sys, {module}\n"
        f"missing = [name for name in {module}.__all__ if not hasattr({module}, name)]\n"
        "assert not missing, missing\n"
        "assert 'theano' not in sys.modules\n"
        f"print({module}.__version__)\n"
    )
    printed = run(python, "-c", program, cwd=tmp_path, env=clean_environment)
    assert printed.strip() == wheels[folder].name.split("-")[1]
