"""What goes wrong between processes elsewhere, and must not here.

Each docstring names the peer and the fault that was reproduced; each test fails if we have it.
"""

from __future__ import annotations

import signal

import pytest

import synk_shm as shm

# From a server is by day tested in test_exit.py and test_multiprocessing.py.
METHODS = pytest.mark.parametrize(
    "method", ["fork", "spawn", pytest.param("forkserver", marks=pytest.mark.nightly)]
)


@METHODS
def test_exit_of_an_attacher_leaves_the_segment(program, method):
    """Standard library: a process that only attached a block destroys it when it exits."""
    program(
        """
        def look(address, end):
            assert address.attach().sum() == 3
            if end == "exit":
                sys.exit(0)
            if end == "kill":
                os.kill(os.getpid(), signal.SIGKILL)

        def main(context):
            a = shm.ones(3)
            for end, code in [("return", 0), ("exit", 0), ("kill", -signal.SIGKILL)]:
                child = context.Process(target=look, args=(shm.handle(a), end))
                child.start()
                child.join(60)
                assert child.exitcode == code
                assert mine() == [shm.segment(a).name]
            with context.Pool(1) as pool:
                pool.apply(look, (shm.handle(a), "return"))
                pool.close()
                pool.join()
            with ProcessPoolExecutor(1, mp_context=context) as pool:
                pool.submit(look, shm.handle(a), "return").result(60)
            assert mine() == [shm.segment(a).name]
        """,
        method,
    )


@pytest.mark.parametrize("end", ["", "sys.exit(0)", "os._exit(0)", "shm.close(b)", "shm.cleanup()"])
def test_exit_of_a_stranger_leaves_the_segment(script, end):
    """Standard library: the same from a program that the owner never heard of."""
    a = shm.ones(3)
    code = f"import os, sys, synk_shm as shm\nb = shm.attach(sys.argv[1])\n{end}\n"
    for _ in range(2):
        script.run(code, shm.segment(a).name)
        assert shm.segment(a).name in [info.name for info in shm.list()]


def test_exit_of_a_fork_that_attached_first(script):
    """Standard library: a forked child whose tracker did not run yet destroys it as well."""
    script.run(
        """
        import os, pickle, sys, synk_shm as shm
        read, write = os.pipe()
        pid = os.fork()
        if pid == 0:
            a = shm.attach(pickle.loads(os.read(read, 4096)))
            sys.exit(int(a.sum()))
        a = shm.ones(3)
        os.write(write, pickle.dumps(shm.handle(a)))
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 3
        assert [info.name for info in shm.list() if info.mine] == [shm.segment(a).name]
        """
    )


@METHODS
def test_many_ranks_are_silent(program, method):
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
            children = [
                context.Process(target=rank, args=(a, shm.handle(a), i)) for i in range(len(a))
            ]
            for child in children:
                child.start()
            for child in children:
                child.join(60)
            assert [child.exitcode for child in children] == [0] * len(a)
            assert (a == 1).all()
        """,
        method,
    )


@METHODS
def test_failed_attach_leaves_the_segment(program, method):
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
                    act()
                except OSError as error:
                    assert error.errno == 12, error
                    assert isinstance(error, shm.ShmError)
                else:
                    raise AssertionError("there was room")
                finally:
                    resource.setrlimit(resource.RLIMIT_AS, old)
            assert address.attach().sum() == 1  # and now there is

        def main(context):
            a = shm.zeros(1, "u1", capacity=256 << 20)
            a[0] = 1
            ends = context.Pipe()
            ends[0].send(shm.attach(shm.handle(a), readonly=True))
            child = context.Process(target=lack, args=(shm.handle(a), ends[1]))
            child.start()
            child.join(60)
            assert child.exitcode == 0
            assert len(mine()) == 1 and shm.attach(shm.segment(a).name)[0] == 1
            return 1  # the message was lost on the way, and goes with the family
        """,
        method,
    )


@METHODS
def test_one_of_many_unlinks(program, method):
    """Standard library: who unlinks second gets an error from the tracker at exit, too."""
    program(
        """
        def unlink(names, start):
            start.wait(60)
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
            names, start = [shm.segment(a).name for a in arrays], context.Barrier(3)
            children = [context.Process(target=unlink, args=(names, start)) for _ in range(3)]
            for child in children:
                child.start()
            for child in children:
                child.join(60)
            assert sum(child.exitcode for child in children) == len(arrays)
            assert mine() == [] and sum(a[0] for a in arrays) == len(arrays)
            for a in arrays:
                shm.unlink(a, missing_ok=True)
        """,
        method,
    )


def test_exit_does_not_wait_for_a_fork(script, tmp_path):
    """Standard library: a process that called os.fork hangs at its exit, in the tracker."""
    told = tmp_path / "told"
    process = script.start(
        """
        import os, sys, time, synk_shm as shm
        a = shm.ones(3)
        parent = os.getpid()
        if os.fork() == 0:
            quiet = os.open(os.devnull, os.O_RDWR)
            for number in (1, 2):
                os.dup2(quiet, number)
            sys.stdin.readline()  # it outlives its parent for as long as the test likes
            with open(sys.argv[1], "w") as file:
                file.write(f"{os.getppid() != parent} {a.sum() + shm.ones(1)[0]}")
            sys.exit()
        """,
        told,
    )
    assert process.wait(30) == 0
    assert (process.line_or_end(), process.err) == (None, "")
    assert not told.exists()
    process.send()
    process.wait_alone()
    assert told.read_text() == "True 4.0"


@METHODS
def test_nothing_stays_of_a_killed_group(script, given, left, method):
    """Standard library, joblib: the tracker dies with its process group, and all memory leaks."""
    leader = script.start(
        """
        import multiprocessing as mp, signal, sys, synk_shm as shm

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
            got = pipes[0][0].recv()  # and the other message stays under way
            assert pipes[1][0].poll(60)
            print(got[0], shm.segment(a).family, flush=True)
            signal.pause()
        """,
        method,
        given("group"),
    )
    families = set(leader.line().split())
    assert len(families) == 1
    family = families.pop()
    leader.kill_group()
    # Any process that begins to share memory removes it, also one of another test.
    assert script.run("import synk_shm; synk_shm.ones(1)") == ""
    assert not left(family)


@METHODS
def test_families_come_and_go(program, method):
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
            with context.Pool(3, maxtasksperchild=1) as pool:
                families = pool.map(live_and_go, range(turns), chunksize=1)
                pool.close()
                pool.join()
            assert len(set(families)) == 1
        """,
        method,
    )


def test_the_process_is_left_as_it_was(script):
    """UltraDict, pynbody: trackers are patched, signal handlers set, random seeds changed."""
    script.run(
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
def test_signals_end_a_process_as_ever(script, kind):
    """pynbody: its handler swallows SIGTERM; joblib and others leak after any of these."""
    owner = script.start(
        """
        import os, resource, signal, sys, synk_shm as shm
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
    status, _, said = owner.finish()
    if kind == "SIGINT":
        assert (status, said) == (1, "3.0\n")
    else:
        assert (status, said) == (-getattr(signal, kind), "")
        shm.cleanup()
    assert name not in [info.name for info in shm.list()]
