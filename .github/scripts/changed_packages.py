"""Print which packages a change asks to test: each changed one, and all after it; or --all.

    git diff --name-only main... | python .github/scripts/changed_packages.py

Three lines for a workflow's outputs: `packages`, `matrix`, the jobs to run with the folders to
install, and `tooling`: whether what builds and tests the packages has changed. Files of no package
(the workspace, the workflows) ask for everything; prose does not.
"""

from __future__ import annotations

import json
import sys
from typing import Iterable

# In the order of their layers, with what each is built on.
BUILT_ON = {
    "theano-compat": (),
    "synk-shm": (),
    "synk-comm": (),
    "synk-core": ("synk-shm", "synk-comm"),
    "synk-theano": ("theano-compat", "synk-shm", "synk-comm", "synk-core"),
    "synk-pytensor": ("synk-shm", "synk-comm", "synk-core"),
    "synk-extensions": (
        *("theano-compat", "synk-shm", "synk-comm", "synk-core"),
        *("synk-theano", "synk-pytensor"),
    ),
}
PYTHONS = {
    "theano-compat": ("3.9", "3.10", "3.11"),
    "synk-shm": ("3.9", "3.11", "3.13", "3.14"),
    "synk-comm": ("3.9", "3.11", "3.13", "3.14"),
    "synk-core": ("3.9", "3.11", "3.12", "3.13", "3.14"),
    "synk-theano": ("3.9", "3.10", "3.11"),
    "synk-pytensor": ("3.12", "3.13", "3.14"),
    "synk-extensions": ("3.9", "3.11", "3.13"),
}
# They have the Pythons of their engine, and the packages that use one are tested with it.
OF_THEANO, OF_PYTENSOR = {"theano-compat", "synk-theano"}, {"synk-pytensor"}
PROSE_FOLDERS = ("docs/",)
PROSE_SUFFIXES = (".md", ".rst", ".txt")
# Run by the job of each engine, which no change can leave out.
INTEGRATION_FOLDERS = ("integration/", "benchmarks/")
TOOLING = (
    *("scripts/", ".github/", "dev/", "integration/", "benchmarks/", "docs/"),
    *("Makefile", "conftest.py"),
)


def touched_by(path: str) -> set[str]:
    """The packages whose tests one changed path may turn."""
    if path.startswith("packages/"):
        name = path.split("/")[1]
        if name in BUILT_ON:
            return {name, *(other for other, below in BUILT_ON.items() if name in below)}
        return set(BUILT_ON)
    if path.startswith((*PROSE_FOLDERS, *INTEGRATION_FOLDERS)):
        return set()
    if "/" not in path and path.endswith(PROSE_SUFFIXES):
        return set()
    return set(BUILT_ON)


def touches_tooling(path: str) -> bool:
    """Whether a changed path asks for the tests of the tooling."""
    return path.startswith(TOOLING) or path.endswith("pyproject.toml")


def packages_to_test(paths: Iterable[str]) -> list[str]:
    """The packages to test for these changed paths, lowest layer first."""
    wanted: set[str] = set()
    for path in paths:
        wanted |= touched_by(path)
    return [name for name in BUILT_ON if name in wanted]


def members_of(package: str, python: str) -> list[str]:
    """The members of a job, lowest layer first: the package, what it is built on, an engine."""
    wanted = {package, *BUILT_ON[package]}
    if "synk-core" in wanted:
        is_theanos = tuple(map(int, python.split("."))) < (3, 12)
        wanted = wanted - OF_THEANO - OF_PYTENSOR | (OF_THEANO if is_theanos else OF_PYTENSOR)
    return [name for name in BUILT_ON if name in wanted]


def jobs_for(packages: Iterable[str]) -> list[dict[str, str]]:
    """One job for each package and Python, with the folders of the members it installs."""
    return [
        {
            "package": package,
            "python": python,
            "members": " ".join(f"packages/{name}" for name in members_of(package, python)),
        }
        for package in packages
        for python in PYTHONS[package]
    ]


if __name__ == "__main__":
    is_all = sys.argv[1:] == ["--all"]
    changed = [] if is_all else [line.strip() for line in sys.stdin if line.strip()]
    chosen = list(BUILT_ON) if is_all else packages_to_test(changed)
    print("packages=" + json.dumps(chosen))
    print("matrix=" + json.dumps({"include": jobs_for(chosen)}))
    print("tooling=" + json.dumps(is_all or any(map(touches_tooling, changed))))
