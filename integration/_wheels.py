"""The packages as users get them: wheels, in an environment of their own."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
FOLDERS = ("synk-shm", "synk-comm", "synk-theano", "synk-extensions")
INSTALL_LIMIT_S = 240


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


def build(source: Path, target: Path) -> dict[str, Path]:
    """One wheel for each package folder, built from a copy of its source."""
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
