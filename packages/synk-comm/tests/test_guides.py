"""The program of each guide prints what it says, on three ranks."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from _helpers import printed_by

DOCS = Path(__file__).parents[1] / "docs"
SIZE = 3
PAGES = sorted(path.stem for path in DOCS.glob("from_*.md"))


def program(page: str) -> str:
    """Return the one program of a page."""
    text = (DOCS / f"{page}.md").read_text(encoding="utf-8")
    (code,) = re.findall(r"^```python\n(.*?)^```", text, re.DOTALL | re.MULTILINE)
    return code


def promised(code: str, rank: int) -> list[str]:
    """Return what one rank prints: all the same, unless it says ``rank 0: this; rank 1: that``."""
    lines = []
    for promise in re.findall(r"#-> (.*)", code):
        if not promise.startswith("rank "):
            lines.append(promise)
        lines += re.findall(rf"rank {rank}: (.*?)(?:; rank \d|$)", promise)
    return lines


def test_there_are_two_guides():
    assert PAGES == ["from_mpi4py", "from_torch_distributed"]


@pytest.mark.parametrize("page", PAGES)
def test_program(tmp_path, page):
    path = tmp_path / "program.py"
    path.write_text(program(page), encoding="utf-8")
    printed = printed_by("-m", "synk_comm.run", "-n", SIZE, path).splitlines()
    for rank in range(SIZE):
        mine = [line[4:] for line in printed if line.startswith(f"[{rank}] ")]
        assert mine == promised(program(page), rank) != []
