"""The documentation's pictures are what their script draws."""

from __future__ import annotations

import os
import sys
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest
from _checkout import ROOT, ran

PICTURES = ROOT / "docs/pictures"
LIMIT_S = 120
LARGEST = 100_000


@pytest.mark.nightly
def test_the_script_draws_all_pictures(tmp_path: Path) -> None:
    environment = {**os.environ, "SYNKHRONOS_USE_GPU": "0"}
    program = (sys.executable, PICTURES / "make.py", tmp_path)
    ran(*program, env=environment, timeout=LIMIT_S, check=True)
    for path in tmp_path.iterdir():
        assert ET.parse(path).getroot().tag.endswith("svg")
    assert {path.name for path in tmp_path.iterdir()} == {p.name for p in PICTURES.glob("*.svg")}


@pytest.mark.parametrize("path", sorted(PICTURES.glob("*.svg")), ids=lambda path: path.name)
def test_pictures_are_small_and_on_a_page(path: Path) -> None:
    assert path.stat().st_size < LARGEST
    assert f"(pictures/{path.name})" in (PICTURES.parent / "seeing.md").read_text("utf-8")
