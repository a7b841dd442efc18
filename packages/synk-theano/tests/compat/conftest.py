"""Every test runs Theano in a fresh process, started as an installed environment would start it."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Callable, Optional

import pytest

import synk_theano_compat

SITE = Path(synk_theano_compat.__file__).parent.parent
TIMEOUT_S = 400

Run = Callable[..., "subprocess.CompletedProcess[str]"]


def environment(changes: Optional[dict[str, str]] = None) -> dict[str, str]:
    """Return the environment without what a user may have set, and with ``changes``."""
    clean = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("THEANO", "SYNK_THEANO_COMPAT", "PYTHON"))
    }
    return {**clean, "THEANORC": os.devnull, **(changes or {})}


def command(code: str, options: tuple[str, ...] = ()) -> list[str]:
    """Return a command that reads the .pth as site-packages are read, then runs ``code``."""
    start = f"import site; site.addsitedir({str(SITE)!r})\n"
    return [sys.executable, *options, "-c", start + code]


@pytest.fixture
def run() -> Run:
    """Run code in a fresh process; its output must show no traceback unless ``fails``."""

    def run_code(
        code: str,
        *,
        env: Optional[dict[str, str]] = None,
        skip: str = "",
        flags: str = "",
        options: tuple[str, ...] = (),
        fails: bool = False,
    ) -> subprocess.CompletedProcess[str]:
        changes = dict(env or {})
        if skip:
            changes["SYNK_THEANO_COMPAT_SKIP"] = skip
        if flags:
            changes["THEANO_FLAGS"] = flags
        done = subprocess.run(
            command(code, options),
            env=environment(changes),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=TIMEOUT_S,
            check=False,
        )
        assert (done.returncode != 0) == fails, f"{done.stdout}\n{done.stderr}"
        return done

    return run_code


@pytest.fixture
def spawn() -> Iterator[Callable[..., "subprocess.Popen[str]"]]:
    """Start code in a fresh process, with pipes; whatever still runs at the end is killed."""
    started: list[subprocess.Popen[str]] = []

    def spawn_code(
        code: str, *, env: Optional[dict[str, str]] = None, flags: str = ""
    ) -> subprocess.Popen[str]:
        changes = {**(env or {}), **({"THEANO_FLAGS": flags} if flags else {})}
        process = subprocess.Popen(
            command(code),
            env=environment(changes),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        started.append(process)
        return process

    yield spawn_code
    for process in started:
        process.kill()
        process.communicate(timeout=TIMEOUT_S)
