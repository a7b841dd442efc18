"""Running the command `synkhronos` as a user does."""

from __future__ import annotations

import os
import subprocess
import sys

LIMIT_S = 300


def command(*arguments, folder=None, program=("-m", "synkhronos_cli"), **changes):
    """Run the command; `changes` are of the environment, None takes a variable away."""
    settings = {"SYNKHRONOS_USE_GPU": "0", "SYNKHRONOS_N_PARALLEL": "2", "COLUMNS": "120"}
    environment = {**os.environ, **settings, **changes}
    return subprocess.run(
        [sys.executable, *program, *map(str, arguments)],
        cwd=folder,
        env={name: value for name, value in environment.items() if value is not None},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
    )
