"""What both commands that draw ask first: may a picture be written there?"""

from __future__ import annotations

import importlib.util
from pathlib import Path

from ._terminal import fail

FORMATS = (".png", ".svg", ".pdf")


def require_plots(path: str) -> None:
    """End with one line unless matplotlib is here and can write such a file."""
    if importlib.util.find_spec("matplotlib") is None:
        fail("--plot needs matplotlib: pip install 'synkhronos[plot]'", 1)
    target = Path(path)
    if target.suffix.lower() not in FORMATS:
        fail(f"--plot {path}: expected a file that ends with {', '.join(FORMATS)}")
    if not target.absolute().parent.is_dir():
        fail(f"--plot {path}: there is no folder {target.parent}")
