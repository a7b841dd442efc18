from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import pytest

pytest_plugins = ["synk_shm.testing"]

TIMEOUT_S = 60


@pytest.fixture(autouse=True)
def _clean(no_segments_left: None) -> None:
    """No test leaves a segment behind."""


@pytest.fixture
def descriptors():
    """A function that counts this process's open files."""
    return lambda: len(os.listdir("/proc/self/fd"))


class Script:
    """A fresh interpreter that runs a file, with every warning an error."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._started: list[subprocess.Popen[str]] = []

    def start(self, code: str, *arguments: Any) -> subprocess.Popen[str]:
        path = self._folder / f"script{len(self._started)}.py"
        path.write_text(textwrap.dedent(code))
        process = subprocess.Popen(
            [sys.executable, "-W", "error", str(path), *map(str, arguments)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        self._started.append(process)
        return process

    def run(self, code: str, *arguments: Any) -> str:
        """Run to the end; the exit code must be 0 and stderr empty. Returns stdout."""
        return self.finish(self.start(code, *arguments))

    def finish(self, process: subprocess.Popen[str], input_: str | None = None) -> str:
        out, err = process.communicate(input_, timeout=TIMEOUT_S)
        assert (process.returncode, err) == (0, "")
        return out.strip()

    def end(self) -> None:
        for process in self._started:
            if process.poll() is None:
                process.kill()
            process.wait(TIMEOUT_S)
            for stream in (process.stdin, process.stdout, process.stderr):
                if stream is not None:
                    stream.close()


@pytest.fixture
def script(tmp_path: Path):
    made = Script(tmp_path)
    yield made
    made.end()
