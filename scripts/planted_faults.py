"""Plant known faults, one at a time, and see whether the tests catch them.

    python scripts/planted_faults.py --jobs 2        all of the table, which is in _planted_faults/
    python scripts/planted_faults.py --check         do these tests pass where there is no fault?
    python scripts/planted_faults.py --only shm-align --root ../other-checkout

Each job has a copy of the checkout, and an environment in which the packages of the copy come
first. A test that hangs has caught the fault, too. The exit status is 0 only if every fault was
caught.
"""

from __future__ import annotations

import argparse
import json
import queue
import shutil
import signal
import sys
import tempfile
import threading
import time
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import nullcontext
from pathlib import Path
from typing import Optional

from _planted_faults import FAULTS, Fault
from _planted_faults._copy import Copy, Outcome, end_all

Job = tuple[str, Optional[Fault], tuple[str, ...]]


def problem_of(fault: Fault, root: Path) -> str:
    """Return why a fault cannot be planted; empty if it can."""
    path = root / fault.file
    count = path.read_text(encoding="utf-8").count(fault.old) if path.is_file() else 0
    if count == 1:
        return ""
    got = f"has not once but {count} times {fault.old!r}" if path.is_file() else "is not there"
    return f"fault {fault.name} no longer applies: {fault.file} {got}"


def run_jobs(jobs: list[Job], at_once: int, root: Path, limit_s: float) -> list[Outcome]:
    """Do all jobs, each in a copy that it has for itself; print a line for each as it ends."""
    folder = Path(tempfile.mkdtemp(prefix="faults-")).resolve()
    copies: queue.SimpleQueue[Copy] = queue.SimpleQueue()
    stopped = threading.Event()

    def work(name: str, fault: Optional[Fault], tests: tuple[str, ...]) -> Outcome:
        copy = copies.get()
        try:
            with nullcontext() if fault is None else copy.planted(fault):
                if stopped.is_set():
                    return Outcome(name, "error", "stopped", 0.0)
                is_whole = fault is not None and bool(fault.nightly)
                return copy.run_tests(name, tests, fault is not None, is_whole)
        finally:
            copies.put(copy)

    pool = ThreadPoolExecutor(at_once)
    futures = []
    try:
        for number in range(min(at_once, len(jobs))):
            copies.put(Copy(root, folder / str(number), limit_s))
        futures = [pool.submit(work, *job) for job in jobs]
        return [told(future.result()) for future in as_completed(futures)]
    finally:
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, signal.SIG_IGN)
        stopped.set()
        pool.shutdown(wait=False, cancel_futures=True)
        while not all(future.done() for future in futures):
            end_all(folder)
            time.sleep(0.05)
        end_all(folder)
        shutil.rmtree(folder, ignore_errors=True)


def told(outcome: Outcome) -> Outcome:
    """Return an outcome that has been printed."""
    head = f"{outcome.verdict:<7} {outcome.seconds:6.1f} s"
    print(f"{head}  {outcome.name}  {outcome.by}", flush=True)
    return outcome


def report(outcomes: list[Outcome], faults: list[Fault], file: Optional[Path]) -> int:
    """Print the table, write it as JSON, and return the exit status."""
    planted = {fault.name: fault for fault in faults}
    rows = []
    for outcome in sorted(outcomes, key=lambda outcome: outcome.name):
        fault = planted.get(outcome.name)  # None of tests without one
        rows.append({**(fault._asdict() if fault else {}), **outcome._asdict()})
        if fault:
            head = f"{fault.name:<28} {fault.package:<16} {fault.kind:<12} {outcome.verdict:<7}"
            print(f"{head} {outcome.by or fault.says}")
    bad = sum(outcome.verdict not in ("caught", "hang", "passed") for outcome in outcomes)
    print(f"\n{len(outcomes)} in all, {bad} not as they should be", flush=True)
    if file is not None:
        file.write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")
    return 1 if bad else 0


def main(arguments: list[str]) -> int:
    """Plant the faults; return 0 if all was caught that should be."""
    here = Path(__file__).resolve().parent.parent
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0] if __doc__ else None)
    parser.add_argument("--list", action="store_true", help="show the table and stop")
    parser.add_argument("--check", action="store_true", help="run the tests without any fault")
    parser.add_argument("--only", nargs="+", metavar="NAME", help="these faults")
    parser.add_argument("--package", help="the faults of this package")
    parser.add_argument("--jobs", type=int, default=1, help="how many at a time")
    parser.add_argument("--root", type=Path, default=here, help="another checkout")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the results there, too")
    parser.add_argument(
        "--limit-s", type=float, default=300.0, help="a test that takes longer hangs"
    )
    options = parser.parse_args(arguments)
    unknown = set(options.only or ()) - {fault.name for fault in FAULTS}
    if unknown or options.jobs < 1:
        parser.error(f"no such fault: {', '.join(sorted(unknown))}" if unknown else "--jobs from 1")
    only, package, root = options.only, options.package, options.root.resolve()
    faults = [f for f in FAULTS if (not only or f.name in only) and package in (None, f.package)]
    if options.list or not faults:
        for fault in faults:
            print(f"{fault.name:<28} {fault.kind:<12} {fault.file}\n    {fault.says}")
        return 0 if faults else 2
    # A shell's "&" has it ignored; and told to stop, this ends what runs on the way out.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    jobs: list[Job] = []
    outcomes = []
    for fault in faults:
        if options.check:
            jobs.append((" ".join(fault.tests), None, fault.tests))
        elif problem := problem_of(fault, root):
            outcomes.append(told(Outcome(fault.name, "error", problem, 0.0)))
        else:
            jobs.append((fault.name, fault, fault.tests))
    outcomes += run_jobs(list(dict.fromkeys(jobs)), options.jobs, root, options.limit_s)
    return report(outcomes, faults, options.json)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
