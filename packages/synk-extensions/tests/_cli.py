"""Running the command `synkhronos` as a user does."""

from __future__ import annotations

import subprocess
import sys

from click.testing import CliRunner

import synk_testing
from synkhronos_cli import _app

LIMIT_S = 300
SETTINGS = {"SYNKHRONOS_USE_GPU": "0", "SYNKHRONOS_N_PARALLEL": "2", "COLUMNS": "120"}


def command(*arguments, folder=None, program=("-m", "synkhronos_cli"), **changes):
    """Run the command; `changes` are of the environment, None takes a variable away."""
    words = [*program, *map(str, arguments)]
    environment = {**SETTINGS, **changes}
    done = synk_testing.run(words, folder=folder, environment=environment, limit_s=LIMIT_S)
    return subprocess.CompletedProcess(words, *done)


def invoke(*arguments, **options):
    # click 8.1, the last for Python 3.9, else has both streams in one.
    apart = {} if sys.version_info >= (3, 10) else {"mix_stderr": False}
    return CliRunner(**apart).invoke(
        _app._app, list(map(str, arguments)), prog_name="synkhronos", **options
    )
