"""The packages as users get them: wheels, in an environment of their own."""

from __future__ import annotations

import os
import shutil
import sys
from importlib import metadata
from pathlib import Path

from _checkout import PACKAGES, ROOT, ran
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

INSTALL_LIMIT_S = 240
ALL = os.environ.get("SYNK_TESTS") == "all"
PIP = (sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check")


def run(*command: object, **options: object) -> str:
    """Run a command to its end and return what it printed; a failure shows both outputs."""
    done = ran(*command, **{"timeout": INSTALL_LIMIT_S, **options})
    assert done.returncode == 0, f"{command}:\n{done.stdout}\n{done.stderr}"
    return done.stdout


def build(source: Path, target: Path) -> dict[str, Path]:
    """Build a wheel of each package from a copy of its source; return them by folder."""
    for folder in PACKAGES:
        # A copy, so that the build can leave nothing in the tree and take nothing left from it.
        shutil.copytree(
            ROOT / "packages" / folder,
            source / folder,
            ignore=shutil.ignore_patterns("__pycache__", "dist", "build", "*.egg-info"),
        )
    copies = [source / folder for folder in PACKAGES]
    # What builds them is here already; whether the index has it, too, is seen at night.
    options = [] if ALL else ["--no-build-isolation"]
    run(*PIP, "wheel", "--no-deps", *options, "-w", target, *copies)
    built = {}
    for folder in PACKAGES:
        distribution = "synkhronos" if folder == "synk-extensions" else folder.replace("-", "_")
        (built[folder],) = target.glob(f"{distribution}-*.whl")
    return built


def make_environment(folder: Path, wheels: list[Path]) -> Path:
    """Create a virtual environment with these wheels and what they need; return its interpreter.

    What they need is taken from this environment, with which no network is asked; all of it comes
    from the index instead if SYNK_TESTS=all.
    """
    run(sys.executable, "-m", "venv", "--without-pip", folder)
    python = folder / "bin" / "python"
    pip = (*PIP, "--python", python)
    if ALL:
        run(*pip, "install", *wheels)
        return python
    run(*pip, "install", "--no-deps", *wheels)
    site = Path(run(python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))").strip())
    for distribution in needed([path.name.partition("-")[0] for path in wheels]):
        for name in {path.parts[0] for path in distribution.files or ()} - {".."}:
            place = site / name
            if not place.exists() and name != "__pycache__":
                place.symlink_to(str(distribution.locate_file(name)))
    return python


def needed(names: list[str]) -> list[metadata.Distribution]:
    """Return this environment's distributions that these need, directly or through others."""
    found: dict[str, metadata.Distribution] = {}
    waiting, given = [Requirement(name) for name in names], {canonicalize_name(n) for n in names}
    seen = set()
    while waiting:
        requirement = waiting.pop()
        if str(requirement) in seen:
            continue
        seen.add(str(requirement))
        distribution = metadata.distribution(requirement.name)
        name = canonicalize_name(requirement.name)
        if name not in given:
            found[name] = distribution
        for text in distribution.requires or ():
            one = Requirement(text)
            extras = {"extra": ""}, *({"extra": extra} for extra in requirement.extras)
            if one.marker is None or any(one.marker.evaluate(extra) for extra in extras):
                waiting.append(one)
    return list(found.values())
