"""Find the C++ compiler, and run commands that may fail."""

from __future__ import annotations

import shutil
import subprocess
import sys

TIMEOUT_S = 60
"""Seconds until a command is killed."""


def find_compiler(flag: str | None) -> str | None:
    """Return the path of the compiler that Theano will use, by the user's flag ``cxx``; or None."""
    if flag is not None:
        return shutil.which(flag.strip('"')) if flag else None
    return shutil.which("clang++" if sys.platform == "darwin" else "g++")


def run_command(command: list[str], environment: dict[str, str] | None = None) -> str | None:
    """Run a command and return what it printed; None if it failed."""
    try:
        done = subprocess.run(
            command,
            env=environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=TIMEOUT_S,
            check=False,
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout if done.returncode == 0 else None
