"""Arrays travel through multiprocessing as handles, with every way to start a process."""

from __future__ import annotations

import pytest

METHODS = ["fork", "spawn", "forkserver"]

SCRIPT = """
import multiprocessing as mp, os, sys, time, weakref
from concurrent.futures import ProcessPoolExecutor
import numpy as np
import synk_shm as shm

def mine():
    return [info for info in shm.list() if info.mine]

def fill(a, queue):
    a[...] = 5
    queue.put(shm.share(np.arange(4.0)))  # and exit at once

def double(a):
    a *= 2
    return a[::-1]

def make(n):
    return shm.full(n, n)

def tell(a):
    return shm.is_shared(a), a.flags.writeable, type(a).__name__, float(a.sum())

def late():
    a = shm.ones(3)
    weakref.finalize._shutdown = True  # as weakref's own exit handler leaves it
    del a

def main(context):
    BODY

if __name__ == "__main__":
    main(mp.get_context(sys.argv[1]))
    assert mine() == [], mine()
"""


def run(script, method, body):
    lines = [line.strip("\n") for line in body.strip("\n").splitlines()]
    indent = len(lines[0]) - len(lines[0].lstrip())
    text = "\n    ".join(line[indent:] for line in lines)
    return script.run(SCRIPT.replace("BODY", text), method)


@pytest.mark.parametrize("method", METHODS)
def test_process_and_queue(script, method):
    """A process fills an array, sends one of its own, and has exited when it is read."""
    run(
        script,
        method,
        """
        a, queue = shm.zeros((2, 3)), context.Queue()
        child = context.Process(target=fill, args=(a[:, 1:], queue))
        child.start()
        child.join(60)
        assert child.exitcode == 0
        assert a.tolist() == [[0, 5, 5]] * 2
        b = queue.get(timeout=60)
        assert b.tolist() == [0, 1, 2, 3]
        assert shm.is_shared(b) and shm.segment(b).owner
        assert len(mine()) == 2
        assert shm.attach(shm.handle(b)).tolist() == [0, 1, 2, 3]
        queue.close()
        """,
    )


@pytest.mark.parametrize("method", METHODS)
def test_pool(script, method):
    run(
        script,
        method,
        """
        a = shm.ones((4, 3))
        with context.Pool(2) as pool:
            back = pool.map(double, [a[i] for i in range(4)])
            assert all(np.shares_memory(b, a) for b in back)
            assert (a == 2).all()
            made = pool.map(make, [3, 4, 5], chunksize=1)
            assert [b.tolist() for b in made] == [[3] * 3, [4] * 4, [5] * 5]
            again = pool.map(double, made)  # forwarded though their makers have let go
            assert [b.tolist() for b in made] == [[6] * 3, [8] * 4, [10] * 5]
            pool.close()
            pool.join()
        del made, again, back
        assert len(mine()) == 1, mine()
        """,
    )


@pytest.mark.parametrize("method", METHODS)
def test_executor(script, method):
    run(
        script,
        method,
        """
        a = shm.ones(3)
        fixed = shm.attach(shm.handle(a), readonly=True)
        with ProcessPoolExecutor(1, mp_context=context) as pool:
            assert pool.submit(tell, a).result(60) == (True, True, "ndarray", 3)
            assert pool.submit(tell, fixed).result(60) == (True, False, "ndarray", 3)
            assert pool.submit(tell, np.ones(2)).result(60) == (False, True, "ndarray", 2)
            assert pool.submit(make, 2).result(60).tolist() == [2, 2]
        """,
    )


def test_pipe_keeps_the_memory_of_a_message_under_way(script):
    run(
        script,
        "spawn",
        """
        import pickle
        from multiprocessing.reduction import ForkingPickler
        ends = context.Pipe()
        ends[0].send(shm.full((2, 2), 7)[0])
        assert len(mine()) == 1
        b = ends[1].recv()
        assert b.tolist() == [7, 7]
        del b
        assert mine() == []
        a = shm.ones(3)
        data = bytes(ForkingPickler.dumps(a[1:]))
        assert len(data) < len(pickle.dumps(np.ones(20)))
        assert np.shares_memory(pickle.loads(data), a)
        assert pickle.loads(data).tolist() == [1, 1]  # once more
        del a
        try:
            pickle.loads(data)
        except FileNotFoundError:
            pass
        else:
            raise AssertionError("the memory has gone")
        """,
    )


def test_unlink_reaches_messages_under_way(script):
    run(
        script,
        "spawn",
        """
        ends = context.Pipe()
        a = shm.ones(3)
        ends[0].send(a)
        shm.unlink(a)
        assert mine() == []
        try:
            ends[1].recv()
        except FileNotFoundError:
            pass
        else:
            raise AssertionError("it has been unlinked")
        """,
    )


def test_lost_messages_go_with_their_family(script):
    out = script.run(
        """
        import multiprocessing as mp, synk_shm as shm
        ends = mp.Pipe()
        ends[0].send(shm.ones(3))
        print(len([info for info in shm.list() if info.mine]))
        """
    )
    assert out == "1"


def test_children_of_one_program_are_one_family(script):
    out = run(
        script,
        "spawn",
        """
        with context.Pool(2) as pool:
            a, b = pool.map(make, [1, 2], chunksize=1)
            pool.close()
            pool.join()
        print(len({shm.segment(x).family for x in (a, b, shm.ones(1))}))
        """,
    )
    assert out == "1"


def test_arrays_that_die_late_in_the_exit(script):
    """Python has stopped calling finalizers then; the names go all the same."""
    run(
        script,
        "spawn",
        """
        a = shm.ones(1)
        child = context.Process(target=late)
        child.start()
        child.join(60)
        assert child.exitcode == 0 and len(mine()) == 1, mine()
        """,
    )


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("end", ["pass", "os._exit(0)", "os.kill(os.getpid(), 9)"])
def test_message_to_a_parent_without_arrays(program, method, end):
    """The child made the family's first array, and is gone before the message is read."""
    program(
        """
        import subprocess

        def send(queue):
            queue.put(shm.share(np.arange(4.0)))
            END

        def main(context):
            queue = context.SimpleQueue()
            child = context.Process(target=send, args=(queue,))
            child.start()
            child.join(60)
            stranger = [sys.executable, "-c", "import synk_shm as s; s.ones(1); s.cleanup()"]
            subprocess.run(stranger, check=True, timeout=60)
            assert queue.get().tolist() == [0, 1, 2, 3]
            assert child.exitcode is not None
        """.replace("END", end),
        method,
    )
