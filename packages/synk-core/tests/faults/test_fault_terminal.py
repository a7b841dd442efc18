"""The terminal goes away: that ends a program as it should, or nothing but what it prints."""

from __future__ import annotations

import contextlib
import os
import signal

import pytest
from _fault_case import GONE_S

from synk_testing import Mark, is_there, wait_gone

RUN = """
import logging, os, signal, sys, time, warnings
from pathlib import Path
import cloudpickle
import numpy as np, theano, theano.tensor as T
from theano.compile.ops import as_op
from synk_core import Runtime
from synk_shm.testing import no_segments_left
from synk_testing import BUT_PROCESSES, nothing_left

folder, stage, ignored = Path(sys.argv[1]), sys.argv[2], sys.argv[3] == "ignored"
signal.signal(signal.SIGHUP, signal.SIG_IGN if ignored else signal.SIG_DFL)
# The first one that the leader of a session opens becomes its own.
os.close(os.open(os.ttyname(0), os.O_RDWR))
logging.basicConfig(level=logging.DEBUG)
warnings.simplefilter("always")

def reach(now):
    "Have the terminal taken away."
    if now != stage:
        return
    draft = folder / "draft"
    pids = [runtime._controller._pool.watchdog_pid, *runtime.worker_pids]
    draft.write_text(" ".join(map(str, pids)))
    draft.rename(folder / "reached")
    while not (folder / "gone").exists():
        time.sleep(0.01)

@as_op([T.dmatrix], [T.dmatrix])
def late(rows):
    if rows[0, 0] == 0:
        (folder / "computing").touch()
        time.sleep(1)
        logging.error("a worker's line")
    return rows

x = T.dmatrix("x")
rows = np.ones((4, 3))
how = {"use_gpu": False, "stall_s": 0.1, "report": logging.info}
with nothing_left(without=BUT_PROCESSES), no_segments_left(), Runtime(2, **how) as runtime:
    reach("booting")
    w = theano.shared(np.zeros(()), "w")
    f = runtime.function(
        [x], (late(x).sum(), "sum"), updates=[(w, w + 1)], name="late", mode="FAST_COMPILE"
    )
    runtime.distribute()
    assert f(rows) == 12
    reach("idle")
    logging.error("a line that nobody reads")
    if stage == "computing":
        import threading
        def watch():
            while not (folder / "computing").exists():
                time.sleep(0.01)
            reach("computing")
        threading.Thread(target=watch).start()
    rows[-1] = 0
    rows[2] = 0
    assert f(rows) == 6
    assert runtime.collectives.gather(w).tolist() == [2, 2]
    del f
(folder / "result").write_text("right")
"""


@pytest.mark.parametrize(
    ("stage", "how"),
    [
        ("computing", "ignored"),
        pytest.param("booting", "default", marks=pytest.mark.nightly),
        pytest.param("idle", "ignored", marks=pytest.mark.nightly),
    ],
)
def test_the_terminal_goes_away(tmp_path, zygote, stage, how):
    terminal, theirs = os.openpty()
    code = tmp_path / "program.py"
    code.write_text(RUN)
    printed = bytearray()

    def check():
        with contextlib.suppress(BlockingIOError):
            printed.extend(os.read(terminal, 65536))
        assert program.status is None, printed.decode()

    with zygote.start(code, tmp_path, stage, how, terminal=theirs) as program:
        os.close(theirs)
        os.set_blocking(terminal, False)
        try:
            reached = Mark(tmp_path / "reached").wait(60, check)
        finally:
            os.close(terminal)
        pids = [int(word) for word in reached.split()]
        if how == "default":
            assert program.wait(GONE_S) == -signal.SIGHUP
            wait_gone(pids, GONE_S)
        else:
            (tmp_path / "gone").touch()
            status = program.wait(60)
            assert (tmp_path / "result").read_text() == "right"
            # Python cannot empty its own buffers at its end: 120. It is not ours to mend.
            assert status in {0, 120}
            assert not any(is_there(pid) for pid in pids)
