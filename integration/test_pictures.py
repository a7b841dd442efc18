"""The documentation's pictures are what their script draws, and are on a page."""

from __future__ import annotations

import os
import re
import sys
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest
from _checkout import ROOT, ran

DOCS = ROOT / "docs"
PICTURES = DOCS / "pictures"
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


def test_pictures_are_small_and_on_a_page() -> None:
    pages = "\n".join(page.read_text("utf-8") for page in (*DOCS.glob("*.md"), ROOT / "README.md"))
    for path in (*PICTURES.glob("*.svg"), DOCS / "speed.svg", *DOCS.glob("_static/*.svg")):
        assert path.stat().st_size < LARGEST
        assert f"{path.relative_to(DOCS)})" in pages or path.stem == "logo", path
    for name in ("call", "failure", "data"):
        drawing = ET.parse(DOCS / f"_static/{name}.svg")
        for part in ("title", "desc"):
            assert drawing.findtext(f"{{http://www.w3.org/2000/svg}}{part}")


def test_the_first_page_shows_recorded_speeds(tmp_path: Path) -> None:
    drawn, kept = tmp_path / "speed.svg", DOCS / "speed.svg"
    ran(sys.executable, ROOT / "integration/benchmarks/speed.py", drawn, check=True)
    assert drawn.read_text("utf-8") == kept.read_text("utf-8")
    said = (ROOT / "README.md").read_text("utf-8").split("docs/speed.svg)")[1].split("\n\n- ")[0]
    speeds = re.findall(r"\b\d{3,}\b", said)
    assert len(speeds) == 3
    assert [speed for speed in speeds if f">{speed}, " not in kept.read_text("utf-8")] == []
