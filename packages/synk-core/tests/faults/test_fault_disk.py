"""The disk is full while a function is compiled, or the compile cache is cold for all ranks."""

from __future__ import annotations

import os

import pytest
from _fault_private import private_prefix

from synk_testing import run

FULL = """
import os, sys
import numpy as np, theano, theano.tensor as T
from synk_core import Runtime
from synk_shm.testing import no_segments_left
from synk_testing import BUT_PROCESSES, nothing_left

folder = sys.argv[1]

def fill():
    with open(os.path.join(folder, "filler"), "wb", buffering=0) as file:
        try:
            while True:
                file.write(bytes(4096))
        except OSError:
            pass

def empty():
    os.unlink(os.path.join(folder, "filler"))

rows = np.arange(12.0).reshape(4, 3)
x = T.dmatrix("x")
with nothing_left(without=BUT_PROCESSES), no_segments_left(), Runtime(2, use_gpu=False) as runtime:
    w = theano.shared(np.zeros(()), "w")
    f = runtime.function([x], (x.sum(), "sum"), updates=[(w, w + 1)])
    assert f(rows) == rows.sum()

    def build():
        return runtime.function([x], (T.tanh(x).sum(), "sum"), updates=[(w, w + 1)])

    for _ in range(2):
        fill()
        try:
            build()
        except Exception as error:
            print("refused")
            print(type(error).__name__, str(error)[-300:], file=sys.stderr)
        # Others would wait for it.
        assert not os.path.exists(os.path.join(theano.config.compiledir, "lock_dir"))
        # What was there before goes on.
        assert f(rows) == rows.sum()
        empty()
    g = build()
    np.testing.assert_allclose(g(rows), np.tanh(rows).sum())
    assert runtime.collectives.gather(w).tolist() == [4, 4]
    del f, g
"""


def flags(folder) -> dict[str, str]:
    return {"THEANO_FLAGS": f"{os.environ['THEANO_FLAGS']},linker=cvm,base_compiledir={folder}"}


RANKS = """
import numpy as np, theano, theano.tensor as T
from synk_core import Runtime
from synk_shm.testing import no_segments_left
from synk_testing import BUT_PROCESSES, nothing_left
x = T.dmatrix("x")
rows = np.arange(24.0).reshape(8, 3)
with nothing_left(without=BUT_PROCESSES), no_segments_left(), Runtime(4, use_gpu=False) as runtime:
    f = runtime.function([x], [(x.sum(axis=0), "sum"), (T.exp(x), "gather")])
    summed, powers = f(rows)
    np.testing.assert_allclose(summed, rows.sum(axis=0))
    np.testing.assert_allclose(powers, np.exp(rows))
    print("right")
"""


@pytest.mark.nightly
def test_four_ranks_want_the_cold_compile_cache(tmp_path):
    status, out, err = run(RANKS, environment=flags(tmp_path / "cold"))
    assert (status, out) == (0, "right\n"), err


@pytest.mark.nightly
def test_a_full_disk_while_compiling(tmp_path):
    folder = tmp_path / "disk"
    folder.mkdir()
    prefix = private_prefix(f"mount -t tmpfs -o size=24m none {folder}")
    how = {"prefix": prefix, "environment": flags(folder)}
    status, out, err = run(FULL, folder, **how)
    assert (status, out) == (0, "refused\nrefused\n"), err
