"""Faults of other libraries between processes.

Each docstring names the library and its fault, which was reproduced. Each test fails if synk_shm
has the fault.
"""

from __future__ import annotations

import signal

import pytest

import synk_shm as shm


def test_exit_of_a_fork_that_attached_first(script):
    """Standard library: a forked child whose tracker did not run yet destroys it as well."""
    script.run(
        """
        read, write = os.pipe()
        pid = os.fork()
        if pid == 0:
            a = shm.attach(pickle.loads(os.read(read, 4096)))
            sys.exit(int(a.sum()))
        a = shm.ones(3)
        os.write(write, pickle.dumps(shm.handle(a)))
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 3
        assert mine() == [shm.segment(a).name]
        """
    )


def test_many_ranks_are_silent(program, daily_method):
    """Standard library: many children of one tracker print KeyErrors, and hang, at their exit."""
    program(
        """
        def rank(a, address, number):
            b = address.attach()
            b[number] += 1
            own = shm.full(2, number)
            assert own.sum() == 2 * number and np.shares_memory(a, b)

        def main(context):
            a = shm.zeros(8 if context.get_start_method() == "fork" else 4)
            join(*[start(context, rank, a, shm.handle(a), i) for i in range(len(a))])
            assert (a == 1).all()
        """,
        daily_method,
    )


def test_failed_attach_leaves_the_segment(program, daily_method):
    """Standard library: an attach whose mmap fails unlinks the owner's block."""
    program(
        """
        import resource

        def lack(address, pipe):
            with open("/proc/self/statm") as file:
                used = int(file.read().split()[0]) * 4096
            limits = used + (16 << 20), resource.RLIM_INFINITY
            old = resource.getrlimit(resource.RLIMIT_AS)
            for act in (
                lambda: address.attach(readonly=True),
                lambda: shm.attach(address.name, readonly=True),
                pipe.recv,
            ):
                resource.setrlimit(resource.RLIMIT_AS, (limits[0], old[1]))
                try:
                    error, = refused(shm.ShmError, act)
                finally:
                    resource.setrlimit(resource.RLIMIT_AS, old)
                assert error.errno == 12, error
            assert address.attach().sum() == 1  # and now there is

        def main(context):
            a = shm.zeros(1, "u1", capacity=256 << 20)
            a[0] = 1
            ends = context.Pipe()
            ends[0].send(shm.attach(shm.handle(a), readonly=True))
            join(start(context, lack, shm.handle(a), ends[1]))
            assert len(mine()) == 1 and shm.attach(shm.segment(a).name)[0] == 1
            return 1  # the lost message is removed with the family
        """,
        daily_method,
    )


def test_one_of_many_unlinks(program, daily_method):
    """Standard library: the second to unlink gets an error from the tracker at exit, too."""
    program(
        """
        def unlink(names, barrier):
            barrier.wait(60)
            done = 0
            for name in names:
                try:
                    shm.unlink(name)
                    done += 1
                except FileNotFoundError:
                    pass
                shm.unlink(name, missing_ok=True)
            sys.exit(done)

        def main(context):
            arrays = [shm.ones(1) for _ in range(60)]
            names, barrier = [shm.segment(a).name for a in arrays], context.Barrier(3)
            children = [start(context, unlink, names, barrier) for _ in range(3)]
            for child in children:
                child.join(60)
            assert sum(child.exitcode for child in children) == len(arrays)
            assert mine() == [] and sum(a[0] for a in arrays) == len(arrays)
            for a in arrays:
                shm.unlink(a, missing_ok=True)
        """,
        daily_method,
    )


def test_exit_does_not_wait_for_a_fork(script, tmp_path):
    """Standard library: a process that called os.fork hangs at its exit, in the tracker."""
    written = tmp_path / "written"
    process = script.start(
        """
        a = shm.ones(3)
        parent = os.getpid()
        if os.fork() == 0:
            quiet = os.open(os.devnull, os.O_RDWR)
            for number in (1, 2):
                os.dup2(quiet, number)
            sys.stdin.readline()  # until the test sends a line
            with open(sys.argv[1], "w") as file:
                file.write(f"{os.getppid() != parent} {a.sum() + shm.ones(1)[0]}")
            sys.exit()
        """,
        written,
    )
    assert process.wait(30) == 0
    assert (process.line_or_end(), process.err) == (None, "")
    assert not written.exists()
    process.send()
    process.wait_alone()
    assert written.read_text() == "True 4.0"


def test_nothing_stays_of_a_killed_group(script, given, left, daily_method):
    """Standard library, joblib: the tracker dies with its process group, and all memory leaks."""
    leader = script.start(
        """
        import multiprocessing as mp

        def child(a, pipe):
            own = shm.full(5, 2.0)
            pipe.send((shm.segment(a).family, own, a[1:]))
            signal.pause()

        if __name__ == "__main__":
            context = mp.get_context(sys.argv[1])
            a, name = shm.ones(3), shm.ones(4, name=sys.argv[2])
            pipes = [context.Pipe() for _ in range(2)]
            for pipe in pipes:
                context.Process(target=child, args=(a, pipe[1])).start()
                pipe[1].close()
            got = pipes[0][0].recv()  # the other message is not received
            assert pipes[1][0].poll(60)
            print(got[0], shm.segment(a).family, flush=True)
            signal.pause()
        """,
        daily_method,
        given("group"),
    )
    families = set(leader.line().split())
    assert len(families) == 1
    family = families.pop()
    leader.kill_group()
    # The first array of any process removes it, also of another test's.
    assert script.run("shm.ones(1)") == ""
    assert not left(family)


def test_families_come_and_go(program, daily_method):
    """Fast-DDS: a lock file is removed by one process while another is about to lock it."""
    program(
        """
        def live_and_go(number):
            a = shm.full(3, number)
            info, = [info for info in shm.list() if info.name == shm.segment(a).name]
            assert info.alive and info.mine
            assert a.sum() == 3 * number
            return shm.segment(a).family

        def main(context):
            turns = 15 if context.get_start_method() == "fork" else 6  # others start slowly
            with pool_of(context, 3, None, (), 1) as pool:  # each child has one task
                families = pool.map(live_and_go, range(turns), chunksize=1)
            assert set(families) == {shm.segment(shm.ones(1)).family}
        """,
        daily_method,
    )


def test_the_process_is_left_as_it_was(bare_script):
    """UltraDict, pynbody: trackers are patched, signal handlers set, random seeds changed."""
    bare_script.run(
        """
        import os, random, signal, sys, threading
        from multiprocessing import reduction, resource_tracker
        from pathlib import Path
        import numpy as np

        def state():
            return (
                [signal.getsignal(number) for number in sorted(signal.valid_signals())],
                [getattr(resource_tracker, name) for name in sorted(vars(resource_tracker))],
                resource_tracker._resource_tracker._fd,
                random.getstate(), str(np.random.get_state()),
                threading.active_count(), sys.excepthook, sys.unraisablehook,
                Path(f"/proc/self/task/{os.getpid()}/children").read_text(),
                os.getcwd(), dict(os.environ), os.getpgrp(), os.getsid(0), os.umask(0o22),
            )

        before = state()
        import synk_shm as shm
        a = shm.zeros((0, 2), capacity=10)
        a = shm.resize(a, 100)
        with shm.lock(a), shm.scope() as s:
            b = s.share(shm.attach(shm.handle(a), readonly=True))
        reduction.ForkingPickler.dumps(a)
        assert state() == before
        """
    )


@pytest.mark.parametrize("kind", ["SIGTERM", "SIGHUP", "SIGINT", "SIGABRT", "SIGSEGV"])
def test_signals_end_a_process_as_without_us(script, kind):
    """pynbody: its handler swallows SIGTERM; joblib and others leak after any of these."""
    owner = script.start(
        """
        import resource
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        a = shm.ones(3)
        print(shm.segment(a).name, flush=True)
        try:
            os.kill(os.getpid(), getattr(signal, sys.argv[1]))
            signal.pause()
        except KeyboardInterrupt:
            sys.exit(f"{shm.attach(shm.segment(a).name).sum()}")
        """,
        kind,
    )
    name = owner.line()
    status, _, err = owner.finish()
    if kind == "SIGINT":
        assert (status, err) == (1, "3.0\n")
    else:
        assert (status, err) == (-getattr(signal, kind), "")
        shm.cleanup()
    assert name not in [info.name for info in shm.list()]
