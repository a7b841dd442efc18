"""Faults of other libraries, with arrays, messages and processes; docstrings name the library."""

from __future__ import annotations

import os

import pytest

import synk_shm as shm


@pytest.mark.parametrize("backend", ["shm", "memfd"])
def test_no_array_dangles(script, backend):
    """Standard library: an array on `buf` takes no export; returned from a function, it crashes."""
    script.run(
        """
        def inner(kind):
            a = shm.full((50, 40), 7.0, backend=sys.argv[1])
            if kind == "handle":
                return shm.attach(shm.handle(a[5:]))
            return {
                "array": a, "view": a[3:, ::2].T, "memoryview": memoryview(a), "data": a.data,
                "frombuffer": np.frombuffer(a.data.cast("B")), "asarray": np.asarray(a),
                "strided": np.lib.stride_tricks.as_strided(a, (9, 9), (8, 8)), "flat": a.flat,
                "matrix": a.view(np.matrix), "iter": iter(a), "ctypes": np.ctypeslib.as_ctypes(a),
                "dlpack": np.from_dlpack(a) if hasattr(np, "from_dlpack") else a,
            }[kind]

        def other():
            a = shm.full(100, 7.0, backend=sys.argv[1])
            b = shm.resize(a, 10000)
            shm.unlink(a)
            return a[1:], b[:100]

        kinds = "array view memoryview data frombuffer asarray strided flat matrix iter ctypes"
        for kind in [*kinds.split(), "handle", "dlpack"]:
            kept = inner(kind)
            gc.collect()
            filler = [shm.full(2000, 3.0, backend=sys.argv[1]) for _ in range(20)]
            values = np.array(list(kept) if kind in ("flat", "iter") else kept)
            assert values.size and (values == 7).all(), kind
            del kept, values, filler
        a, b = other()
        gc.collect()
        assert (a == 7).all() and (b == 7).all()
        """,
        backend,
    )


def test_errors_have_a_number_and_a_file_name(given):
    """posix_ipc: its errors are not OSError, and have neither errno nor file name."""
    name = given("error")
    a = shm.ones(3, name=name)
    for act, number, word in (
        (lambda: shm.ones(3, name=name), 17, name),
        (lambda: shm.attach(name + "x"), 2, f"/synk.u.{name}x"),
        (lambda: shm.unlink(name + "x"), 2, f"/synk.u.{name}x"),
    ):
        with pytest.raises(shm.ShmError, match=r"\w+ \w+ \w+") as caught:
            act()
        assert caught.value.errno == number
        assert word in caught.value.filename
    assert a.sum() == 3


def test_failures_keep_no_descriptor(descriptors, given):
    """posix_ipc: it has no finalizer, each failed call and forgotten array costs a descriptor."""
    name = given("kept")
    a = shm.zeros((4, 3), name=name, capacity=8)
    address = shm.handle(a)
    before = descriptors()
    for _ in range(30):
        for act in (
            lambda: shm.zeros(9, name=name),
            lambda: shm.zeros(1 << 56, "u1"),
            lambda: shm.zeros(1 << 56, "u1", backend="memfd"),
            lambda: shm.attach(given("missing")),
            lambda: shm.attach(shm.segment(a).name, owner_uid=12345, readonly=True),
            lambda: shm.resize(a, 1 << 55),
            lambda: shm.zeros(3, object),
        ):
            with pytest.raises((OSError, TypeError, MemoryError)):
                act()
        shm.attach(address, readonly=True)
        shm.attach(shm.segment(a).name)
        shm.share(range(9), backend="memfd")
    assert descriptors() == before


DAMAGE = """
    import struct

    path = "/dev/shm/synk.u." + sys.argv[1]
    made = shm.share(np.zeros((3, 4), [("x", "f8"), ("y", ">i2")]))
    with open("/dev/shm" + shm.segment(made).name, "rb") as file:
        good = file.read()
    refused = taken = 0

    def attach(content):
        global refused, taken
        with open(path, "wb") as file:
            file.write(content)
        inode = os.stat(path).st_ino
        try:
            a = shm.attach(sys.argv[1], readonly=True, timeout_s=0)
            total = len(a.tobytes())  # reads every byte of the array
            assert total == shm.segment(a).nbytes <= shm.segment(a).capacity <= len(content)
            assert not a.dtype.hasobject
            taken += 1
            del a
        except (shm.ShmFormatError, TimeoutError):
            refused += 1
        shm.list()
        assert os.stat(path).st_ino == inode and os.path.getsize(path) == len(content)
        os.unlink(path)

"""
FORGED = """
    for offset in range(0, 256, 4):
        for value in (0, 1, 3, 1 << 12, (1 << 31) - 1, 1 << 31, (1 << 32) - 1):
            attach(good[:offset] + struct.pack("I", value) + good[offset + 4 :])
        for value in (1 << 40, (1 << 63) - 8, (1 << 64) - 1):
            attach(good[:offset] + struct.pack("Q", value) + good[offset + 8 :])
"""
TRUNCATED = """
    attach(good)
    for size in [*range(0, 300, 3), *range(300, len(good), 97)]:
        attach(good[:size])
"""


@pytest.mark.parametrize(
    "code, least_refused, least_taken",
    [(FORGED, 101, 11), (TRUNCATED, 81, 1)],
    ids=["forged", "truncated"],
)
def test_damaged_files_do_no_harm(script, given, code, least_refused, least_taken):
    """SharedArray: forged dimensions in a header crash the program that attaches it.

    np.memmap, SharedArray: a file shorter than its header claims kills its readers by SIGBUS.
    """
    name = given("damage")
    try:
        said = script.run(f"{DAMAGE}{code}    print(refused, taken)\n", name)
    finally:
        if os.path.exists(f"/dev/shm/synk.u.{name}"):
            os.unlink(f"/dev/shm/synk.u.{name}")
    refused, taken = map(int, said.split())
    assert refused >= least_refused
    assert taken >= least_taken


@pytest.mark.parametrize(
    "method, make",
    [
        ("fork", "shm.share(source, name=name)"),
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
    A worker that is not killed sends by a queue that has a thread.
    """
    program(
        """
        def send(queue):
            a = shm.share(np.arange(6.0).reshape(2, 3))
            queue.put((a, a.T[1:], shm.attach(shm.handle(a), readonly=True)))
            END

        def main(context):
            own = shm.ones(1) if OWN else None
            queue = context.Queue() if "END" == "pass" else context.SimpleQueue()
            child = start(context, send, queue)
            child.join(60)
            other = [sys.executable, "-c", "import synk_shm as s; s.ones(1); s.cleanup()"]
            subprocess.run(other, check=True, timeout=60)
            whole, part, fixed = queue.get()
            assert whole.tolist() == [[0, 1, 2], [3, 4, 5]] == fixed.tolist()
            assert part.tolist() == [[1, 4], [2, 5]] and np.shares_memory(part, whole)
            assert not fixed.flags.writeable and whole.flags.writeable
            assert shm.segment(whole).owner and child.exitcode is not None
            return int("END" != "pass")  # what the child did not remove
        """.replace("END", end).replace("OWN", str(parent_has_arrays)),
        method,
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
        b = shm.share(shm.attach(shm.handle(a), readonly=True))
        reduction.ForkingPickler.dumps(a)
        assert state() == before
        """
    )
