"""The checkout under test: its folders, what its packages declare, and programs run to an end."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ROOT = Path(__file__).resolve().parent.parent
PACKAGES = (
    *("theano-compat", "synk-shm", "synk-comm", "synk-core"),
    *("synk-theano", "synk-pytensor", "synk-extensions"),
)
"""Folders of the packages, each after those that it needs."""

OF_THEANO = ("theano-compat", "synk-theano")
"""Those that need Theano; synk-pytensor needs PyTensor, and the others neither."""

LIMIT_S = 280


def project(folder: str) -> dict[str, Any]:
    path = ROOT / "packages" / folder / "pyproject.toml"
    described: dict[str, Any] = tomllib.loads(path.read_text(encoding="utf-8"))["project"]
    return described


def ran(*command: object, **options: Any) -> subprocess.CompletedProcess[str]:
    """Run a command to its end, for `LIMIT_S` seconds at most, and return all that it printed."""
    words = [str(word) for word in command]
    return subprocess.run(
        words, **{"capture_output": True, "text": True, "timeout": LIMIT_S, **options}
    )
