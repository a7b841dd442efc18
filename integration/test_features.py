"""Each feature of the core is a folder: without it, and its two lines elsewhere, the core works."""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path

import pytest
from _checkout import ROOT, ran

CORE = ROOT / "packages/synk-core"
ROOM = "src/synk_core/_features"
FEATURES = sorted(path.parent.name for path in (CORE / ROOM).glob("*/__init__.py"))
TIMEOUT_S = 1800.0


def without(feature: str, copy: Path) -> None:
    """Copy the core without a feature: its folder, its tests, and two lines."""
    left_out = shutil.ignore_patterns("__pycache__", ".hypothesis", "faults")
    shutil.copytree(CORE, copy, ignore=left_out)
    shutil.rmtree(copy / ROOM / feature)
    shutil.rmtree(copy / "tests/features" / feature, ignore_errors=True)
    table = copy / "src/synk_core/_api/features.py"
    lines = table.read_text(encoding="utf-8").splitlines(keepends=True)
    (imported,) = (line for line in lines if f"synk_core._features.{feature}." in line)
    name = imported.split()[-1]
    kept = [line for line in lines if line != imported and line.strip() != f"{name},"]
    assert len(kept) == len(lines) - 2
    table.write_text("".join(kept), encoding="utf-8")


@pytest.mark.nightly
@pytest.mark.parametrize("feature", FEATURES)
def test_the_core_works_without(feature, tmp_path):
    copy = tmp_path / "packages/synk-core"
    without(feature, copy)
    for name in ("conftest.py", "pyproject.toml"):
        shutil.copy(ROOT / name, tmp_path)
    paths = [copy / "src", *filter(None, [os.environ.get("PYTHONPATH")])]
    done = ran(
        *(sys.executable, "-m", "pytest", "-q", "-W", "ignore", "-p", "no:cacheprovider"),
        copy / "tests",
        env={**os.environ, "PYTHONPATH": os.pathsep.join(map(str, paths)), "SYNK_TESTS": ""},
        cwd=tmp_path,
        timeout=TIMEOUT_S,
    )
    assert done.returncode == 0, done.stdout[-6000:]
