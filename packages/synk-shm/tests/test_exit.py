"""Programs and their children end in every way: nothing is left, and nothing is printed."""

from __future__ import annotations

import os
import sys

import pytest

TIMES = 25 if os.environ.get("SYNK_TESTS") == "all" else 8
can_fork = pytest.mark.skipif(
    sys.version_info[:2] == (3, 12), reason="Python 3.12 does not fork any more when it ends"
)
EXIT = """
import atexit, os, sys
BEFORE
import synk_shm as shm

def one():
    ONE

def other():
    a = shm.ones(2)
    assert shm.attach(shm.handle(a), readonly=True).sum() == 2

MIDDLE
name = sys.argv[1]
kept = shm.ones(3, name=name)
AFTER
"""
# The handler registered last runs first.
ORDERS = pytest.mark.parametrize("order", ["BEFORE", "MIDDLE", "AFTER"], ids=str.lower)


def at_exit(order: str, act: str) -> str:
    code = EXIT.replace("ONE", act).replace(order, "atexit.register(lambda: one())")
    return code.replace("BEFORE", "").replace("MIDDLE", "").replace("AFTER", "")


@ORDERS
@pytest.mark.parametrize(
    "act",
    [
        "other()",
        "globals().update(late=shm.ones(3, name=name + 'x'))",
        "shm.close(kept)",
        "shm.unlink(kept, missing_ok=True)",
        "shm.resize(kept, 100000)",
        "globals().update(late=shm.attach(shm.handle(shm.share(kept)), readonly=True))",
        "globals().pop('kept')",
        "shm.cleanup(), shm.list()",
    ],
)
def test_handlers_that_use_arrays(bare_script, given, left, order, act):
    """Handlers of atexit run before ours or after it: arrays work in both, and are removed."""
    name = given("atexit")
    if order != "AFTER":  # ours has run, so the name may have gone
        except_ = "except (ValueError, FileNotFoundError):\n        pass"
        act = f"\n    try:\n        {act}\n    {except_}"
    family = bare_script.run(at_exit(order, act) + "\nprint(shm.segment(kept).family)", name)
    assert not left(name, family)


@pytest.mark.parametrize(
    "order, act",
    [("BEFORE", "shm.ones(3)"), ("MIDDLE", "globals().update(late=shm.ones(3)[1:])")],
)
def test_first_array_in_a_handler(bare_script, left, order, act):
    code = at_exit(order, act + "; print(shm.segment(shm.ones(1)).family)")
    family = bare_script.run(code.rpartition("name =")[0])
    assert len(family) == 8
    assert not left(family)


@ORDERS
@pytest.mark.parametrize(
    "act, code, word",
    [
        ("raise ZeroDivisionError", 0, "ZeroDivisionError"),
        ("sys.exit(5)", None, ""),
        ("os._exit(5)", 5, ""),
        ("os.abort()", -6, ""),
        ("os.kill(os.getpid(), 9)", -9, ""),
        pytest.param("os.fork() or os._exit(0)", 0, "", marks=can_fork),
        pytest.param("os.fork()", 0, "", marks=can_fork),
        pytest.param("os.fork() or other()", 0, "", marks=can_fork),
    ],
)
def test_handlers_that_end_it_otherwise(bare_script, given, left, order, act, code, word):
    """The next process removes what this one cannot remove."""
    name = given("atexit")
    limit = "import resource; resource.setrlimit(resource.RLIMIT_CORE, (0, 0)); "
    process = bare_script.start(at_exit(order, limit + act), name)
    status, _, err = process.finish()
    if code is not None:
        assert status == code
    if word:
        assert err.count("Traceback") == 1
        assert word in err
    elif code is not None:  # some versions of Python report SystemExit in a handler
        assert err == ""
    assert "synk" not in err.replace("synk-shm/tests", "")
    process.wait_alone()
    if code is None or (code >= 0 and "_exit(5)" not in act):
        assert not left(name)
    bare_script.run("import synk_shm; synk_shm.ones(1)")
    assert not left(name)


FORK = """
    a = shm.zeros(3, name=sys.argv[1])
    pid = os.fork()
    if pid == 0:
        os.close(2)
        os.open(os.devnull, os.O_WRONLY)
        a[0] = 1
        own = shm.ones(5)
        assert not shm.segment(a).owner and shm.segment(own).owner
        shm.attach(shm.handle(a))[1] = 2
        shm.attach(sys.argv[1], readonly=True)
        shm.attach(shm.handle(own))
        ACT
    code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    assert code == int(sys.argv[2]), code
    assert a.tolist() == [1, 2, 0] == shm.attach(sys.argv[1], readonly=True).tolist()
    if sys.argv[3] == "True":  # else its own array is removed with the family
        assert mine() == [sys.argv[1]]
    print(shm.segment(a).family)
"""


@pytest.mark.parametrize(
    "act, code",
    [
        ("del own; sys.exit(0)", 0),
        ("sys.exit(0)", 0),
        ("sys.exit(7)", 7),
        ("raise ZeroDivisionError", 1),
        ("os._exit(3)", 3),
        ("os.kill(os.getpid(), 9)", -9),
        ("os.kill(os.getpid(), 15)", -15),
        ("del a, own; sys.exit(0)", 0),
        ("shm.close(own); shm.close(a); sys.exit(0)", 0),
        ("os.execv(sys.executable, [sys.executable, '-c', 'import synk_shm as s; s.ones(1)'])", 0),
        ("os.fork(); sys.exit(0)", 0),
    ],
)
def test_a_fork_that_ends(script, given, left, act, code):
    name = given("fork")
    orderly = "sys.exit" in act or "raise" in act
    family = script.run(FORK.replace("ACT", act), name, code, orderly)
    assert not left(family, name)


def test_threads_make_and_drop_while_others_fork(script, left):
    other = script.start("a = shm.ones(3)\nprint_handle(a)\nsys.stdin.readline()")
    out = script.run(
        """
        import warnings
        address = pickle.loads(bytes.fromhex(sys.argv[1]))
        warnings.filterwarnings("ignore", ".*fork.*", DeprecationWarning)
        done = threading.Event()
        counts = [0] * 4

        def work(number):
            while not done.is_set():
                a = shm.full(10, number)
                assert shm.attach(shm.handle(a), readonly=True).sum() == 10 * number
                assert address.attach(readonly=True).sum() == 3
                counts[number] += 1

        kept = shm.ones(3)
        threads = [threading.Thread(target=work, args=(i,)) for i in range(len(counts))]
        for thread in threads:
            thread.start()
        for number in range(40):
            pid = os.fork()
            if pid == 0:
                signal.alarm(30)  # kills a child that hangs
                b = shm.full(10, 5.0)
                assert shm.attach(shm.handle(b), readonly=True).sum() == 50
                assert shm.attach(shm.handle(kept), readonly=True).sum() == 3
                assert address.attach(readonly=True).sum() == 3
                del b
                os._exit(0) if number % 2 else os._exit(len(shm.list()) == 0)
            assert os.waitpid(pid, 0)[1] == 0
        done.set()
        for thread in threads:
            thread.join(30)
        assert min(counts) > 0
        assert mine() == [shm.segment(kept).name]
        print(shm.segment(kept).family)
        """,
        other.line(),
    )
    assert not left(out)
    script.finish(other, "")


@pytest.mark.parametrize("lookers", [0, 1])
def test_last_process_of_a_family_leaves_nothing(script, small_shm, lookers):
    """A process that checks whether a family is alive must not disturb its last member's exit."""
    left = script.run(
        """
        import multiprocessing

        def program():
            multiprocessing.current_process().authkey = os.urandom(32)  # a family of its own
            kept = shm.ones(3)
            if os.fork() == 0:
                lost = shm.ones(5)
                os.kill(os.getpid(), signal.SIGKILL)
            os.wait()
            sys.exit()  # the last member: it removes what the killed process made

        lookers = []
        for _ in range(int(sys.argv[1])):
            lookers.append(os.fork())
            while lookers[-1] == 0:
                shm.list()
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
        """,
        lookers,
        TIMES if lookers else 10,
        prefix=small_shm,
    )
    assert left == "0"
