"""A full /dev/shm is an error with its cause, never a SIGBUS, and leaves nothing."""

from __future__ import annotations

import numpy as np
import pytest

import synk_shm as shm


def test_more_than_there_is():
    with pytest.raises(shm.ShmFullError) as caught:
        shm.empty(1 << 56, "u1")
    for word in ("asked for 65536.0 TiB", "free", "total", "/dev/shm", "--shm-size", "memfd"):
        assert word in str(caught.value)
    assert isinstance(caught.value, MemoryError)
    with pytest.raises(MemoryError):
        shm.empty(1 << 56, "u1", backend="memfd")
    a = shm.zeros(1, "u1", capacity=1 << 40)  # room is free until it is used
    with pytest.raises(MemoryError):
        shm.resize(a, 1 << 40)
    assert shm.segment(a).shape == (1,)
    assert len([info for info in shm.list() if info.mine]) == 1
    assert shm.free_space() > 0


SCRIPT = """
MIB = 1 << 20
assert 15 * MIB < shm.free_space() <= 16 * MIB

kept = []  # with the errors, the frames that had the mapping

def no_room(act, *arguments, **options):
    before, free = set(os.listdir("/dev/shm")), shm.free_space()
    kept.extend(refused(shm.ShmFullError, lambda: act(*arguments, **options)))
    assert isinstance(kept[-1], MemoryError)
    assert "16.0 MiB" in str(kept[-1]) and "--shm-size" in str(kept[-1]), kept[-1]
    assert set(os.listdir("/dev/shm")) == before
    assert free - shm.free_space() <= 4096, (shm.free_space(), free)  # its first page

a = shm.full(8 * MIB, 1, "u1")
source = np.ones(9 * MIB, "u1")
grows = shm.full(MIB, 3, "u1", capacity=100 * MIB)
for _ in range(2):
    no_room(shm.empty, 9 * MIB, "u1")
    no_room(shm.ones, 20 * MIB, "u1")
    no_room(shm.share, source)
    no_room(shm.share, source[::-1])
    no_room(shm.share, source, name="named")
    no_room(shm.resize, grows, 9 * MIB)
    no_room(shm.resize, grows, 40 * MIB)
    # Another process may take the memory between the check and the allocation.
    shm._arrays.constructors.check_space = shm._arrays.resize.check_space = lambda *_: None
assert grows.shape == (MIB,) and (grows == 3).all() and a.sum() == 8 * MIB
big = shm.share(np.ones(64 * MIB, "u1"), backend="memfd")
assert big.sum() == 64 * MIB and shm.attach(shm.handle(big)).sum() == 64 * MIB
grows = shm.resize(grows, 7 * MIB)
assert (grows[:MIB] == 3).all() and (grows[MIB:] == 0).all()
grows[:] = 1
no_room(shm.empty, 2 * MIB, "u1")
del a
shm.full(8 * MIB, 1, "u1")
print("done")
"""


def test_a_small_file_system(script, small_shm):
    assert script.run(SCRIPT, prefix=small_shm) == "done"


def test_workers_of_a_small_file_system(program, small_shm, method):
    """Standard library, np.memmap, joblib: SIGBUS kills the workers, and their pools hang."""
    program(
        """
        MIB = 1 << 20

        def take(pipe):
            taken = []
            pipe.send(None)
            pipe.recv()
            refused(MemoryError, lambda: [
                taken.append(shm.full(MIB // 2, 7, "u1")) for _ in range(100)
            ])
            pipe.send(len(taken))
            pipe.recv()
            assert all((a == 7).all() for a in taken)

        def main(context):
            a = shm.ones(4 * MIB, "u1")
            ends = [context.Pipe() for _ in range(2)]
            children = [start(context, take, there) for _, there in ends]
            for here, there in ends:
                there.close()
                here.recv()
            for here, _ in ends:  # both take as much as they can, at the same time
                here.send(None)
            taken = sum(here.recv() for here, _ in ends)
            assert 20 <= taken <= 24, taken
            for here, _ in ends:
                here.send(None)
            join(*children)
            assert a.sum() == 4 * MIB and shm.free_space() > 11 * MIB
        """,
        method,
        prefix=small_shm,
    )


def test_sending_needs_no_room(program, small_shm):
    """A message costs an entry, not memory: it is sent when no page is free."""
    program(
        """
        def main(context):
            a = shm.ones(shm.free_space() - (64 << 10), "u1")
            fill = []
            refused(MemoryError, lambda: [fill.append(shm.ones(1, "u1")) for _ in range(100)])
            assert shm.free_space() == 0
            here, there = context.Pipe()
            here.send((a[::2], fill[0]))
            b, c = there.recv()
            assert np.shares_memory(a, b) and c[0] == 1
            assert shm.attach(shm.handle(a), readonly=True).sum() == len(a)
        """,
        "spawn",
        prefix=small_shm,
    )


def test_large_requests_ask_for_the_memory_of_the_machine(monkeypatch):
    from synk_shm._segments import memory

    monkeypatch.setattr(memory, "_machine_left", lambda: 50 << 20)
    with pytest.raises(shm.ShmFullError, match=r"only 50.0 MiB"):
        shm.empty(60 << 20, "u1")
    assert shm.empty(40 << 20, "u1").nbytes == 40 << 20
    monkeypatch.setattr(memory, "_container_left", lambda: 35 << 20)
    with pytest.raises(shm.ShmFullError, match=r"only 35.0 MiB"):
        shm.share(np.zeros(40 << 20, "u1"))
