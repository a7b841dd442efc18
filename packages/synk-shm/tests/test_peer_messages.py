"""What goes wrong elsewhere with what processes send each other, and must not here.

Each docstring names the peer and the fault that was reproduced; each test fails if we have it.
"""

from __future__ import annotations

import pickle

import pytest

import synk_shm as shm

# From a server is by day tested in test_exit.py and test_multiprocessing.py.
METHODS = pytest.mark.parametrize(
    "method", ["fork", "spawn", pytest.param("forkserver", marks=pytest.mark.nightly)]
)


@METHODS
def test_what_is_forwarded_stays_what_it_was(program, method):
    """Standard library: `track=False` is lost by pickling, so the receiver's exit destroys."""
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
            children = [
                context.Process(target=target, args=args)
                for target, args in zip((forward, read), ends)
            ]
            for child in children:
                child.start()
            for end in (end for pair in ends for end in pair):
                end.close()
            pipes[0][1].send(fixed)
            for child in children:
                child.join(60)
            assert pipes[2][0].recv() == (False, [1, 1, 1])
            assert mine() == [shm.segment(a).name]
            assert shm.segment(a).owner and shm.handle(a).attach().sum() == 3
            pipes[0][1].close(), pipes[2][0].close()
        """,
        method,
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
def test_nobody_sees_a_half_made_segment(program, given, method, make):
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
            child = context.Process(target=watch, args=(name, end))
            child.start()
            for i in range(1, 120):
                source = np.full(n, float(i))
                a = MAKE
                if i % 10 == 0:
                    time.sleep(0.005)
                del a
            a = MAKE
            end.set()
            child.join(60)
            assert child.exitcode == 0
        """.replace("MAKE", make),
        method,
        given("half"),
    )


@METHODS
@pytest.mark.parametrize("end", ["pass", "os._exit(0)", "os.kill(os.getpid(), 9)"])
def test_message_outlives_its_sender(program, method, end):
    """torch, DupFd of multiprocessing: what a worker sent is lost if it ends before the reader."""
    program(
        """
        def send(pipe):
            a = shm.share(np.arange(6.0).reshape(2, 3))
            pipe.send((a, a.T[1:], shm.attach(shm.handle(a), readonly=True)))
            END

        def main(context):
            own, (here, there) = shm.ones(1), context.Pipe()
            child = context.Process(target=send, args=(there,))
            child.start()
            there.close()
            child.join(60)
            whole, part, fixed = here.recv()
            assert whole.tolist() == [[0, 1, 2], [3, 4, 5]] == fixed.tolist()
            assert part.tolist() == [[1, 4], [2, 5]] and np.shares_memory(part, whole)
            assert not fixed.flags.writeable and whole.flags.writeable
            here.close()
            return int("END" != "pass")  # what the child had no time to remove
        """.replace("END", end),
        method,
    )


@METHODS
def test_lock_of_a_killed_holder_opens(program, method):
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
                child = context.Process(target=hold, args=(a, there))
                child.start()
                there.close()
                assert here.recv()
                try:
                    with shm.lock(a, timeout_s=0.05):
                        raise AssertionError("it was not held")
                except TimeoutError:
                    pass
                child.kill()
                with shm.lock(a, timeout_s=30):
                    assert a[0] == round + 1
                child.join(60)
                here.close()
            return int(sys.argv[1] != "fork")  # then the killed child had received a message
        """,
        method,
    )


@METHODS
def test_names_never_repeat(program, method):
    """posix_ipc: its random names repeat in processes that start within one second."""
    program(
        """
        import random

        def make(count):
            random.seed(0), np.random.seed(0)
            return [shm.segment(shm.ones(1)).name for _ in range(count)]

        def main(context):
            names = make(50)
            with context.Pool(4) as pool:
                for made in pool.map(make, [50] * 4, chunksize=1):
                    names += made
                pool.close()
                pool.join()
            names += make(50)
            assert len(set(names)) == len(names) == 300
        """,
        method,
    )


@METHODS
def test_ordinary_arrays_travel_as_ever(program, method):
    """sharedmem: its pickles carry addresses, which mean nothing in another process."""
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
            with context.Pool(1) as pool:
                *got, again = pool.apply(back, ([*plain, shared],))
                pool.close()
                pool.join()
            assert np.shares_memory(again, shared)
            for one, other in zip(plain, got):
                assert not shm.is_shared(other)
                assert type(one) is type(other) and one.dtype == other.dtype
                assert one.flags.f_contiguous == other.flags.f_contiguous
                assert str(one) == str(other)
        """,
        method,
    )


def test_values_not_addresses(script):
    """sharedmem, ray: a pickle of an array is worthless once its memory has gone."""
    a = shm.share([[1.0, 2.0], [3.0, 4.0]])
    text = pickle.dumps((a, a.T[1:])).hex()
    shm.close(a)
    del a
    out = script.run(
        """
        import pickle, sys
        whole, part = pickle.loads(bytes.fromhex(sys.argv[1]))
        print(whole.tolist(), part.tolist(), "synk_shm" in sys.modules)
        """,
        text,
    )
    assert out == "[[1.0, 2.0], [3.0, 4.0]] [[2.0, 4.0]] False"
