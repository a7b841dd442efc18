"""Run the test suites, each in its own pytest, and sum up at the end.

    python scripts/run_tests.py synk-shm integration --beside synk-theano/compat -- -k resize

Suites run one after the other; those after `--beside` run at the same time as the first ones, and
their output follows at the end. Every suite runs even when another failed. The exit status is 0
only when all passed. A suite that takes longer than its limit (SYNK_SUITE_LIMIT_S, by default 2400)
is ended together with the processes it started.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import IO, Optional

ROOT = Path(__file__).resolve().parent.parent
SUITE_LIMIT_S = int(os.environ.get("SYNK_SUITE_LIMIT_S", "2400"))
NO_TESTS_COLLECTED = 5
TIMED_OUT = 124


def folder_of(suite: str) -> Path:
    """Where a suite's tests are: a package's `tests`, or a part of them, or `integration`."""
    if suite == "integration":
        return ROOT / "integration"
    package, _, part = suite.partition("/")
    return ROOT / "packages" / package / "tests" / part


class Suite:
    """A pytest process; `output` is where it writes, None for this terminal."""

    def __init__(self, name: str, arguments: list[str], output: Optional[IO[str]] = None) -> None:
        self.name = name
        self._begin = time.monotonic()
        # Its own session, so that a suite that hangs is ended with every process it started.
        self._process = subprocess.Popen(
            [sys.executable, "-m", "pytest", str(folder_of(name)), *arguments],
            cwd=ROOT,
            # Tests of GPUs name their devices; all others are of CPU processes, wherever they run.
            env={"SYNKHRONOS_USE_GPU": "0", **os.environ},
            start_new_session=True,
            stdout=output,
            stderr=subprocess.STDOUT if output else None,
        )

    def wait(self) -> tuple[int, str]:
        """Return pytest's exit status, or TIMED_OUT, and a line for the summary."""
        try:
            left = SUITE_LIMIT_S - (time.monotonic() - self._begin)
            status = self._process.wait(timeout=max(left, 0))
        except subprocess.TimeoutExpired:
            print(f"{self.name}: not finished after {SUITE_LIMIT_S} s, ended", flush=True)
            status = TIMED_OUT
        finally:
            self.end()
        seconds = time.monotonic() - self._begin
        return status, f"{self.name:<20} {verdict_of(status):<26} {seconds:6.1f} s"

    def end(self) -> None:
        """End it with everything it started, if it is still there."""
        if self._process.poll() is None:
            os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()


def verdict_of(status: int) -> str:
    """Say what an exit status of pytest means."""
    known = {0: "passed", 2: "interrupted", NO_TESTS_COLLECTED: "no tests", TIMED_OUT: "timed out"}
    return known.get(status, f"FAILED (exit status {status})")


def run(suites: list[str], beside: list[str], arguments: list[str]) -> int:
    """Run all suites; print a summary and return the exit status."""
    # A selection may leave some suites empty; without one, no tests is a fault.
    harmless = {0, NO_TESTS_COLLECTED} if {"-k", "-m"} & set(arguments) else {0}
    outcomes: list[tuple[int, str]] = []
    running: list[tuple[Suite, IO[str]]] = []
    try:
        for name in beside:
            output = tempfile.TemporaryFile("w+", encoding="utf-8")  # noqa: SIM115 - read later
            running.append((Suite(name, arguments, output), output))
        for name in suites:
            print(f"\n=== {name}", flush=True)
            apart = [f"--ignore={folder_of(part)}" for part in beside]
            suite = Suite(name, [*arguments, *apart])
            try:
                outcomes.append(suite.wait())
            finally:
                suite.end()
        for suite, output in running:
            outcomes.append(suite.wait())
            output.seek(0)
            print(f"\n=== {suite.name}\n{output.read()}", flush=True)
    finally:
        for suite, output in running:
            suite.end()
            output.close()
    print("\n=== summary\n" + "\n".join(line for _, line in outcomes), flush=True)
    return 0 if all(status in harmless for status, _ in outcomes) else 1


def main(arguments: list[str]) -> int:
    """Run the suites named before `--`, with pytest arguments after it."""
    cut = arguments.index("--") if "--" in arguments else len(arguments)
    names, pytest_arguments = arguments[:cut], arguments[cut + 1 :]
    split = names.index("--beside") if "--beside" in names else len(names)
    suites, beside = names[:split], names[split + 1 :]
    absent = [suite for suite in suites + beside if not folder_of(suite).is_dir()]
    if absent or not suites:
        known = [p.parent.name for p in sorted(ROOT.glob("packages/*/tests"))]
        print(f"no such suite: {absent}; known are {[*known, 'integration']}", file=sys.stderr)
        return 2
    # A shell's "&" and nohup have it ignored, also by what is started here; tests send it.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    # Told to stop, it ends the running suites on the way out; only exceptions do that.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    return run(suites, beside, pytest_arguments)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
