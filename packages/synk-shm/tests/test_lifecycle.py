"""Who removes what, and when: with real processes that end in every way."""

from __future__ import annotations

import pickle
import time

import pytest

import synk_shm as shm
from synk_shm._processes.process import process
from synk_testing import shared_memory

MAKE = """
    import sys, pickle, numpy as np, synk_shm as shm
    a = shm.share(np.arange(6.0).reshape(2, 3))
    print(pickle.dumps(shm.handle(a)).hex(), flush=True)
    sys.stdin.readline()
"""
ATTACH = """
    import sys, pickle, synk_shm as shm
    b = shm.attach(pickle.loads(bytes.fromhex(sys.argv[1])))
    print(b.sum(), flush=True)
    sys.stdin.readline()
    print(b.sum())
"""


def names() -> set[str]:
    return {info.name for info in shm.list()}


def gone(name: str) -> bool:
    """Whether it is, at the latest in a moment: another program may be sweeping it just now."""
    deadline = time.monotonic() + 2
    while name in names() and time.monotonic() < deadline:
        time.sleep(0.01)
    return name not in names()


def test_exit_of_the_owner_unlinks(script):
    owner = script.start(MAKE)
    address = pickle.loads(bytes.fromhex(owner.line()))
    assert address.name in names()
    script.finish(owner, "")
    assert gone(address.name)
    with pytest.raises(FileNotFoundError):
        address.attach()


@pytest.mark.parametrize("end, code", [("raise ZeroDivisionError", 1), ("sys.exit(3)", 3)])
def test_exception_and_sys_exit_of_the_owner_unlink(script, given, end, code):
    name = given("left")
    start = "import sys, synk_shm\na = synk_shm.ones(3, name=sys.argv[1])\n"
    owner = script.start(start + "print(1, flush=True)\nsys.stdin.readline()\n" + end, name)
    owner.line()
    assert name in names()
    status, _, said = owner.finish("")
    assert status == code
    assert said.count("Traceback") == (code == 1)
    assert gone(name)


def test_last_array_of_the_owner_unlinks_at_once(script):
    a = shm.ones(100)
    address = shm.handle(a)
    other = script.start(ATTACH, pickle.dumps(address).hex())
    assert other.line() == "100.0"
    del a
    assert gone(address.name)
    assert script.finish(other, "") == "100.0"  # what is mapped stays


def test_exit_of_an_attacher_changes_nothing(script):
    a = shm.ones(100)
    other = script.start(ATTACH, pickle.dumps(shm.handle(a)).hex())
    assert script.finish(other, "") == "100.0\n100.0"
    other = script.start(ATTACH, pickle.dumps(shm.handle(a)).hex())
    other.line()
    other.kill()
    assert shm.handle(a).name in names()
    assert shm.attach(shm.handle(a)).sum() == 100


def test_next_process_removes_what_a_killed_owner_left(script):
    owner = script.start(MAKE)
    name = pickle.loads(bytes.fromhex(owner.line())).name
    owner.kill()
    found = [info for info in shm.list() if info.name == name]
    assert not any(info.alive for info in found)  # another program may have swept it
    script.run("import synk_shm; synk_shm.ones(1)")
    assert gone(name)


def test_cleanup_removes_what_a_killed_owner_left(script):
    alive, dead = script.start(MAKE), script.start(MAKE)
    kept, lost = (pickle.loads(bytes.fromhex(p.line())).name for p in (alive, dead))
    dead.kill()
    assert kept not in shm.cleanup()
    assert kept in names()
    assert gone(lost)
    script.finish(alive, "")


def test_given_names_of_a_killed_owner_are_removed_too(script, given):
    name = given("given")
    code = "import synk_shm, sys; a = synk_shm.ones(3, name=sys.argv[1]); print(1, flush=True)"
    owner = script.start(code + "; sys.stdin.readline()", name)
    owner.line()
    assert name in names()
    owner.kill()
    shm.cleanup()
    assert gone(name)


@pytest.mark.parametrize("workers", [1, 3])
def test_last_attacher_removes_what_a_killed_owner_left(script, left, workers):
    owner = script.start(MAKE)
    address = owner.line()
    others = [script.start(ATTACH, address) for _ in range(workers)]
    assert {other.line() for other in others} == {"15.0"}
    owner.kill()
    name = pickle.loads(bytes.fromhex(address)).name
    for other in others:
        assert name in names()  # a reader keeps the family alive
        assert script.finish(other, "") == "15.0"
    assert gone(name)
    family = name.split(".")[1]
    assert not left(family)


def test_attacher_that_lets_go_removes_what_a_killed_owner_left(script):
    owner = script.start(MAKE)
    address = owner.line()
    other = script.start(
        """
        import sys, pickle, synk_shm as shm
        b = shm.attach(pickle.loads(bytes.fromhex(sys.argv[1])))
        print(1, flush=True)
        sys.stdin.readline()
        shm.close(b)
        print(shm.list(), flush=True)
        sys.stdin.readline()
        """,
        address,
    )
    other.line()
    owner.kill()
    other.send()
    name = pickle.loads(bytes.fromhex(address)).name
    assert name not in other.line()
    assert gone(name)
    script.finish(other, "")


def test_fork_without_exec(script):
    """A forked child neither unlinks its parent's arrays nor loses its own."""
    script.run(
        """
        import os, sys, synk_shm as shm
        a = shm.zeros(3)
        pid = os.fork()
        if pid == 0:
            a[0] = 1
            own = shm.ones(5)
            assert not shm.segment(a).owner and shm.segment(own).owner
            shm.attach(shm.handle(a))[1] = 2
            del a
            sys.exit(7)  # runs the exit handlers that it inherited
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 7
        assert a.tolist() == [1, 2, 0]
        assert shm.attach(shm.handle(a)).tolist() == [1, 2, 0]
        left, = [info for info in shm.list() if info.mine]
        assert left.name == shm.segment(a).name
        """
    )


def test_forked_child_outlives_its_parent(script):
    """The memory stays with the child; the names go with the parent."""
    process = script.start(
        """
        import os, sys, time, synk_shm as shm
        a = shm.ones(3)
        parent = os.getpid()
        if os.fork() == 0:
            while os.getppid() == parent:
                time.sleep(0.01)
            own = shm.full(2, 4.0)
            print(a.sum(), shm.attach(shm.handle(own)).sum(), sum(i.mine for i in shm.list()))
        """
    )
    assert script.finish(process) == "3.0 8.0 1"


def test_killed_parent_with_a_living_fork(script, given):
    name = given("orphan")
    process = script.start(
        """
        import os, sys, time, synk_shm as shm
        name = sys.argv[1]
        a = shm.ones(3, name=name)
        parent = os.getpid()
        if os.fork() == 0:
            while os.getppid() == parent:
                time.sleep(0.01)
            print('/synk.u.' + name in shm.cleanup(), shm.attach(name).sum(), flush=True)
            sys.stdin.readline()
            sys.exit()
        os.kill(parent, 9)
        """,
        name,
    )
    assert process.line() == "False 3.0"
    assert name in names()
    assert f"/synk.u.{name}" not in shm.cleanup()  # the child still belongs to the family
    process.send()
    process.wait_alone()
    assert gone(name)


def test_a_fork_that_leaves_does_not_keep_what_a_killed_parent_had(script, given):
    name = given("left")
    process = script.start(
        """
        import os, sys, time, synk_shm as shm
        a = shm.ones(3, name=sys.argv[1])
        parent = os.getpid()
        if os.fork() == 0:
            shm.leave()
            while os.getppid() == parent:
                time.sleep(0.01)
            print('/synk.u.' + sys.argv[1] in shm.cleanup(), a.sum(), flush=True)
            own = shm.ones(2)
            print(len([i for i in shm.list() if i.mine]), flush=True)
            sys.stdin.readline()
            sys.exit()
        os.kill(parent, 9)
        """,
        name,
    )
    assert process.line() == "True 3.0"
    assert process.line() == "1"
    assert name not in names()
    process.send()
    process.wait_alone()


def test_memfd_leaves_nothing_in_any_case(script):
    owner = script.start(MAKE.replace("reshape(2, 3)", "reshape(2, 3), backend='memfd'"))
    address = pickle.loads(bytes.fromhex(owner.line()))
    seen = address.attach()
    family = shm.segment(seen).family
    assert not shared_memory(f"synk.{family}")
    owner.kill()
    assert seen.sum() == 15
    shm.close(seen)
    del seen
    with pytest.raises(FileNotFoundError):
        address.attach()


def test_lost_lock_file_is_made_again(script):
    """A cleaner of temporary files may take it; the family must not look dead for it."""
    script.run(
        """
        import os, glob, time, synk_shm as shm
        a = shm.ones(3)
        lock, = glob.glob(f"/dev/shm/synk.{os.getuid()}.{shm.segment(a).family}.lock")
        os.unlink(lock)
        time.sleep(0.2)  # it is looked for every 0.1 s
        b = shm.ones(3)
        assert os.path.exists(lock)
        assert all(info.alive for info in shm.list() if info.name == shm.segment(b).name)
        """
    )


def test_threads_make_and_drop_at_once():
    from concurrent.futures import ThreadPoolExecutor

    def work(seed: int) -> float:
        total = 0.0
        for i in range(60):
            a = shm.full(10, seed + i)
            total += shm.attach(shm.handle(a))[::2].sum()
        return total

    with ThreadPoolExecutor(8) as pool:
        totals = list(pool.map(work, range(8)))
    assert totals == [sum(5.0 * (seed + i) for i in range(60)) for seed in range(8)]


def test_two_threads_that_let_go_of_one_segment_do_not_disturb_each_other(monkeypatch):
    """Between the look at what is mapped and its removal another thread may have removed it."""

    class Raced(dict):
        def get(self, key, default=None):
            return self.pop(key, default)

    a = shm.ones(3)
    monkeypatch.setattr(process, "mapped", Raced(process.mapped))
    del a  # an error in there would be no exception of the test's, but a warning, and so one
    monkeypatch.undo()
    assert shm.ones(3).sum() == 3


def test_interrupts_do_no_lasting_harm(script, left):
    """An exception of a signal handler may cut any step short: the next ones work all the same."""
    out = script.run(
        """
        import random, signal, sys, synk_shm as shm

        class Interrupt(Exception):
            pass

        def interrupt(number, frame):
            raise Interrupt

        def work(i):
            a = shm.full(3, i)
            b = shm.attach(shm.handle(a), readonly=True)
            with shm.lock(a, timeout_s=10):
                a[0] = -1
            assert b.tolist() == [-1, i, i]
            assert shm.resize(a, 1000)[1] == i

        hook, sys.unraisablehook = sys.unraisablehook, lambda told: None  # tells of interrupts
        signal.signal(signal.SIGALRM, interrupt)
        chance, hits = random.Random(1), 0
        for i in range(300):
            try:
                signal.setitimer(signal.ITIMER_REAL, chance.uniform(1e-6, 5e-4))
                work(i)
                signal.setitimer(signal.ITIMER_REAL, 0)
            except Interrupt:
                hits += 1
        signal.setitimer(signal.ITIMER_REAL, 0)
        sys.unraisablehook = hook
        assert hits > 30, hits
        for i in range(30):
            work(i)
        kept = shm.ones(3)
        print(shm.segment(kept).family)
        """
    )
    assert not left(out)


def test_import_is_light_and_silent(script):
    out = script.run(
        """
        import sys, synk_shm
        print("multiprocessing" in sys.modules, "multiprocessing.resource_tracker" in sys.modules)
        a = synk_shm.ones(3)
        print("multiprocessing.resource_tracker" in sys.modules)
        """
    )
    assert out.splitlines()[0] == "False False"
