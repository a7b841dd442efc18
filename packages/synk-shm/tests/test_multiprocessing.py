"""Arrays travel through multiprocessing as handles, with each start method."""

from __future__ import annotations

SHARED = """
        def double(a):
            a *= 2
            return a[::-1]

        def make(n):
            return shm.full(n, n)

        def attach(address):
            return float(address.attach().sum())

        def describe(a):
            return shm.is_shared(a), a.flags.writeable, type(a).__name__, float(a.sum())
"""


def test_pool(program, each_method):
    program(
        SHARED
        + """
        def main(context):
            a = shm.ones((4, 3))
            with pool_of(context, 2) as pool:
                back = pool.map(double, [a[i] for i in range(4)])
                assert all(np.shares_memory(b, a) for b in back)
                assert (a == 2).all()
                made = pool.map(make, [3, 4, 5], chunksize=1)
                assert [b.tolist() for b in made] == [[3] * 3, [4] * 4, [5] * 5]
                again = pool.map(double, made)  # forwarded after their makers have dropped them
                assert [b.tolist() for b in made] == [[6] * 3, [8] * 4, [10] * 5]
            del made, again, back
            assert len(mine()) == 1, mine()
        """,
        each_method,
    )


def test_pool_that_is_left_without_a_word(program, each_method):
    """Leaving `with Pool()` kills the workers: results are whole, and the exit removes the rest."""
    program(
        SHARED
        + """
        def main(context):
            a = shm.ones((4, 3))
            for turn in range(3):
                with context.Pool(2) as pool:
                    back = pool.map(double, [a[i] for i in range(4)])
                    made = pool.map(make, [3, 4, 5])
                    if turn == 2:  # and with work under way
                        pool.map_async(make, range(1, 500), chunksize=1)
                        pool.map_async(double, [a[:0]] * 500, chunksize=1)
                assert all(np.shares_memory(b, a) for b in back)
                assert [b.tolist() for b in made] == [[3] * 3, [4] * 4, [5] * 5]
            assert (a == 8).all()
            del a, back, made, pool
            gc.collect()
            return len(mine())  # whatever a killed worker held: none may be left after the exit
        """,
        each_method,
    )


def test_executor(program, method):
    program(
        SHARED
        + """
        def main(context):
            a = shm.ones(3)
            fixed = shm.attach(shm.handle(a), readonly=True)
            with ProcessPoolExecutor(1, mp_context=context) as pool:
                assert pool.submit(describe, a).result(60) == (True, True, "ndarray", 3)
                assert pool.submit(describe, fixed).result(60) == (True, False, "ndarray", 3)
                assert pool.submit(describe, np.ones(2)).result(60) == (False, True, "ndarray", 2)
                assert pool.submit(make, 2).result(60).tolist() == [2, 2]
                assert pool.submit(attach, shm.handle(a)).result(60) == 3
            with pool_of(context, 1) as pool:
                assert pool.apply(attach, (shm.handle(a),)) == 3
            assert mine() == [shm.segment(a).name]
        """,
        method,
    )


def test_pipe_keeps_the_memory_of_a_message_under_way(program):
    program(
        """
        def main(context):
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
            refused(FileNotFoundError, lambda: pickle.loads(data))
        """,
        "spawn",
    )


def test_arrays_that_are_freed_late_in_the_exit(program):
    """Python calls no finalizers by then; the names are removed all the same."""
    program(
        """
        import weakref

        def late():
            a = shm.ones(3)
            weakref.finalize._shutdown = True  # as weakref's own exit handler leaves it
            del a

        def main(context):
            a = shm.ones(1)
            join(start(context, late))
            assert len(mine()) == 1, mine()
        """,
        "spawn",
    )
