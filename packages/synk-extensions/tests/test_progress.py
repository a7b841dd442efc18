"""Progress: drawn for a person at a terminal, and for nobody else."""

from __future__ import annotations

import contextlib
import io
import json
import logging
import os
import pty
import time

import pytest
from _programs import zygote

import synk_testing
from synk_testing import engine
from synkhronos import _progress, progress
from synkhronos._default import reporter
from synkhronos._progress import track
from synkhronos.exceptions import InputTypeError, InputValueError

PROGRAM = """
import os, sys, time
if sys.argv[2]:
    os.dup2(os.open(sys.argv[2], os.O_WRONLY | os.O_CREAT), 1)
import synkhronos
from synkhronos import _progress
_progress.DELAY_S = 0.2
exec(sys.argv[1])
with _progress.track("short"):
    assert sys.argv[1] or "rich.progress" not in sys.modules, "nothing is drawn yet"
with _progress.track("training", total=4) as advance:
    for step in range(4):
        advance(1, f"loss {step}")
        time.sleep(1.0 if step == 3 else 0.1)  # drawn ten times a second, on a quiet machine
        if step == 2:
            with _progress.track("compiling 'f'"):
                time.sleep(1.0)
                print("a documented line")
print("the end")
"""


def on_a_terminal(before="", to_file=""):
    """What a program shows on a terminal; what it prints may go to a file."""
    master, slave = pty.openpty()
    settings = {"TERM": "xterm", "COLUMNS": "100", "SYNKHRONOS_PROGRESS": ""}
    how = {"terminal": slave, "environment": settings, "stacks": False, "zygote": zygote()}
    with os.fdopen(master, "rb", 0) as terminal, contextlib.ExitStack() as ends:
        ends.callback(os.close, slave)
        with synk_testing.Program(PROGRAM, before, to_file, **how) as process:
            ends.close()
            shown = bytearray()
            with contextlib.suppress(OSError):  # nobody has the terminal open any more
                while piece := terminal.read(65536):
                    shown += piece
            assert process.wait() == 0, shown.decode()
    return shown.decode()


@pytest.mark.parametrize("to_file", [False, True])
def test_on_a_terminal_work_is_shown_while_it_lasts(tmp_path, to_file):
    path = tmp_path / "printed"
    shown = on_a_terminal(to_file=path if to_file else "")
    texts = ("training", "4/4", "loss 2", "compiling 'f'")
    printed = path.read_text() if to_file else shown
    assert all(text in shown for text in texts)
    assert "short" not in shown
    assert "a documented line" in printed
    assert printed.rstrip().endswith("the end")
    assert not to_file or printed == "a documented line\nthe end\n"
    assert "\x1b[?25h" in shown  # the cursor is back


@pytest.fixture
def state(monkeypatch):
    monkeypatch.setenv("SYNKHRONOS_PROGRESS", "")
    monkeypatch.setattr(_progress._Display, "setting", None)
    return _progress._Display


def test_settings_of_progress(state, monkeypatch):
    assert _progress._are_drawn() is None
    monkeypatch.setattr(logging.getLogger("synkhronos"), "level", logging.WARNING)
    assert _progress._are_drawn() is False
    for given, shown in (("0", False), ("1", True)):
        monkeypatch.setenv("SYNKHRONOS_PROGRESS", given)
        for setting, chosen in ((None, shown), (True, True), (False, False), (None, shown)):
            progress(setting)
            assert _progress._are_drawn() is chosen
    with pytest.raises(InputTypeError, match="got 'yes', expected True, False or None"):
        progress("yes")
    monkeypatch.setenv("SYNKHRONOS_PROGRESS", "maybe")
    with pytest.raises(InputValueError, match="SYNKHRONOS_PROGRESS: got 'maybe', expected 0 or 1"):
        with track("work"):
            pass


def test_elsewhere_a_line_reports_long_work(state, monkeypatch, capsys):
    monkeypatch.setattr(_progress, "LINE_S", 0.0)
    with track("compiling 'f'"):
        deadline, err = time.monotonic() + 60, ""
        while not err and time.monotonic() < deadline:
            time.sleep(0.01)
            err = capsys.readouterr().err
    assert err == "Synkhronos: compiling 'f', for 0 s so far\n"
    with track("training", 3):  # epochs have lines of their own
        time.sleep(0.1)
    monkeypatch.setattr(_progress, "LINE_S", 600)
    with track("of a moment"):
        pass
    assert capsys.readouterr().err == ""


class WriteOnly:
    """As some programs put in the place of standard streams."""

    def write(self, text):
        pass


closed = io.StringIO()
closed.close()


@pytest.mark.parametrize("stream", [WriteOnly(), None, closed, io.StringIO()])
def test_a_stream_that_can_do_little_ends_no_program_and_errors_are_the_users(
    state, monkeypatch, stream
):
    monkeypatch.setattr("sys.stdout", stream)
    monkeypatch.setattr("sys.stderr", stream)
    reporter(True)("a line")
    assert _progress._are_drawn() is None
    monkeypatch.setattr(_progress, "LINE_S", 0.0)
    with track("work"):
        time.sleep(0.05)
    state.setting = True
    monkeypatch.setattr(_progress, "DELAY_S", 0.0)
    with pytest.raises(KeyError), track("work") as advance:
        time.sleep(0.05)
        advance()
        raise KeyError
    assert state.bars is None


FORK = """
import os, threading
held = threading.Event()

def hold():
    bars = _progress._Display.bars
    with bars._lock, bars.console._lock:  # as threads do at any moment
        held.set()
        time.sleep(0.3)

with _progress.track("epoch", total=2) as advance:
    while not (_progress._Display.bars and _progress._Display.bars.tasks):
        time.sleep(0.01)
    threading.Thread(target=hold).start()
    held.wait()
    child = os.fork()
    if not child:
        with _progress.track("of the child"):
            time.sleep(0.2)
            print("a line of the child", flush=True)
        advance(1)
        os._exit(0)
    deadline = time.monotonic() + 20
    while not (gone := os.waitpid(child, os.WNOHANG))[0] and time.monotonic() < deadline:
        time.sleep(0.01)
    if not gone[0]:
        os.kill(child, 9)
        os.waitpid(child, 0)
    print("the child ended with", gone[1] if gone[0] else "nothing: it hung")
"""


def test_a_child_that_is_forked_meanwhile_is_free():
    shown = on_a_terminal(FORK)
    assert "a line of the child" in shown
    assert "the child ended with 0" in shown


TRACED = """
import synkhronos as synk
for n in (2, 1):
    synk.fork(n, use_gpu=False, verbose=False)
    x = T.dvector("x")
    f = synk.function([x], x.mean(), name=f"f{n}", mode="FAST_COMPILE")
    f(np.ones(4))
    synk.close()
"""


def test_the_environment_records_every_fork(tmp_path):
    path = tmp_path / "trace.json"
    done = zygote().run(engine.PROGRAM + TRACED, environment={"SYNKHRONOS_TIMELINE": str(path)})
    assert done.status == 0, done.err
    for file, ranks, name in ((path, 2, "f2"), (tmp_path / "trace.2.json", 1, "f1")):
        trace = json.loads(file.read_text())
        assert trace["otherData"]["ranks"] == ranks
        assert name in {event["name"] for event in trace["traceEvents"]}
