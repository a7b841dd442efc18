"""/dev/shm is full, in every state that might want of it: memory beside it serves, and no error."""

from __future__ import annotations

from pathlib import Path

from synk_testing import in_private, run

ACTS = [
    *("call", "step", "all_reduce", "gather", "end"),
    # Room for what the workers do not have yet: a function, one of its forms, rows, indexes.
    *("distribute", "slice", "copy", "grow"),
]

CROWDED = """
import sys
sys.path[:0] = [sys.argv[1], f"{sys.argv[1]}/.."]
from _fault_bench import Bench
import synk_shm
from synk_core import Runtime
from synk_shm.testing import no_segments_left
from synk_testing import BUT_PROCESSES, nothing_left

def fill():
    kept = []
    for size in (1 << 20, 1 << 12):
        try:
            while True:
                kept.append(synk_shm.full(size, 1, "u1"))
        except synk_shm.ShmFullError:
            pass
    return kept

with nothing_left(without=BUT_PROCESSES), no_segments_left():
    full = fill()
    with Runtime(2, use_gpu=False) as runtime:
        bench = Bench(runtime)
        assert bench.call()
        full.clear()
        for act in sys.argv[2:]:
            before = bench.reset()
            full = fill()
            assert getattr(bench, act)(), act
            full.clear()
            assert bench.verdict(act) <= {"same", "after"}, act
            assert bench.reset() == before and getattr(bench, act)(), act
    del bench
"""


def test_neither_a_start_nor_an_act_needs_room_in_dev_shm():
    prefix = in_private("mount -t tmpfs -o size=16m none /dev/shm")
    status, _, err = run(CROWDED, Path(__file__).parent, *ACTS, prefix=prefix)
    assert status == 0, err
