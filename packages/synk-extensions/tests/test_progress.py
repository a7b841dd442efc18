"""Progress: drawn for a person at a terminal, and for nobody else."""

from __future__ import annotations

import json
import os
import pty
import subprocess
import sys
import time

import pytest

from synkhronos import progress
from synkhronos._progress import Display, track
from synkhronos.exceptions import InputTypeError

PROGRAM = """
import sys, time
import synkhronos
from synkhronos import _progress
_progress.DELAY_S = 0.05
exec(sys.argv[1])
with _progress.track("training", total=4) as bar:
    for step in range(4):
        bar.advance(1, f"loss {step}")
        time.sleep(0.1)
        if step == 2:
            with _progress.track("compiling 'f'"):
                time.sleep(0.3)
                print("a documented line")
with _progress.track("short"):
    pass
print("the end")
"""


def on_a_terminal(before="", to_file=False):
    """What a program shows on a terminal, and what it prints to a file, if it does."""
    master, slave = pty.openpty()
    try:
        process = subprocess.Popen(
            [sys.executable, "-c", PROGRAM, before],
            stdin=slave,
            stdout=subprocess.PIPE if to_file else slave,
            stderr=slave,
            env={**os.environ, "TERM": "xterm", "COLUMNS": "100"},
        )
        os.close(slave)
        slave = -1
        shown = bytearray()
        while True:
            try:
                piece = os.read(master, 65536)
            except OSError:  # nobody has the terminal open any more
                break
            if not piece:
                break
            shown += piece
        printed = process.communicate(timeout=60)[0]
        assert process.returncode == 0, shown.decode()
        return shown.decode(), (printed or b"").decode()
    finally:
        os.close(master)
        if slave >= 0:
            os.close(slave)


def test_on_a_terminal_work_is_shown_while_it_lasts():
    shown, _ = on_a_terminal()
    for text in ("training", "4/4", "loss 2", "compiling 'f'", "a documented line", "the end"):
        assert text in shown
    assert "short" not in shown
    assert shown.rstrip().endswith("the end")
    assert "\x1b[?25h" in shown  # the cursor is back


def test_what_is_printed_to_a_file_is_not_touched():
    shown, printed = on_a_terminal(to_file=True)
    assert "training" in shown
    assert printed == "a documented line\nthe end\n"


@pytest.mark.parametrize(
    "before",
    [
        "synkhronos.progress(False)",
        "import logging; logging.getLogger('synkhronos').setLevel(logging.WARNING)",
    ],
)
def test_one_call_or_a_logging_level_keeps_it_quiet(before):
    shown, _ = on_a_terminal(before)
    assert shown.split("\r\n") == ["a documented line", "the end", ""]


def test_without_a_terminal_nothing_is_shown():
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, ""], capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout == "a documented line\nthe end\n"
    assert done.stderr == ""


def test_what_it_takes():
    with pytest.raises(InputTypeError, match="got 'yes', expected True, False or None"):
        progress("yes")


def test_an_error_in_the_work_is_the_users(monkeypatch):
    monkeypatch.setattr("synkhronos._progress.DELAY_S", 0.0)
    display = Display()
    display.setting = True
    monkeypatch.setattr("synkhronos._progress._display", display)
    with pytest.raises(KeyError), track("work"):
        time.sleep(0.05)
        raise KeyError
    assert display._progress is None


TRACED = """
import numpy as np, theano.tensor as T, synkhronos as synk
for n in (2, 1):
    synk.fork(n, use_gpu=False, verbose=False)
    x = T.dvector("x")
    f = synk.function([x], x.mean(), name=f"f{n}", mode="FAST_COMPILE")
    f(np.ones(4))
    synk.close()
"""


def test_the_environment_has_every_fork_recorded(tmp_path):
    path = tmp_path / "trace.json"
    environment = {**os.environ, "SYNKHRONOS_TIMELINE": str(path)}
    subprocess.run([sys.executable, "-c", TRACED], env=environment, timeout=120, check=True)
    for file, ranks, name in ((path, 2, "f2"), (tmp_path / "trace.2.json", 1, "f1")):
        trace = json.loads(file.read_text())
        assert trace["otherData"]["ranks"] == ranks
        assert name in {event["name"] for event in trace["traceEvents"]}
