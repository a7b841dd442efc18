"""Ask a fresh process for an answer."""

from __future__ import annotations

import subprocess
from collections.abc import Mapping, Sequence


class Failed(Exception):
    """A process ended badly or took too long; the text says how."""


def ask(command: Sequence[str], limit_s: float, environment: Mapping[str, str]) -> str:
    """Return what a command prints; raise `Failed` if it ends badly, or after `limit_s` seconds."""
    how = {"env": environment, "stdin": subprocess.DEVNULL, "capture_output": True, "text": True}
    try:
        done = subprocess.run(command, timeout=limit_s, check=False, **how)
    except subprocess.TimeoutExpired:
        raise Failed(f"not done after {limit_s:.0f} s") from None
    if done.returncode:
        lines = [line.strip() for line in done.stderr.splitlines() if line.strip()]
        words = " / ".join(lines[-4:])[-600:] or "it said nothing"
        raise Failed(f"exit status {done.returncode}: {words}")
    return done.stdout
