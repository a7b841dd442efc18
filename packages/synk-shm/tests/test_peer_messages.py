"""Faults of other libraries with arrays that processes send each other.

Each docstring names the library and its fault, which was reproduced. Each test fails if synk_shm
has the fault.
"""

from __future__ import annotations

import pickle

import pytest

import synk_shm as shm


def test_forwarded_arrays_keep_their_state(program, daily_method):
    """Standard library: pickling loses `track=False`, so the receiver's exit destroys it."""
    program(
        """
        def forward(inbox, outbox):
            outbox.send(inbox.recv())

        def read(inbox, outbox):
            b = inbox.recv()
            outbox.send((b.flags.writeable, b.tolist()))

        def main(context):
            a = shm.ones(3)
            fixed = shm.attach(shm.handle(a), readonly=True)
            pipes = [context.Pipe(duplex=False) for _ in range(3)]
            ends = [(pipes[0][0], pipes[1][1]), (pipes[1][0], pipes[2][1])]
            children = start(context, forward, *ends[0]), start(context, read, *ends[1])
            for end in (end for pair in ends for end in pair):
                end.close()
            pipes[0][1].send(fixed)
            join(*children)
            assert pipes[2][0].recv() == (False, [1, 1, 1])
            assert mine() == [shm.segment(a).name]
            assert shm.segment(a).owner and shm.handle(a).attach().sum() == 3
            pipes[0][1].close(), pipes[2][0].close()
        """,
        daily_method,
    )


@pytest.mark.parametrize(
    "method, make",
    [
        ("fork", "shm.share(source, name=name)"),
        ("spawn", "shm.share(source, name=name)"),
        ("forkserver", "shm.share(source, name=name)"),
        ("spawn", "shm.share(source[::-1], name=name)"),
        ("spawn", "shm.full(n, i, name=name)"),
    ],
)
def test_no_process_sees_a_half_made_segment(program, given, method, make):
    """Standard library: an attach while the block is made fails: "cannot mmap an empty file"."""
    program(
        """
        def watch(name, end):
            seen = 0
            while not end.is_set() or not seen:
                try:
                    b = shm.attach(name)
                except FileNotFoundError:
                    continue
                first, last = b[0], b[-1]
                assert first == last > 0, (first, last)
                seen += 1

        def main(context):
            n, name = 1 << 19, sys.argv[2]
            end = context.Event()
            child = start(context, watch, name, end)
            for i in range(1, 120):
                source = np.full(n, float(i))
                a = MAKE
                if i % 10 == 0:
                    time.sleep(0.005)
                del a
            a = MAKE
            end.set()
            join(child)
        """.replace("MAKE", make),
        method,
        given("half"),
    )


@pytest.mark.parametrize("parent_has_arrays", [True, False])
@pytest.mark.parametrize("end", ["pass", "os._exit(0)", "os.kill(os.getpid(), 9)"])
def test_message_outlives_its_sender(program, method, end, parent_has_arrays):
    """torch, DupFd of multiprocessing: what a worker sent is lost if it exits before the read.

    Another program cleans up meanwhile. Without arrays the parent is not in the family yet.
    """
    program(
        """
        def send(queue):
            a = shm.share(np.arange(6.0).reshape(2, 3))
            queue.put((a, a.T[1:], shm.attach(shm.handle(a), readonly=True)))
            END

        def main(context):
            own, queue = shm.ones(1) if OWN else None, context.SimpleQueue()
            child = start(context, send, queue)
            child.join(60)
            other = [sys.executable, "-c", "import synk_shm as s; s.ones(1); s.cleanup()"]
            subprocess.run(other, check=True, timeout=60)
            whole, part, fixed = queue.get()
            assert whole.tolist() == [[0, 1, 2], [3, 4, 5]] == fixed.tolist()
            assert part.tolist() == [[1, 4], [2, 5]] and np.shares_memory(part, whole)
            assert not fixed.flags.writeable and whole.flags.writeable
            assert child.exitcode is not None
            return int("END" != "pass")  # what the child did not remove
        """.replace("END", end).replace("OWN", str(parent_has_arrays)),
        method,
    )


def test_lock_of_a_killed_holder_opens(program, daily_method):
    """multiprocessing.Lock: if its holder is killed, it never opens again."""
    program(
        """
        def hold(a, held):
            with shm.lock(a, timeout_s=30):
                a[0] += 1
                held.send(1)
                signal.pause()

        def main(context):
            a = shm.zeros(1)
            address = shm.handle(a)
            for round in range(3):
                here, there = context.Pipe()
                child = start(context, hold, a, there)
                there.close()
                assert here.recv()
                refused(TimeoutError, shm.lock(a, timeout_s=0.05).__enter__)
                child.kill()
                with shm.lock(a, timeout_s=30):
                    assert a[0] == round + 1
                child.join(60)
                here.close()
            return int(sys.argv[1] != "fork")  # then the killed child had received a message
        """,
        daily_method,
    )


def test_names_never_repeat(program, daily_method):
    """posix_ipc: its random names repeat in processes that start within one second."""
    program(
        """
        import random

        def make(count):
            random.seed(0), np.random.seed(0)
            return [shm.segment(shm.ones(1)).name for _ in range(count)]

        def main(context):
            names = make(50)
            with pool_of(context, 4) as pool:
                for made in pool.map(make, [50] * 4, chunksize=1):
                    names += made
            names += make(50)
            assert len(set(names)) == len(names) == 300
        """,
        daily_method,
    )


def test_ordinary_arrays_travel_as_without_us(program, daily_method):
    """sharedmem: its pickles hold addresses, which are invalid in another process."""
    program(
        """
        def back(arrays):
            return arrays

        def main(context):
            plain = [
                np.arange(6).reshape(2, 3)[:, ::2], np.asfortranarray(np.ones((2, 3), "f4")),
                np.array([{"a": 1}, None], dtype=object), np.zeros(0), np.array(3.0),
                np.zeros(2, [("x", "f8"), ("s", "U3")]), np.array(["2026-01-01"], "M8[D]"),
                np.ma.masked_array([1, 2], mask=[0, 1]), np.rec.array([(1, 2.0)]),
            ]
            shared = shm.ones(3)
            with pool_of(context, 1) as pool:
                *got, again = pool.apply(back, ([*plain, shared],))
            assert np.shares_memory(again, shared)
            for one, other in zip(plain, got):
                assert not shm.is_shared(other)
                assert type(one) is type(other) and one.dtype == other.dtype
                assert one.flags.f_contiguous == other.flags.f_contiguous
                assert str(one) == str(other)
        """,
        daily_method,
    )


def test_values_not_addresses(bare_script):
    """sharedmem, ray: a pickle of an array cannot be read after its memory was removed."""
    a = shm.share([[1.0, 2.0], [3.0, 4.0]])
    text = pickle.dumps((a, a.T[1:])).hex()
    shm.close(a)
    del a
    out = bare_script.run(
        """
        import pickle, sys
        whole, part = pickle.loads(bytes.fromhex(sys.argv[1]))
        print(whole.tolist(), part.tolist(), "synk_shm" in sys.modules)
        """,
        text,
    )
    assert out == "[[1.0, 2.0], [3.0, 4.0]] [[2.0, 4.0]] False"
