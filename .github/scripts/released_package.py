"""Print the folder of the package that a release tag stands for, if the tag is true.

    python .github/scripts/released_package.py synk-shm-v0.1.0

The tag is `<distribution>-v<version>`, as in pyproject.toml and CHANGELOG.md. Needs Python 3.11.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

import tomllib

ROOT = Path(__file__).resolve().parents[2]


def folder_of(tag: str) -> str:
    """The folder under packages/ that a tag releases; ValueError says what does not fit."""
    parts = re.fullmatch(r"(?P<name>[a-z][a-z-]*)-v(?P<version>\d+\.\d+\.\d+[a-z0-9.]*)", tag)
    if parts is None:
        raise ValueError(f"got tag {tag!r}, expected <package>-v<version> as synk-shm-v0.1.0")
    versions = {}
    for path in sorted(ROOT.glob("packages/*/pyproject.toml")):
        project = tomllib.loads(path.read_text(encoding="utf-8"))["project"]
        versions[project["name"]] = project["version"]
        if project["name"] != parts["name"]:
            continue
        if project["version"] != parts["version"]:
            raise ValueError(f"tag {tag!r}, but {path.parent.name} has {project['version']}")
        changelog = (path.parent / "CHANGELOG.md").read_text(encoding="utf-8")
        if not re.search(rf"^## \[?{re.escape(parts['version'])}\b", changelog, re.MULTILINE):
            raise ValueError(f"{path.parent.name}/CHANGELOG.md has no {parts['version']}")
        return path.parent.name
    raise ValueError(f"got package {parts['name']!r}, expected one of {sorted(versions)}")


if __name__ == "__main__":
    try:
        print("folder=" + folder_of(sys.argv[1]))
    except ValueError as fault:
        sys.exit(f"error: {fault}")
