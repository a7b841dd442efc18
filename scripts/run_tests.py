"""Run the test suites one after the other, each in its own pytest, and sum up at the end.

    python scripts/run_tests.py synk-shm integration -- -k resize

Every suite runs even when an earlier one failed. The exit status is 0 only when all passed.
A suite that takes longer than its limit is ended together with the processes it started.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
SUITE_LIMIT_S = 600
NO_TESTS_COLLECTED = 5
TIMED_OUT = 124


def folder_of(suite: str) -> Path:
    """Where a suite's tests are: a package's `tests`, or `integration`."""
    return ROOT / "integration" if suite == "integration" else ROOT / "packages" / suite / "tests"


def run_suite(suite: str, pytest_arguments: list[str]) -> int:
    """Run one suite; return pytest's exit status, or TIMED_OUT."""
    command = [sys.executable, "-m", "pytest", str(folder_of(suite)), *pytest_arguments]
    # Its own session, so that a suite that hangs is ended with every process it started.
    process = subprocess.Popen(command, cwd=ROOT, start_new_session=True)
    try:
        return process.wait(timeout=SUITE_LIMIT_S)
    except subprocess.TimeoutExpired:
        print(f"{suite}: not finished after {SUITE_LIMIT_S} s, ended", flush=True)
        return TIMED_OUT
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def verdict_of(status: int) -> str:
    """Say what an exit status of pytest means."""
    known = {0: "passed", 2: "interrupted", NO_TESTS_COLLECTED: "no tests", TIMED_OUT: "timed out"}
    return known.get(status, f"FAILED (exit status {status})")


def main(arguments: list[str]) -> int:
    """Run the suites named before `--`, with pytest arguments after it."""
    cut = arguments.index("--") if "--" in arguments else len(arguments)
    suites, pytest_arguments = arguments[:cut], arguments[cut + 1 :]
    absent = [suite for suite in suites if not folder_of(suite).is_dir()]
    if absent or not suites:
        known = [p.parent.name for p in sorted(ROOT.glob("packages/*/tests"))]
        print(f"no such suite: {absent}; known are {[*known, 'integration']}", file=sys.stderr)
        return 2
    # Told to stop, it ends the running suite on the way out; only exceptions do that.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    lines = []
    worst = 0
    for suite in suites:
        print(f"\n=== {suite}", flush=True)
        begin = time.monotonic()
        status = run_suite(suite, pytest_arguments)
        # A selection may leave some suites empty; without one, no tests is a fault.
        if status == NO_TESTS_COLLECTED and {"-k", "-m"} & set(pytest_arguments):
            status = 0
        worst = worst or status
        lines.append(f"{suite:<18} {verdict_of(status):<26} {time.monotonic() - begin:6.1f} s")
    print("\n=== summary\n" + "\n".join(lines), flush=True)
    return 1 if worst else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
