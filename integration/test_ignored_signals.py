"""Tests that end a child by a signal do so also where pytest was started with signals ignored."""

from __future__ import annotations

import shutil
import sys

import pytest
from _checkout import ROOT, ran

IGNORED = ["SIGHUP", "SIGINT", "SIGQUIT"]  # by nohup, and by a shell for what it starts with `&`

PROGRAM = """
import os, runpy, signal, subprocess, sys
names = sys.argv[2:]
assert all(signal.getsignal(getattr(signal, name)) is signal.SIG_IGN for name in names)
runpy.run_path(sys.argv[1])
for name in names:
    end = f"import os, signal; os.kill(os.getpid(), signal.{name})"
    command = [sys.executable, "-c", end]
    status = subprocess.run(command, stderr=subprocess.DEVNULL, timeout=60).returncode
    assert status == -getattr(signal, name), (name, status)
os.kill(os.getpid(), signal.SIGHUP)
print("still here")
"""


@pytest.mark.skipif(shutil.which("sh") is None, reason="needs a shell, to have signals ignored")
def test_children_begin_with_the_usual_signals():
    trap = f"trap '' {' '.join(name[3:] for name in IGNORED)}; exec \"$@\""
    program = (sys.executable, "-c", PROGRAM, ROOT / "conftest.py", *IGNORED)
    done = ran("sh", "-c", trap, "sh", *program, timeout=200)
    assert done.returncode == 0, done.stderr
    assert done.stdout == "still here\n"
