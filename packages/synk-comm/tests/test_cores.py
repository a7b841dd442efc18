"""What a container or a batch job leaves of the machine's cores."""

from __future__ import annotations

import os

import pytest

from synk_comm.processes import available_cores


@pytest.fixture(autouse=True)
def many_cores(monkeypatch):
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(16)))


def machine(tmp_path, membership, files):
    for name, text in {"proc/self/cgroup": membership, **files}.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return tmp_path


def test_the_smallest_limit_counts(tmp_path):
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
    """And that alone on a machine without control groups."""
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {3, 5})
    assert available_cores(tmp_path) == 2
    monkeypatch.undo()
    assert 1 <= available_cores() <= len(os.sched_getaffinity(0))
