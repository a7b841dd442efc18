"""``synkhronos check script.py``: the script runs where its functions are looked at."""

from __future__ import annotations

from typing import Sequence

from ._launch import replace, script_path


def run_check(script: str, arguments: Sequence[str]) -> None:
    """Go on as the program that runs a script and reports; see ``synkhronos/_checking``."""
    replace(["-m", "synkhronos._checking", script_path(script), *arguments], {})
