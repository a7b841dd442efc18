"""Processes of this machine: which one is meant, and whether it has ended."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

import pytest

from synk_comm.processes import WatchedProcess, stat


@pytest.fixture
def child():
    """A process that waits for its input."""
    process = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    yield process
    process.kill()
    process.stdin.close()
    process.wait()


@pytest.mark.skipif(not hasattr(os, "pidfd_open"), reason="processes cannot be watched here")
def test_another_process_with_the_same_number_is_left_alone(child):
    started = int(stat(child.pid)[19])
    with pytest.raises(ProcessLookupError):
        WatchedProcess(child.pid, started - 1)
    meant = WatchedProcess(child.pid, started)
    assert not meant.is_gone()
    assert child.poll() is None
    meant.send_signal(signal.SIGKILL)
    assert child.wait(30) == -signal.SIGKILL
    assert meant.is_gone()
    meant.send_signal(signal.SIGKILL)  # does no harm
    meant.close()
    with pytest.raises(ProcessLookupError):
        WatchedProcess(child.pid)


def test_a_system_without_pidfds_says_so(monkeypatch):
    monkeypatch.delattr(os, "pidfd_open", raising=False)
    with pytest.raises(OSError, match="no pidfds"):
        WatchedProcess(os.getpid())
