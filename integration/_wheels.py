"""The packages as users get them: wheels, in an environment of their own."""

from __future__ import annotations

import json
import os
import shutil
import sys
from importlib import metadata
from pathlib import Path

from _checkout import PACKAGES, ROOT, ran
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

INSTALL_LIMIT_S = 1000
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
    # Some are for newer Pythons than this one.
    options.append("--ignore-requires-python")
    run(*PIP, "wheel", "--no-deps", *options, "-w", target, *copies)
    built = {}
    for folder in PACKAGES:
        distribution = "synkhronos" if folder == "synk-extensions" else folder.replace("-", "_")
        (built[folder],) = target.glob(f"{distribution}-*.whl")
    return built


def make_environment(
    folder: Path, wheels: list[Path], base: object = sys.executable, extra: str = ""
) -> Path:
    """Create a virtual environment with these wheels and what they need; return its interpreter.

    What they need comes from the environment of the interpreter `base`, without a network; or from
    the index, if SYNK_TESTS=all. `extra` is one of synkhronos, whose wheel is among them.
    """
    run(base, "-m", "venv", "--without-pip", folder)
    python = folder / "bin" / "python"
    pip = (*PIP, "--python", python)
    names = [path.name.partition("-")[0] for path in wheels]
    extras = [f"[{extra}]" * (extra != "" and name == "synkhronos") for name in names]
    if ALL:
        run(*pip, "install", *(f"{path}{chosen}" for path, chosen in zip(wheels, extras)))
        return python
    run(*pip, "install", "--no-deps", *wheels)
    site = Path(run(python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))").strip())
    for distribution in needed([name + chosen for name, chosen in zip(names, extras)], base):
        for name in {path.parts[0] for path in distribution.files or ()} - {".."}:
            place = site / name
            if not place.exists() and name != "__pycache__":
                place.symlink_to(str(distribution.locate_file(name)))
    return python


def needed(names: list[str], base: object) -> list[metadata.Distribution]:
    """Return the distributions that these need in an interpreter's environment, also indirectly."""
    asked = "import json, sys; print(json.dumps([sys.path, '%d.%d' % sys.version_info[:2]]))"
    places, version = json.loads(run(base, "-c", asked))
    found: dict[str, metadata.Distribution] = {}
    waiting = [Requirement(name) for name in names]
    given = {canonicalize_name(requirement.name) for requirement in waiting}
    seen = set()
    while waiting:
        requirement = waiting.pop()
        if str(requirement) in seen:
            continue
        seen.add(str(requirement))
        distribution = next(
            iter(metadata.Distribution.discover(name=requirement.name, path=places)), None
        )
        assert distribution is not None, f"{base} has no {requirement}"
        name = canonicalize_name(requirement.name)
        if name not in given:
            found[name] = distribution
        for text in distribution.requires or ():
            one = Requirement(text)
            extras = ("", *requirement.extras)
            if one.marker is None or any(
                one.marker.evaluate({"extra": extra, "python_version": version}) for extra in extras
            ):
                waiting.append(one)
    return list(found.values())
