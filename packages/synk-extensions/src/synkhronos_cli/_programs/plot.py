"""The option ``--plot``."""

from __future__ import annotations

import importlib.util
from pathlib import Path

from synkhronos_cli._terminal import fail

FORMATS = (".png", ".svg", ".pdf")


def require_plots(path: str) -> None:
    """Exit with one line unless matplotlib is installed and can write such a file."""
    if importlib.util.find_spec("matplotlib") is None:
        fail("--plot needs matplotlib: pip install 'synkhronos[plot]'", 1)
    target = Path(path)
    if target.suffix.lower() not in FORMATS:
        fail(f"--plot {path}: expected a file that ends with {', '.join(FORMATS)}")
    if not target.absolute().parent.is_dir():
        fail(f"--plot {path}: there is no folder {target.parent}")
