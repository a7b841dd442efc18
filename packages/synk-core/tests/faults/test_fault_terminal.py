"""The terminal of a program goes away, which ignores that: what it prints is lost, no more."""

from __future__ import annotations

import contextlib
import os

from synk_testing import Mark, is_there

RUN = """
import logging, os, signal, sys, threading, time, warnings
from pathlib import Path
import numpy as np
from synk_core import Runtime
from synk_shm.testing import no_segments_left
from synk_testing import BUT_PROCESSES, Mark, nothing_left
from synk_testing.engine import T, as_op, engine

folder = Path(sys.argv[1])
signal.signal(signal.SIGHUP, signal.SIG_IGN)
# The first one that the leader of a session opens becomes its own.
os.close(os.open(os.ttyname(0), os.O_RDWR))
logging.basicConfig(level=logging.DEBUG)
warnings.simplefilter("always")

@as_op([T.dmatrix], [T.dmatrix])
def late(rows):
    if rows[0, 0] == 0:
        Mark(folder / "computing").set()
        Mark(folder / "gone").wait()
        time.sleep(0.5)
        logging.error("a worker's line")
    return rows

x = T.dmatrix("x")
how = {"use_gpu": False, "stall_s": 0.1, "report": logging.info}
with nothing_left(without=BUT_PROCESSES), no_segments_left(), Runtime(2, **how) as runtime:
    w = engine.shared(np.zeros(()), "w")
    f = runtime.function(
        [x], (late(x).sum(), "sum"), updates=[(w, w + 1)], name="late", mode="FAST_COMPILE"
    )
    rows = np.ones((4, 3))
    assert f(rows) == 12
    Mark(folder / "pids").set(" ".join(map(str, runtime.worker_pids)))
    rows[2:] = 0
    assert f(rows) == 6
    logging.error("a line that nobody reads")
    assert runtime.collectives.gather(w).tolist() == [2, 2]
    del f
Mark(folder / "result").set("right")
"""


def test_the_terminal_goes_away_while_a_worker_computes(tmp_path, zygote):
    terminal, theirs = os.openpty()
    os.set_blocking(terminal, False)
    code = tmp_path / "program.py"
    code.write_text(RUN)
    printed = bytearray()

    def check():
        with contextlib.suppress(BlockingIOError):
            printed.extend(os.read(terminal, 65536))
        assert program.status is None, printed.decode()

    with zygote.start(code, tmp_path, terminal=theirs) as program:
        os.close(theirs)
        try:
            Mark(tmp_path / "computing").wait(60, check)
        finally:
            os.close(terminal)
        Mark(tmp_path / "gone").set()
        status = program.wait(60)
        assert Mark(tmp_path / "result").read() == "right"
        # Python cannot empty its own buffers at its end: 120. It is not ours to mend.
        assert status in {0, 120}
        pids = Mark(tmp_path / "pids").read().split()
        assert not any(is_there(int(pid)) for pid in pids)
