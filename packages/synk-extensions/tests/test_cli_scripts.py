"""``synkhronos check`` and ``synkhronos trace``: a user's script runs as ever, and is looked at."""

from __future__ import annotations

import json
import os
import signal

import pytest
from _cli import LIMIT_S, SETTINGS, command
from _programs import zygote

import synk_testing

GRAPH = """
import sys
import numpy as np
import theano, theano.tensor as T
import synkhronos as synk

synk.fork(2, use_gpu=False, verbose=False)
x = T.matrix("x")
w = theano.shared(np.zeros(3), name="w")
g = theano.shared(np.zeros(3), name="g")
"""
WRONG = """
f = synk.function([x], [(x.std(axis=0), "avg"), (x.mean(), "avg")], name="spread")
grad = synk.function([x], updates=[(g, (2 * x).mean(axis=0))], name="grad")
step = synk.function([], updates=[(w, w - g)], name="step")
rows = np.arange(24.0).reshape(8, 3)
grad(rows)
step()
"""
RIGHT = """
f = synk.function([x], x.mean(), name="mean")
print(f(np.ones((5, 3))), sys.argv[1:], __name__, __file__)
"""


# What the command goes on as.
CHECK = """
import runpy
runpy.run_module("synkhronos._checking", run_name="__main__", alter_sys=True)
"""


def check(*arguments, folder=None, **environment):
    """Do what `synkhronos check` does, in a process that has imported what is needed."""
    how = {"folder": folder, "environment": {**SETTINGS, **environment}, "limit_s": LIMIT_S}
    return zygote().run(CHECK, *arguments, **how)


@pytest.fixture
def script(tmp_path):
    def write(*parts):
        path = tmp_path / "script.py"
        path.write_text("".join(parts), encoding="utf-8")
        return path

    return write


def test_a_script_that_is_right(script):
    accept = (
        "import warnings\n"
        "from synkhronos.exceptions import DecompositionWarning\n"
        "warnings.filterwarnings('ignore', '(?s).*combines each row', DecompositionWarning)\n"
        "spread = synk.function([x], x.std(axis=0), name='spread')\n"
    )
    path = script(GRAPH, accept, RIGHT, "synk.close()\n")
    done = command("check", path, "--epochs", "3", "-h")
    assert done.returncode == 0, done.stderr
    # Its own options are its own, and it is the program.
    assert done.stdout == f"1.0 ['--epochs', '3', '-h'] __main__ {path}\n"
    rows = [line.split()[:4] for line in done.stderr.splitlines()]
    assert ["mean", "mean", "avg", "exact"] in rows
    assert ["spread", "std", "avg", "accepted"] in rows, "its warning is filtered"
    assert "Lint has found nothing." in done.stderr


@pytest.mark.parametrize("end", [pytest.param("synk.close()\n", marks=pytest.mark.nightly), ""])
def test_what_is_wrong_is_reported_whether_the_runtime_was_closed_or_not(script, end):
    done = check(script(GRAPH, WRONG, end), COLUMNS="200")
    assert done.status == 1
    rows = [line.split()[:4] for line in done.err.splitlines() if line.startswith("spread")]
    assert rows == [["spread", "std", "avg", "wrong"], ["spread", "mean", "avg", "exact"]]
    assert "To be exact" in done.err
    assert "error  unreduced-read" in done.err
    assert done.err.endswith("\nWrong: spread: output 0; unreduced-read\n"), "and no more"


DRIFTING = """\
w = theano.shared(np.ones(3), name="w")
cost = T.sqr(x.dot(w)).mean()
train = synk.function([x], cost, updates=[(w, w - 0.01 * T.grad(cost, w))], name="train")
for _ in range(2):
    train(np.ones((4, 3), x.dtype))
"""


def test_a_training_whose_ranks_part_is_wrong_unless_it_is_said_to_be_meant(script):
    done = check(script(GRAPH, DRIFTING), COLUMNS="200")
    assert done.status == 1
    rows = [line for line in done.err.splitlines() if line.startswith("train")]
    assert [" exact " in row for row in rows] == [True, False]
    assert rows[1].split()[:5] == ["train", "update", "w", "avg", "differs"]
    assert "make_train_function" in done.err
    assert done.err.endswith("\nWrong: replicas-drift\n")
    meant = "import warnings\nwarnings.simplefilter('ignore', synk.exceptions.LintWarning)\n"
    done = check(script(GRAPH, meant, DRIFTING), COLUMNS="200")
    assert done.status == 0, done.err
    assert "replicas-drift" in done.err


def test_a_training_that_drifts_by_a_rule_is_right(script):
    rule = "from synkhronos.extensions import sync\nrule = sync.average(w, every=3)\n"
    setup, loop = DRIFTING.split("for ")
    loop = "for " + loop.replace("train(", "rule.step(train.delayed(").replace("))", ")))", 1)
    done = check(script(GRAPH, setup, rule, loop), COLUMNS="200")
    assert done.status == 0, done.err
    assert "replicas-drift" not in done.err
    assert "Lint has found nothing." in done.err


def test_the_scripts_own_end_is_told_as_usual(script):
    path = script(GRAPH, RIGHT, "raise ValueError('mine')\n")
    done = check(path)
    assert done.status == 1
    trace = done.err[done.err.index("Traceback") :].splitlines()
    assert trace[1].startswith(f'  File "{path}", line '), "nothing of ours is in it"
    assert "ValueError: mine" in trace
    assert "exact" in done.err, "and what was built is reported all the same"
    assert check(script("raise SystemExit(7)\n")).status == 7
    done = check(script("import sys; sys.exit('my last words')\n"))
    assert done.status == 1
    assert "my last words" in done.err


def test_a_script_without_functions(script):
    done = check(script("print('hello')\n"))
    assert (done.status, done.out) == (0, "hello\n")
    assert "has built no function" in done.err


def test_a_script_that_is_no_python(script):
    path = script("def f(:\n")
    done = check(path)
    assert done.status == 1
    assert "SyntaxError" in done.err
    assert "_checking" not in done.err


# ---- trace -------------------------------------------------------------------------------------


def test_a_timeline_is_written_and_drawn(script, tmp_path):
    pytest.importorskip("matplotlib")
    trace, picture = tmp_path / "t.json", tmp_path / "t.png"
    done = command("trace", script(GRAPH, RIGHT), "-o", trace, "--plot", picture, "--mine", "3")
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("1.0 ['--mine', '3'] __main__ ")
    events = json.loads(trace.read_text())["traceEvents"]
    spans = [event for event in events if event["ph"] == "X"]
    assert {event["pid"] for event in spans} == {0, 1}
    assert "mean" in {event["name"] for event in spans}
    assert f"{trace}: {len(spans)} spans of 2 process(es)" in done.stderr
    assert "https://ui.perfetto.dev" in done.stderr
    assert picture.read_bytes().startswith(b"\x89PNG")


def test_a_script_that_does_not_fork_has_no_timeline(script, tmp_path):
    trace = tmp_path / "t.json"
    trace.write_text("of an earlier run")
    path = script("import sys\nprint(sys.argv[1:])\nsys.exit(len(sys.argv) - 1)\n")
    done = command("trace", path, "-o", trace)
    assert (done.returncode, done.stdout) == (1, "[]\n")
    assert "no timeline: the script did not call synk.fork()" in done.stderr
    assert not trace.exists(), "an old one is not taken for a new one"
    # After -- all is the script's.
    done = command("trace", path, "-o", trace, "--", "-o", "model", "x")
    assert (done.returncode, done.stdout) == (3, "['-o', 'model', 'x']\n")


def test_a_script_may_change_the_folder_and_find_its_own_file(tmp_path):
    (tmp_path / "real").mkdir()
    (tmp_path / "real" / "beside.py").write_text("name = 'found'\n", encoding="utf-8")
    path = tmp_path / "real" / "script.py"
    path.write_text(
        "import os, sys, beside\nos.chdir('/')\nprint(open(__file__).readline(), beside.name)\n",
        encoding="utf-8",
    )
    (tmp_path / "linked.py").symlink_to(path)
    for name in ("real/script.py", "linked.py"):
        done = check(name, folder=tmp_path)
        assert done.status == 0, done.err
        assert done.out == "import os, sys, beside\n found\n"


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_who_ends_a_trace_ends_the_script(script, tmp_path, number):
    path = script("import time\nprint('runs', flush=True)\ntime.sleep(600)\n")
    words = ["-m", "synkhronos_cli", "trace", "-o", tmp_path / "trace.json", path]
    with synk_testing.Program([str(word) for word in words]) as trace:
        assert trace.line() == "runs"
        trace.send_signal(number)
        # Neither of the two lives.
        assert trace.wait() == 128 + number, trace.err
        trace.wait_alone()


@pytest.mark.parametrize("kind", ["fifo", "link"])
def test_an_output_that_is_no_file_stays(script, tmp_path, kind):
    trace = tmp_path / "t.json"
    os.mkfifo(trace) if kind == "fifo" else trace.symlink_to(script("pass"))
    done = command("trace", script("pass"), "-o", trace)
    assert (done.returncode, done.stdout) == (2, "")
    assert "expected a file" in done.stderr
    assert trace.is_fifo() or trace.is_symlink()
