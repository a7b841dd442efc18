"""The last process of a family removes what is left, whoever looks on."""

from __future__ import annotations

import os

import pytest

TIMES = 50 if os.environ.get("SYNK_TESTS") == "all" else 20

# In a /dev/shm of its own: programs one after the other, of each of which one process is killed.
PROGRAM = """
    import multiprocessing, os, signal, sys, synk_shm as shm

    def program():
        multiprocessing.current_process().authkey = os.urandom(32)  # a family of its own
        kept = shm.ones(3)
        if os.fork() == 0:
            lost = shm.ones(5)
            os.kill(os.getpid(), signal.SIGKILL)
        os.wait()
        sys.exit()  # the last one out: what the killed process made goes now

    def look():
        while True:
            shm.list()

    lookers = []
    for _ in range(int(sys.argv[1])):
        lookers.append(os.fork())
        if lookers[-1] == 0:
            look()
    left = 0
    for _ in range(int(sys.argv[2])):
        pid = os.fork()
        if pid == 0:
            program()
        assert os.waitpid(pid, 0)[1] == 0
        left += any(not name.endswith(".lock") for name in os.listdir("/dev/shm"))
        if left:
            break
    for pid in lookers:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
    print(left)
"""


@pytest.mark.parametrize("lookers", [0, 1])
def test_last_one_out_leaves_nothing(script, small_shm, lookers):
    """To look whether a family is alive must not keep its last member from tidying up."""
    assert script.run(PROGRAM, lookers, TIMES if lookers else 10, prefix=small_shm) == "0"
