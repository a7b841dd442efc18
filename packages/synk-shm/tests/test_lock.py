"""The lock excludes processes and threads; test_peer_messages.py kills its holder."""

from __future__ import annotations

import threading

import numpy as np
import pytest

import synk_shm as shm


def test_excludes_processes(script):
    a = shm.zeros(1, "i8")
    count = """
        a = shm.attach(sys.argv[1])
        for _ in range(300):
            with shm.lock(a, timeout_s=50):
                before = int(a[0])
                sum(range(50))
                a[0] = before + 1
        """
    others = [script.start(count, shm.segment(a).name) for _ in range(3)]
    for other in others:
        script.finish(other)
    assert a[0] == 900


def test_excludes_threads():
    a = shm.zeros(1, "i8")

    def count() -> None:
        for _ in range(100):
            with shm.lock(a, timeout_s=50):
                before = int(a[0])
                sum(range(50))
                a[0] = before + 1

    threads = [threading.Thread(target=count) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
        assert not thread.is_alive()
    assert a[0] == 400


@pytest.mark.parametrize("backend", ["shm", "memfd"])
def test_times_out_and_is_not_reentrant(backend):
    a = shm.zeros(1, backend=backend)
    seen = []

    def other() -> None:
        try:
            with shm.lock(a, timeout_s=0.05):
                seen.append("in")
        except TimeoutError as error:
            seen.append(type(error).__name__)

    with shm.lock(a[:1]):
        with pytest.raises(RuntimeError, match="already"), shm.lock(a):
            pass
        thread = threading.Thread(target=other)
        thread.start()
        thread.join(30)
    assert seen == ["ShmTimeoutError"]
    other()
    assert seen[1:] == ["in"]


def test_a_forked_child_does_not_hold_it(script):
    script.run(
        """
        a = shm.zeros(1)
        with shm.lock(a):
            pid = os.fork()
            if pid == 0:
                refused(TimeoutError, shm.lock(a, timeout_s=0.05).__enter__)
                os._exit(0)
            assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
            pid = os.fork()
        if pid == 0:  # the child left the block, which was its parent's
            os._exit(0)
        os.waitpid(pid, 0)
        with shm.lock(a, timeout_s=1):
            pass
        """
    )


def test_needs_a_shared_array_with_a_name():
    a = shm.zeros(1)
    shm.unlink(a)
    for wrong in (np.zeros(1), a):
        with pytest.raises(ValueError), shm.lock(wrong):
            pass
