"""Run the test suites on all cores; report each as it ends, and all failures at the end.

    python scripts/run_tests.py                              every suite
    python scripts/run_tests.py synk-shm synk-core/faults    some: a package, or a part of it
    python scripts/run_tests.py synk-shm -- -k resize -x     with arguments for pytest
    python scripts/run_tests.py --nightly                    whole matrices, and endurance
    python scripts/run_tests.py --table FILE                 what took how long, as Markdown

Three suites more than there are cores run at a time, those that take longest first. Tests that
are marked "alone", because they have hard limits of time or look at the whole machine, and programs
that measure follow one by one. Every suite runs even when another failed. Where Python is too new
for Theano, suites that need it are left out. What each printed is kept in build/tests. The exit
status is 0 only when all passed. A suite that takes longer than its limit is ended together with
the processes it started.
"""

from __future__ import annotations

import argparse
import collections
import ctypes
import dataclasses
import json
import os
import platform
import re
import shlex
import signal
import subprocess
import sys
import time
from datetime import date
from pathlib import Path
from typing import Optional, Sequence

import psutil

ROOT = Path(__file__).resolve().parent.parent
LOGS = ROOT / "build" / "tests"
ENDURANCE = ROOT / "build" / "endurance"
NEWER = ROOT / ".venv-newer" / "bin" / "python"
"""The newest Python that was found, for PyTensor, and for packages that do without an engine."""
NO_TESTS_COLLECTED = 5
TIMED_OUT = 124
LIMIT_S = int(os.environ.get("SYNK_SUITE_LIMIT_S", "2400"))
NIGHTLY_LIMIT_S = 4 * 3600
"""Seconds that one suite may take, whatever it hangs in."""
SLOWEST = 60
"""Tests in a table of durations."""
PROGRESS_S = 60
"""Seconds between two lines about what is under way."""

WHOLE = {
    "SYNK_TESTS": "all",
    "SYNK_THEANO_FAULTS_OUT": str(ENDURANCE / "faults.json"),
}
"""The environment of a nightly run, in which suites run whole."""


@dataclasses.dataclass(frozen=True)
class Suite:
    """A pytest of its own; or another program, which passes by ending with status 0.

    Attributes:
        name: a package, or "integration", and which part of it.
        paths: what pytest collects, relative to the root.
        without: what of it other suites run.
        about_s, nightly_s: seconds that it takes on two quiet cores.
        alone: whether it has tests that are marked "alone"; or the program measures.
        python: the interpreter.
        program: arguments of the interpreter, for what is no pytest: part of nightly runs.
    """

    name: str
    paths: tuple[str, ...] = ()
    without: tuple[str, ...] = ()
    about_s: int = 60
    nightly_s: int = 60
    alone: bool = False
    python: str = sys.executable
    program: tuple[str, ...] = ()


def tests_of(package: str, *parts: str) -> tuple[str, ...]:
    """Return paths of a package's tests."""
    return tuple(f"packages/{package}/tests/{part}".rstrip("/") for part in parts or ("",))


def alone_in(paths: Sequence[str]) -> list[str]:
    """Return files in which tests are marked "alone": to collect the others would take seconds."""
    places = [ROOT / path for path in paths]
    files = [file for place in places for file in sorted(place.rglob("test_*.py"))]
    files += [place for place in places if place.is_file()]
    marked = [file for file in files if "mark.alone" in file.read_text(encoding="utf-8")]
    return list(map(str, marked)) or list(paths)


# Where there is a newer Python than Theano's, packages without an engine are tested on that;
# a nightly run tests them on both.
NEWEST = str(NEWER) if NEWER.exists() else sys.executable

# In a suite of their own, so that none takes much longer than the others.
PROCESSES = tests_of(
    "synk-core",
    *("test_failures.py", "test_flight.py", "test_watchdog.py", "test_pool.py", "test_releases.py"),
    *("test_runtime.py", "test_security.py", "test_stacks.py"),
)


def with_pytensor() -> list[Suite]:
    """Return the suites of what runs on both engines, and of PyMC, where PyTensor is installed.

    By C code; by Numba where a test says so. `SYNK_LINKER=numba` has all of them computed by Numba.
    """
    if not list(Path(NEWEST).parent.parent.glob("lib/python*/site-packages/pytensor")):
        return []
    pymc = tests_of("synk-extensions", "test_pymc.py", "test_pymc_example.py")
    pages = ("integration/test_docs_blocks.py", "integration/test_examples.py")
    return [
        Suite(
            "synk-core/pytensor",
            tests_of("synk-core"),
            without=tests_of("synk-core", "faults"),
            about_s=400,
            nightly_s=1500,
            python=NEWEST,
        ),
        Suite("synk-pytensor", tests_of("synk-pytensor"), about_s=60, python=NEWEST),
        Suite(
            "synk-extensions/pytensor",
            tests_of("synk-extensions"),
            without=pymc,
            about_s=150,
            nightly_s=600,
            python=NEWEST,
        ),
        # Apart from the others: PyMC raises the limit of recursion.
        Suite("synk-extensions/pymc", pymc, about_s=120, nightly_s=600, python=NEWEST),
        Suite("integration/pytensor", pages, about_s=100, nightly_s=300, python=NEWEST),
    ]


WITH_PYTENSOR = with_pytensor()

SUITES = [
    Suite("synk-shm", tests_of("synk-shm"), about_s=300, nightly_s=300, python=NEWEST),
    Suite("synk-comm", tests_of("synk-comm"), about_s=510, nightly_s=900, python=NEWEST),
    Suite(
        "synk-core",
        tests_of("synk-core"),
        without=(*tests_of("synk-core", "faults"), *PROCESSES),
        about_s=530,
        nightly_s=1100,
    ),
    *WITH_PYTENSOR,
    Suite("synk-core/processes", PROCESSES, about_s=280, nightly_s=400, alone=True),
    Suite("synk-core/faults", tests_of("synk-core", "faults"), about_s=135, nightly_s=1800),
    Suite("theano-compat", tests_of("theano-compat"), about_s=60, nightly_s=300),
    Suite("synk-theano", tests_of("synk-theano"), about_s=40, nightly_s=60),
    Suite("synk-extensions", tests_of("synk-extensions"), about_s=630, nightly_s=600),
    Suite("integration", ("integration",), about_s=370, nightly_s=700),
    Suite("synk-testing", ("dev/synk-testing/tests",), about_s=20, nightly_s=15),
]


WITHOUT_THEANO = {"synk-shm", "synk-comm", "synk-testing", *(s.name for s in WITH_PYTENSOR)}
HAS_THEANO = sys.version_info < (3, 12)


def programs(soak_s: int, trials: int) -> list[Suite]:
    """Return what a nightly run does besides the tests."""
    soak = ("integration/endurance/soak.py", "--seconds", str(soak_s))
    interrupts = trials // 3
    kills = (
        *("integration/endurance/kill_trials.py", "--trials", str(trials)),
        *("--interrupts", str(interrupts)),
    )
    older = (
        []
        if sys.executable == NEWEST
        else [
            Suite("synk-shm/older-python", tests_of("synk-shm"), nightly_s=200),
            Suite("synk-comm/older-python", tests_of("synk-comm"), nightly_s=900),
        ]
    )
    return [
        *older,
        Suite(
            "endurance/soak",
            nightly_s=soak_s + 30,
            program=(*soak, "--json", str(ENDURANCE / "soak.json")),
        ),
        Suite(
            "planted-faults",
            nightly_s=1200,
            program=("scripts/planted_faults.py", "--json", str(ENDURANCE / "planted_faults.json")),
        ),
        Suite(
            "endurance/kill_trials",
            nightly_s=int(1.6 * (trials + interrupts)),
            alone=True,
            program=(*kills, "--json", str(ENDURANCE / "kill_trials.json")),
        ),
    ]


PR_SET_PDEATHSIG = 1
LIBC = ctypes.CDLL(None) if sys.platform == "linux" else None


def end_with_parent() -> None:
    """Have the kernel kill this process, a child, with its parent, even if that is killed."""
    if LIBC is not None:
        LIBC.prctl(PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0)


class Run:
    """A suite under way, and what came of it.

    Args:
        suite: what to run.
        arguments: for pytest.
        alone: whether to run the tests that are marked so, or the others.
        environment: changes to this program's.
    """

    def __init__(
        self, suite: Suite, arguments: Sequence[str], alone: bool, environment: dict[str, str]
    ) -> None:
        self.suite = suite
        self.name = suite.name + (" (alone)" if alone and not suite.program else "")
        stem = LOGS / re.sub(r"\W+", "-", self.name).strip("-")
        self.log, self.report = stem.with_suffix(".log"), stem.with_suffix(".jsonl")
        self.report.unlink(missing_ok=True)
        command = [suite.python, *suite.program]
        if not suite.program:
            mark = "alone" if alone else "not alone"
            arguments, given = list(arguments), None
            if "-m" in arguments:
                place = arguments.index("-m")
                given = arguments[place + 1]
                del arguments[place : place + 2]
            paths = alone_in(suite.paths) if alone else suite.paths
            command += ["-m", "pytest", *paths, "-q", "-rfEs", "--color=no"]
            command += ["-m", f"({given}) and {mark}" if given else mark]
            command += [f"--ignore={path}" for path in suite.without] + arguments
        self.seconds = 0.0
        self.status: Optional[int] = None
        if not suite.program:  # its tests would report theirs, that are to fail
            environment = {**environment, "SYNK_TESTS_REPORT": str(self.report)}
        self._begin = time.monotonic()
        with self.log.open("w", encoding="utf-8") as output:
            # Its own session, so that the terminal's signals do not reach it.
            self._process = subprocess.Popen(
                command,
                cwd=ROOT,
                env={**os.environ, **environment},
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                preexec_fn=end_with_parent,  # noqa: PLW1509 - this has one thread
            )

    def look(self, limit_s: float) -> bool:
        """Return whether it has ended; after `limit_s` seconds, end it."""
        self.status = self._process.poll()
        self.seconds = time.monotonic() - self._begin
        if self.status is None and self.seconds > limit_s:
            self.end()
            self.status = TIMED_OUT
        return self.status is not None

    def end(self) -> None:
        """End it with everything it started, if it is still there."""
        if self._process.poll() is None:
            started = psutil.Process(self._process.pid).children(recursive=True)
            for process in (*started, self._process):
                try:
                    process.kill()
                except psutil.NoSuchProcess:
                    pass
            self._process.wait()

    def events(self) -> list[dict]:
        """Return what its pytest has reported."""
        if not self.report.exists():
            return []
        lines = self.report.read_text(encoding="utf-8").split("\n")[:-1]
        return [json.loads(line) for line in lines]

    def outcomes(self) -> dict[str, str]:
        """Return the outcome of each test that has run: "passed", "failed" or "skipped"."""
        found: dict[str, str] = {}
        for event in self.events():
            if "when" in event and found.get(event["id"]) != "failed":
                if event["when"] == "call" or event["outcome"] != "passed":
                    found[event["id"]] = event["outcome"]
        return found

    def counts(self) -> str:
        """Return how many tests had which outcome."""
        counted = collections.Counter(self.outcomes().values())
        words = [f"{counted[w]} {w}" for w in ("failed", "passed", "skipped") if counted[w]]
        return ", ".join(words)

    def verdict(self) -> str:
        """Return in words what came of it."""
        known = {0: "", 1: "", TIMED_OUT: "ENDED, IT TOOK TOO LONG", NO_TESTS_COLLECTED: "no tests"}
        said = known.get(self.status or 0, f"ENDED WITH STATUS {self.status}")
        if self.suite.program and not said:
            said = "FAILED" if self.status else "passed"
        return ", ".join(filter(None, [said, self.counts()]))

    def failures(self) -> str:
        """Return what it printed of its failures, whole; of one that broke off, the end."""
        text = self.log.read_text(encoding="utf-8", errors="replace")
        found = re.search(r"^=+ (ERRORS|FAILURES) =+$", text, re.MULTILINE)
        return text[found.start() :] if found else "\n".join(text.splitlines()[-200:])


class Runs:
    """All suites of one run.

    Args:
        suites: what to run.
        arguments: for pytest.
        jobs: how many at the same time.
        nightly: whether whole.
        left_out: names of suites that cannot run here.
    """

    def __init__(
        self,
        suites: Sequence[Suite],
        arguments: Sequence[str],
        jobs: int,
        nightly: bool,
        left_out: Sequence[str] = (),
    ) -> None:
        self._left_out = left_out
        self._arguments, self._jobs, self._nightly = arguments, jobs, nightly
        beside = [s for s in suites if not (s.program and s.alone)]
        beside.sort(key=self._expected, reverse=True)
        self._waiting = [(suite, False) for suite in beside]
        self._waiting += [(suite, True) for suite in suites if suite.alone]
        self._all = len(self._waiting)
        self._running: list[Run] = []
        self.done: list[Run] = []
        self._begin = self._said = time.monotonic()

    def _expected(self, suite: Suite) -> int:
        return suite.nightly_s if self._nightly else suite.about_s

    def run(self) -> None:
        """Run all, until the last one has ended."""
        self._say(f"{self._all} suites, {self._jobs} at a time, in about {self._left()}")
        try:
            while self._waiting or self._running:
                self._start()
                ended = [run for run in self._running if run.look(self._limit())]
                for run in ended:
                    self._running.remove(run)
                    self.done.append(run)
                    line = f"{len(self.done):>3}/{self._all}  {run.name:<28} {run.seconds:6.0f} s"
                    self._say(f"{line}  {run.verdict()}", left=True)
                if time.monotonic() - self._said > PROGRESS_S:
                    self._say("under way: " + ", ".join(map(self._progress, self._running)))
                time.sleep(0 if ended else 0.1)
        finally:
            for run in self._running:
                run.end()

    def _limit(self) -> float:
        return NIGHTLY_LIMIT_S if self._nightly else LIMIT_S

    def _start(self) -> None:
        """Start suites while there is room; those that run alone, when nothing else runs."""
        while self._waiting:
            suite, alone = self._waiting[0]
            if len(self._running) >= (1 if alone else self._jobs):
                return
            if alone and self._running:
                return
            del self._waiting[0]
            # Planted faults are for the tests of every day.
            environment = WHOLE if self._nightly and not suite.program else {}
            self._running.append(Run(suite, self._arguments, alone, environment))

    def _progress(self, run: Run) -> str:
        collected = [event["collected"] for event in run.events() if "collected" in event]
        return run.name + (f" {len(run.outcomes())}/{collected[0]}" if collected else "")

    def _left(self) -> str:
        """Return the time that is left, at the pace of this machine so far."""
        expected = sum(self._expected(run.suite) for run in self.done)
        pace = sum(run.seconds for run in self.done) / expected if expected else 1.0
        todo = sum(
            0 if alone and not s.program else self._expected(s) for s, alone in self._waiting
        )
        todo += sum(max(self._expected(r.suite) - r.seconds / pace, 10) for r in self._running)
        return f"{max(todo * pace / self._jobs / 60, 1):.0f} min"

    def _say(self, text: str, left: bool = False) -> None:
        self._said = time.monotonic()
        seconds = int(self._said - self._begin)
        after = f"  ({self._left()} left)" if left and (self._waiting or self._running) else ""
        print(f"{seconds // 60:>3}:{seconds % 60:02}  {text}{after}", flush=True)

    def summary(self) -> int:
        """Print all failures and a summary; return the exit status."""
        # A selection may leave some suites empty; without one, no tests is a fault.
        empty_is_fine = bool(self._arguments)
        wrong = [
            run
            for run in self.done
            if run.status
            and not (run.status == NO_TESTS_COLLECTED and (empty_is_fine or run.suite.alone))
        ]
        for run in wrong:
            print(f"\n===== {run.name}\n{run.failures()}", flush=True)
        counted: collections.Counter[str] = collections.Counter()
        alone = []
        for run in self.done:
            outcomes = run.outcomes()
            counted.update(outcomes.values())
            failed = [name for name, outcome in outcomes.items() if outcome == "failed"]
            python = os.path.relpath(run.suite.python, ROOT)
            alone += [f"  {python} -m pytest {shlex.quote(name)}" for name in failed]
        if alone:
            print("\n===== to run what failed alone\n" + "\n".join(alone))
        print("\n===== skipped, and why")
        for reason, count in sorted(self._reasons().items()):
            print(f"  {count:>4}  {reason}")
        if self._left_out:
            print("\n===== left out, because they need Theano, and that Python 3.9 to 3.11")
            print(f"  {', '.join(self._left_out)}")
        print("\n===== summary")
        for run in sorted(self.done, key=lambda run: -run.seconds):
            print(f"  {run.name:<28} {run.seconds:6.0f} s  {run.verdict()}")
        whole = time.monotonic() - self._begin
        print(f"  {'all':<28} {whole:6.0f} s  {'FAILED' if wrong else 'passed'}; logs: build/tests")
        # Programs, and suites that broke off, count as one test each.
        broken = sum(not run.outcomes() for run in wrong)
        passed = counted["passed"] + sum(
            bool(run.suite.program) and not run.status for run in self.done
        )
        print(f"{passed} passed, {counted['failed'] + broken} failed, {counted['skipped']} skipped")
        return 1 if wrong else 0

    def table(self) -> str:
        """Return what took how long, as Markdown: suites, and the slowest tests of each."""
        about = f"{os.cpu_count()} cores, Python {platform.python_version()}, {date.today()}"
        lines = [f"Made by `scripts/run_tests.py --table`: {about}.", ""]
        lines += ["| suite | tests | s | CPU s |", "|---|---:|---:|---:|"]
        tests: dict[str, list[float]] = {}
        for run in sorted(self.done, key=lambda run: -run.seconds):
            cpu = 0.0
            for event in run.events():
                if "id" in event:
                    taken = tests.setdefault(event["id"], [0.0, 0.0])
                    taken[0] += event.get("seconds", 0.0)
                    taken[1] += event.get("cpu", 0.0)
                    cpu += event.get("cpu", 0.0)
            row = f"| {run.name} | {len(run.outcomes())} | {run.seconds:.0f} | {cpu:.0f} |"
            lines.append(row)
        lines += [
            "",
            "CPU seconds are those of pytest and of the processes that it waited for.",
            "",
        ]
        lines += ["| slowest tests | s | CPU s |", "|---|---:|---:|"]
        slowest = sorted(tests.items(), key=lambda item: -item[1][0])[:SLOWEST]
        lines += [f"| `{name}` | {s:.1f} | {cpu:.1f} |" for name, (s, cpu) in slowest]
        return "\n".join(lines) + "\n"

    def _reasons(self) -> collections.Counter[str]:
        reasons: collections.Counter[str] = collections.Counter()
        for run in self.done:
            text = run.log.read_text(encoding="utf-8", errors="replace")
            for count, why in re.findall(r"^SKIPPED \[(\d+)\] .+?: (.*)$", text, re.MULTILINE):
                reasons[why] += int(count)
        return reasons


def chosen(names: Sequence[str], suites: Sequence[Suite]) -> list[Suite]:
    """Return the suites of these names; of a package's name, all its parts.

    Raises:
        SystemExit: there is no such suite.
    """
    known = {suite.name for suite in suites} | {suite.name.partition("/")[0] for suite in suites}
    if unknown := [name for name in names if name not in known]:
        sys.exit(f"no such suite: {', '.join(unknown)}; known are {', '.join(sorted(known))}")
    return [
        suite
        for suite in suites
        if not names or suite.name in names or suite.name.partition("/")[0] in names
    ]


def reset_signals() -> None:
    """Undo what nohup, a shell's "&" or cron have done to signals, also for all that is started.

    SIGPIPE is as Python has it, which gives what it starts the default. What is caught here is the
    default in programs that are started: they may be ended by SIGHUP, and this one goes on.
    """
    signal.signal(signal.SIGINT, signal.default_int_handler)
    # An exception ends the running suites on the way out; a signal alone would not.
    for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT):
        ignored = signal.getsignal(number) is signal.SIG_IGN
        signal.signal(number, (lambda *_: None) if ignored else (lambda n, _: sys.exit(128 + n)))


def main(arguments: Sequence[str]) -> int:
    """Run the suites named before `--`, with pytest's arguments after it."""
    cut = arguments.index("--") if "--" in arguments else len(arguments)
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    # Tests wait for a fifth of their time, and there is always something that waits.
    jobs = len(os.sched_getaffinity(0)) + 3
    parser.add_argument("suites", nargs="*", help="default: all")
    parser.add_argument(
        "--jobs", type=int, default=jobs, help="suites at a time; default: cores + 3"
    )
    parser.add_argument("--nightly", action="store_true", help="all there is, and endurance")
    parser.add_argument("--soak-s", type=int, default=3600, help="seconds of random work (3600)")
    parser.add_argument("--trials", type=int, default=1000, help="how many kills (1000)")
    parser.add_argument("--table", type=Path, metavar="FILE", help="write what took how long")
    parser.add_argument("--list", action="store_true", help="the names of the suites")
    options = parser.parse_args(arguments[:cut])
    suites = SUITES + (programs(options.soak_s, options.trials) if options.nightly else [])
    if options.list:
        print("\n".join(suite.name for suite in suites))
        return 0
    suites = chosen(options.suites, suites)
    left_out = [s.name for s in suites if not HAS_THEANO and s.name not in WITHOUT_THEANO]
    suites = [suite for suite in suites if suite.name not in left_out]
    if not suites:
        sys.exit(f"{', '.join(left_out)}: needs Theano, and that Python 3.9 to 3.11")
    reset_signals()
    for folder in (LOGS, ENDURANCE):
        folder.mkdir(parents=True, exist_ok=True)
    runs = Runs(suites, arguments[cut + 1 :], options.jobs, options.nightly, left_out)
    try:
        runs.run()
    except KeyboardInterrupt:
        runs.summary()
        return 128 + signal.SIGINT
    if options.table:
        options.table.write_text(runs.table(), encoding="utf-8")
    return runs.summary()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
