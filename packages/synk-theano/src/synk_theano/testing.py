"""Helpers for tests of code that uses synk-theano."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import time
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Dict, Iterable, Iterator, List, Optional, Sequence, Set, Tuple

import numpy as np

from synk_shm.testing import no_segments_left


def child_processes() -> Set[int]:
    """Return the process ids of this process's children, zombies included (Linux)."""
    children: Set[int] = set()
    for task in Path("/proc/self/task").iterdir():
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):  # the thread has ended
            children.update(int(pid) for pid in (task / "children").read_text().split())
    return children


def open_descriptors() -> int:
    """Return the number of open file descriptors of this process (Linux)."""
    return len(os.listdir("/proc/self/fd")) - 1


@contextmanager
def nothing_left(grace_s: float = 5.0) -> Iterator[None]:
    """Assert that the block leaves no child process and no shared memory behind.

    Raises:
        AssertionError: naming what was left.
    """
    before = child_processes()
    with no_segments_left(grace_s):
        yield
    deadline = time.monotonic() + grace_s
    while child_processes() - before and time.monotonic() < deadline:
        time.sleep(0.02)
    left = child_processes() - before
    assert not left, f"child processes left behind: {sorted(left)}"


def wait_gone(pids: Iterable[int], timeout_s: float = 5.0) -> None:
    """Wait until none of these processes exists.

    Raises:
        AssertionError: naming those that still are.
    """
    deadline = time.monotonic() + timeout_s
    left = set(pids)
    while left:
        left = {pid for pid in left if os.path.exists(f"/proc/{pid}")}
        assert not left or time.monotonic() < deadline, f"processes left behind: {sorted(left)}"
        time.sleep(0.02)


def run_script(
    code: str,
    *arguments: str,
    environment: Optional[Dict[str, str]] = None,
    timeout_s: float = 120.0,
    cwd: Optional[str] = None,
) -> Tuple[int, str, str]:
    """Run Python code in a fresh process, as a user would: (exit status, stdout, stderr).

    The process gets a session of its own, which is killed whole when the time is over.
    """
    process = subprocess.Popen(
        [sys.executable, "-c", code, *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, **(environment or {})},
        cwd=cwd,
        start_new_session=True,
    )
    try:
        out, err = process.communicate(timeout=timeout_s)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, 9)
        out, err = process.communicate()
        raise AssertionError(
            f"not done after {timeout_s} s\nstdout:\n{out}\nstderr:\n{err}"
        ) from None
    return process.returncode, out, err


def largest_difference(ours: Sequence[Any], theirs: Sequence[Any]) -> float:
    """Return the largest absolute difference between two lists of arrays; shapes must agree."""
    differences: List[float] = [0.0]
    for a, b in zip(ours, theirs):
        a, b = np.asarray(a), np.asarray(b)
        assert a.shape == b.shape, f"shapes differ: {a.shape} and {b.shape}"
        if a.size:
            differences.append(float(np.max(np.abs(a.astype(float) - b.astype(float)))))
    return max(differences)
