"""Run the tests on every device set that this machine has, and print a table.

    python integration/multi_gpu/run.py                           # all sets
    python integration/multi_gpu/run.py --sets cpu-2 cuda-2 -k gather --json results.json

Each set has processes of its own; each takes some 2.2 GB of each GPU. A process that dies, hangs or
is out of time is a failure of its test, and another one goes on. As much memory of the GPUs must be
free in the end as before; with ``--jobs 1`` that is so after each failure.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent.parent
sys.path.insert(0, str(HERE))

from _sets import SETS, DeviceSet, memory_used, missing, wait_for_memory  # noqa: E402 - found beside this file

PARTS = ("cases", "failures")
# What dies again and again is not tried for ever.
MOST_DEATHS = 8


@dataclass
class Result:
    test: str
    outcome: str
    seconds: float = 0.0
    text: str = ""


@dataclass
class Outcome:
    name: str
    part: str
    results: list[Result] = field(default_factory=list)
    seconds: float = 0.0
    reason: str = ""  # why it was not run at all
    trouble: str = ""  # what went wrong outside of any test

    def count(self, outcome: str) -> int:
        return sum(result.outcome == outcome for result in self.results)


def environment(device_set: DeviceSet, record: Path, options: argparse.Namespace) -> dict[str, str]:
    # Python's own implementations where there is no device: to compile takes most of the time.
    flags = "linker=py" if device_set.kind == "cpu" else "gcc.cxxflags=-O0"
    given = os.environ.get("THEANO_FLAGS", "")
    return {
        **os.environ,
        # What fork() takes by itself is among what is tested.
        "SYNKHRONOS_USE_GPU": "",
        **({"SYNK_DEVICE_ALONE": "1"} if options.jobs == 1 else {}),
        "THEANO_FLAGS": ",".join(filter(None, (flags, given))),
        "SYNK_DEVICE_SET": device_set.name,
        "SYNK_DEVICE_RECORD": str(record),
        "SYNK_DEVICE_TEST_LIMIT_S": str(options.test_limit),
    }


def run_part(
    device_set: DeviceSet, part: str, folder: Path, options: argparse.Namespace
) -> Outcome:
    """Run a part on a set, in as many processes as it takes, one after the other."""
    outcome = Outcome(device_set.name, part)
    record, log = (folder / f"{device_set.name}-{part}.{kind}" for kind in ("jsonl", "log"))
    end = time.monotonic() + options.limit
    command = [
        *(*device_set.command("pytest"), str(HERE / part)),
        *("-p", "no:cacheprovider", "-q", "--tb=short"),
        *(f"--rootdir={ROOT}", f"--confcutdir={HERE}"),
        *(["-k", options.keyword] if options.keyword else []),
    ]
    began = time.monotonic()
    for _ in range(MOST_DEATHS):
        left = end - time.monotonic()
        if left < 1:
            outcome.trouble = "the time for this set is over"
            break
        with log.open("ab") as output:
            process = subprocess.Popen(
                command,
                cwd=folder,
                env=environment(device_set, record, options),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
            try:
                status = process.wait(left)
            except subprocess.TimeoutExpired:
                status = -signal.SIGKILL
            finally:
                end_all(record)
                process.wait()
        results, running = read(record)
        if running is None:
            if status not in (0, 1, 5) or (status == 1 and not results):
                outcome.trouble = f"pytest ended with status {status}\n{_tail(log)}"
            break
        text = f"the process ended with status {status} in this test\n{_tail(log)}"
        with record.open("a", encoding="utf-8") as lines:
            entry = {"test": running, "event": "report", "when": "call", "outcome": "failed"}
            lines.write(json.dumps({**entry, "seconds": 0.0, "text": text}) + "\n")
    outcome.results, _ = read(record)
    outcome.seconds = time.monotonic() - began
    return outcome


def end_all(record: Path) -> None:
    """End all that was started for this record, or for any in this folder, in whatever session."""
    mark = f"SYNK_DEVICE_RECORD={record}".encode()
    for environ in Path("/proc").glob("[0-9]*/environ"):
        try:
            if any(line.startswith(mark) for line in environ.read_bytes().split(b"\0")):
                os.kill(int(environ.parent.name), signal.SIGKILL)
        except OSError:
            continue  # ended meanwhile, or another user's


def _tail(log: Path, most: int = 6000) -> str:
    lines = log.read_text(encoding="utf-8", errors="replace").splitlines()
    # Of hundreds of names, after the stacks of a process that crashed.
    kept = [line for line in lines if not line.startswith("Extension modules:")]
    return "\n".join(kept)[-most:]


def read(record: Path) -> tuple[list[Result], str | None]:
    """The results in a record, and the test that was running when it ended."""
    results: dict[str, Result] = {}
    running = None
    lines = record.read_text(encoding="utf-8").splitlines() if record.exists() else []
    for line in lines:
        entry = json.loads(line)
        test = entry["test"]
        if entry["event"] == "start":
            running = test
            continue
        running = None if running == test else running
        known = results.get(test)
        if known is not None and known.outcome == "failed":
            known.text += "\n" + entry["text"]
            continue
        text = entry["text"] + ("\n" + entry["output"] if entry.get("output") else "")
        results[test] = Result(test, entry["outcome"], entry["seconds"], text)
    return list(results.values()), running


def run_all(chosen: list[DeviceSet], folder: Path, options: argparse.Namespace) -> list[Outcome]:
    """Run the parts on all sets, and look at the GPUs' memory before and after."""
    outcomes, todo = [], []
    for part in options.parts:
        for device_set in chosen:
            reason = missing(device_set)
            if not reason and part == "failures" and device_set.hosts:
                reason = "its programs have no launcher"
            if reason:
                outcomes.append(Outcome(device_set.name, part, reason=reason))
            else:
                todo.append((device_set, part))
    before = memory_used()
    with ThreadPoolExecutor(options.jobs) as pool:
        outcomes += pool.map(lambda each: run_part(*each, folder, options), todo)
    if before:
        outcomes.append(Outcome("GPUs", "memory", trouble=wait_for_memory(before)))
    return outcomes


def show(outcomes: list[Outcome]) -> None:
    for outcome in outcomes:
        for result in outcome.results:
            if result.outcome == "failed":
                print(f"\n{'=' * 8} {outcome.name}: {result.test}\n{result.text}")
        if outcome.trouble:
            print(f"\n{'=' * 8} {outcome.name} {outcome.part}: {outcome.trouble}")
    print()
    for outcome in outcomes:
        reasons: dict[str, list[str]] = {}
        for result in outcome.results:
            if result.outcome == "skipped":
                reasons.setdefault(result.text, []).append(result.test)
        for reason, tests in reasons.items():
            print(f"{outcome.name} {outcome.part}: {len(tests)} skipped: {reason}")
    print(f"\n{'set':<15} {'part':<9} {'passed':>7} {'failed':>7} {'skipped':>8} {'seconds':>8}")
    for outcome in outcomes:
        if outcome.reason:
            print(f"{outcome.name:<15} {outcome.part:<9} not run: {outcome.reason}")
            continue
        counts = [outcome.count(name) for name in ("passed", "failed", "skipped")]
        print(
            f"{outcome.name:<15} {outcome.part:<9} {counts[0]:>7} {counts[1]:>7} {counts[2]:>8} "
            f"{outcome.seconds:>8.0f}{'  stopped early' if outcome.trouble else ''}"
        )


def arguments(given: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Run the tests on every device set there is.")
    parser.add_argument("--sets", nargs="+", choices=list(SETS), default=list(SETS))
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=list(PARTS))
    parser.add_argument("-k", dest="keyword", help="only tests that match, as in pytest")
    parser.add_argument("--json", type=Path, help="write the results here, a list of objects")
    cores = len(os.sched_getaffinity(0))
    parser.add_argument(
        "--jobs", type=int, default=max(1, cores // 4), help="processes of tests at a time"
    )
    parser.add_argument("--limit", type=float, default=1800, help="seconds for a part of a set")
    parser.add_argument("--test-limit", type=float, default=180, help="seconds for one test")
    return parser.parse_args(given)


def main(given: list[str]) -> int:
    options = arguments(given)
    chosen = [SETS[name] for name in options.sets]
    with tempfile.TemporaryDirectory(prefix="synk-multi-gpu-") as folder:

        def stop(number: int, _frame: Any) -> None:
            end_all(Path(folder))
            os._exit(128 + number)

        signal.signal(signal.SIGTERM, stop)
        signal.signal(signal.SIGINT, stop)
        outcomes = run_all(chosen, Path(folder), options)
    show(outcomes)
    if options.json:
        options.json.write_text(json.dumps([_plain(each) for each in outcomes]), encoding="utf-8")
    wrong = any(outcome.trouble or outcome.count("failed") for outcome in outcomes)
    return 1 if wrong else 0


def _plain(outcome: Outcome) -> dict[str, Any]:
    return {**vars(outcome), "results": [vars(result) for result in outcome.results]}


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
