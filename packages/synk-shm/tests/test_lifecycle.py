"""Real processes that exit or are killed: which of them removes what, and when."""

from __future__ import annotations

import os
import pickle
from pathlib import Path

import pytest

import synk_shm as shm
from synk_shm._processes.process import process
from synk_shm._segments import posix
from synk_testing import shared_memory

MAKE = """
    name = dict(name=sys.argv[1]) if len(sys.argv) > 1 else {}
    a = shm.share(np.arange(6.0).reshape(2, 3), **name)
    print_handle(a)
    sys.stdin.readline()
"""


def entry(handle: shm.Handle) -> str:
    return handle.name.lstrip("/")


def handle_of(owner) -> shm.Handle:
    return pickle.loads(bytes.fromhex(owner.line()))


@pytest.mark.parametrize("end, code", [("", 0), ("raise ZeroDivisionError", 1), ("sys.exit(3)", 3)])
@pytest.mark.parametrize("word", [None, "given"])
def test_exit_of_the_owner_unlinks(script, given, left, word, end, code):
    owner = script.start(f"{MAKE}\n    {end}\n", *([given(word)] if word else []))
    address = handle_of(owner)
    assert shared_memory(entry(address))
    status, _, err = owner.finish("")
    assert status == code
    assert err.count("Traceback") == (code == 1)
    assert left(entry(address)) == []
    with pytest.raises(FileNotFoundError):
        address.attach()


@pytest.mark.parametrize(
    "end",
    ["", "sys.exit(0)", "os._exit(0)", "shm.close(b)", "shm.cleanup()", "os.kill(os.getpid(), 9)"],
)
def test_exit_of_an_attacher_changes_nothing(script, end):
    """Standard library: a program that only attached a block destroys it when it exits."""
    a = shm.ones(100)
    code = f"b = attach_hex(sys.argv[1])\nprint(b.sum(), flush=True)\n{end}\n"
    for _ in range(2):
        other = script.start(code, pickle.dumps(shm.handle(a)).hex())
        assert other.finish() == (-9 if "kill" in end else 0, "100.0\n", "")
        assert shared_memory(entry(shm.handle(a)))
        assert shm.attach(shm.handle(a)).sum() == 100


def test_list_of_this_program_alone(script, given):
    a, b = shm.zeros(3), shm.zeros((), name=given("b"))
    other = script.start(MAKE)
    theirs = handle_of(other).name
    everything, own = shm.list(), shm.list(mine=True)
    assert theirs in {name for info in everything for name in info.names}
    assert theirs not in {name for info in own for name in info.names}
    assert own == [info for info in everything if info.mine]
    assert {shm.segment(a).name, shm.segment(b).name} <= {n for info in own for n in info.names}
    other.kill()
    assert all(info.mine and info.alive for info in shm.list(mine=True))
    shm.cleanup()


@pytest.mark.parametrize("word", [None, "given"])
@pytest.mark.parametrize("act", ["cleanup", "first array of another program"])
def test_segments_of_a_killed_owner_are_removed(script, given, left, act, word):
    alive, dead = script.start(MAKE), script.start(MAKE, *([given(word)] if word else []))
    kept, lost = handle_of(alive).name, handle_of(dead).name
    dead.kill()
    found = [info for info in shm.list() if lost in info.names]
    assert not any(info.alive for info in found)  # another program may have removed it
    if act == "cleanup":
        assert kept not in shm.cleanup()
    else:
        script.run("shm.ones(1)")
    assert shared_memory(kept.lstrip("/"))
    assert left(lost.lstrip("/")) == []
    script.finish(alive, "")


@pytest.mark.parametrize(
    "spoil, stays",
    [
        (lambda good: good[:16] + b"\7" + good[17:], True),
        (lambda good: b"garbage" * 100, True),
        (lambda good: good[:20], True),
        (lambda good: bytes(len(good)), False),
    ],
    ids=["another version", "garbage", "too short", "not completed"],
)
def test_a_family_with_a_header_that_cannot_be_read_is_left_alone(
    script, given, left, spoil, stays
):
    """All its names stay: another version may need them. What a kill left half made goes."""
    words = [given("old")] if stays else []  # only what is complete gets such a name
    owner = script.start(MAKE, *words)
    path = Path(f"/dev/shm/{entry(handle_of(owner))}")
    parts, good = (path.name.split(".")[1], *words), path.read_bytes()

    def there() -> list[str]:
        return sorted(name for part in parts for name in shared_memory(part))

    path.write_bytes(spoil(good))
    before = there()
    owner.kill()
    script.run("shm.ones(1)")
    if stays:
        assert there() == before
        path.write_bytes(good)
        shm.cleanup()
    assert left(*parts) == []


def test_lost_lock_file_is_made_again(script):
    """A family must not look dead after a cleaner of temporary files removed its lock file."""
    script.run(
        """
        import glob
        a = shm.ones(3)
        lock, = glob.glob(f"/dev/shm/synk.{os.getuid()}.{shm.segment(a).family}.lock")
        os.unlink(lock)
        time.sleep(0.2)  # each process checks every 0.1 s
        b = shm.ones(3)
        assert os.path.exists(lock)
        assert all(info.alive for info in shm.list() if info.name == shm.segment(b).name)
        """
    )


def test_two_threads_that_drop_one_segment_at_once(monkeypatch):
    """Another thread may remove a mapping between the lookup and the removal of this one."""

    class Raced(dict):
        def get(self, key, default=None):
            return self.pop(key, default)

    a = shm.ones(3)
    monkeypatch.setattr(process, "mapped", Raced(process.mapped))
    del a  # an error in the finalizer becomes a warning, and the warning fails the test
    monkeypatch.undo()
    assert shm.ones(3).sum() == 3


@pytest.mark.parametrize(
    ("owner", "name", "is_made"),
    [(os, "open", False), (os, "open", True), (os, "memfd_create", True), (posix, "seal", False)],
)
def test_an_interrupt_of_the_creation_leaves_nothing(monkeypatch, owner, name, is_made):
    kept, backend = shm.ones(3), "shm" if name == "open" else "memfd"

    def there():
        return shm.list(mine=True), os.listdir("/proc/self/fd")

    before, usual = there(), getattr(owner, name)

    def struck(*args):
        if is_made:
            usual(*args)
        raise KeyboardInterrupt

    monkeypatch.setattr(owner, name, struck)
    with pytest.raises(KeyboardInterrupt):
        shm.empty(4, backend=backend)
    monkeypatch.undo()
    assert there() == before
    assert shm.ones(4).sum() == kept.sum() + 1


def test_interrupts_do_no_lasting_harm(script, left):
    """An exception of a signal handler may end any step early: later steps work all the same."""
    out = script.run(
        """
        import random

        class Interrupt(Exception):
            pass

        def interrupt(number, frame):
            raise Interrupt

        def work(i):
            a = shm.full(3, i)
            b = shm.attach(shm.handle(a), readonly=True)
            a[0] = -1
            assert b.tolist() == [-1, i, i]
            assert shm.resize(a, 1000)[1] == i

        hook, sys.unraisablehook = sys.unraisablehook, lambda _: None  # reports interrupts
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


def test_import_is_light_and_silent(bare_script):
    out = bare_script.run(
        """
        import sys, synk_shm
        print("multiprocessing" in sys.modules, "multiprocessing.resource_tracker" in sys.modules)
        """
    )
    assert out == "False False"
