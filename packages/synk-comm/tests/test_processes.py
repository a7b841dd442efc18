"""Processes of this machine: which one is meant, whether it has ended, and the cores for them."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

import pytest

from synk_comm.processes import WatchedProcess, available_cores, stat


@pytest.fixture
def child():
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


@pytest.fixture
def many_cores(monkeypatch):
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(16)))


def machine(tmp_path, membership, files):
    for name, text in {"proc/self/cgroup": membership, **files}.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return tmp_path


def test_the_smallest_limit_counts(many_cores, tmp_path):
    cases = (
        ("0::/\n", {"sys/fs/cgroup/cpu.max": "200000 100000\n"}, 2),  # docker run --cpus 2
        ("0::/\n", {"sys/fs/cgroup/cpu.max": "50000 100000\n"}, 1),
        ("0::/\n", {"sys/fs/cgroup/cpu.max": "max 100000\n"}, 16),
        ("0::/\n", {}, 16),
        (
            "0::/user.slice/job_7/task\n",
            {
                "sys/fs/cgroup/user.slice/job_7/task/cpu.max": "max 100000\n",
                "sys/fs/cgroup/user.slice/job_7/cpu.max": "300000 100000\n",
                "sys/fs/cgroup/user.slice/cpu.max": "800000 100000\n",
            },
            3,
        ),
        (
            "4:cpu,cpuacct:/docker/abc\n0::/docker/abc\n",
            {
                "sys/fs/cgroup/cpu/cpu.cfs_quota_us": "400000\n",
                "sys/fs/cgroup/cpu/cpu.cfs_period_us": "100000\n",
            },
            4,
        ),
        (
            "4:cpu,cpuacct:/docker/abc\n",
            {
                "sys/fs/cgroup/cpu/docker/abc/cpu.cfs_quota_us": "-1\n",
                "sys/fs/cgroup/cpu/docker/abc/cpu.cfs_period_us": "100000\n",
            },
            16,
        ),
        ("garbage\n0::/../..\n", {"sys/fs/cgroup/cpu.max": "what is this\n"}, 16),
    )
    for number, (membership, files, cores) in enumerate(cases):
        assert available_cores(machine(tmp_path / str(number), membership, files)) == cores


def test_affinity_counts(tmp_path, monkeypatch):
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {3, 5})
    assert available_cores(tmp_path) == 2
    monkeypatch.undo()
    assert 1 <= available_cores() <= len(os.sched_getaffinity(0))
