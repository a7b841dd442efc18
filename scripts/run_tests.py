"""Run the test suites on all cores; report each as it ends, and all failures at the end.

    python scripts/run_tests.py                              what is tested every day
    python scripts/run_tests.py synk-shm synk-core/faults    some: a package, or a part of it
    python scripts/run_tests.py synk-shm -- -k resize -x     with arguments for pytest
    python scripts/run_tests.py --nightly                    all there is, whole, and endurance
    python scripts/run_tests.py --table                      note the processor time of each suite

By day the other engine, where it is installed, has a smoke suite. Tests that are marked "alone",
because they have hard limits of time or look at the whole machine, and programs that measure follow
one by one. What each printed is kept in build/tests. The exit status is 0 only when all passed, and
there were no more tests than scripts/budgets.json allows.
"""

from __future__ import annotations

import argparse
import collections
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
BUDGETS = ROOT / "scripts" / "budgets.json"
NEWER = ROOT / ".venv-newer" / "bin" / "python"
HAS_THEANO = sys.version_info < (3, 12)
NO_TESTS_COLLECTED = 5
GRAPHS = {"theano": 14000, "pytensor": 6000}
"""Random graphs a night; PyTensor takes three times as long for one."""
TIMED_OUT = 124
LIMIT_S = int(os.environ.get("SYNK_SUITE_LIMIT_S", "2400"))
NIGHTLY_LIMIT_S = 4 * 3600
"""Seconds that one suite may take, whatever it hangs in."""
PROGRESS_S = 60
UNKNOWN_S = 1000.0
GROWTH, GROWTH_S = 1.1, 5.0
"""A suite that takes more than this factor of its time, and so many seconds, is reported."""
ALONE = re.compile(r"^\s*(?:@|pytestmark = )pytest\.mark\.alone", re.MULTILINE)


@dataclasses.dataclass(frozen=True)
class Suite:
    """A pytest of its own; or another program, which passes by ending with status 0.

    Its name is a package, or "integration", and which part of it. Pytest collects `paths`, relative
    to the root, but for those `without`, which other suites run. One that is not daily runs at
    night, or when it is named. Nothing else may run beside a program that `is_quiet`.
    """

    name: str
    paths: tuple[str, ...] = ()
    without: tuple[str, ...] = ()
    is_daily: bool = True
    needs_theano: bool = False
    python: str = sys.executable
    program: tuple[str, ...] = ()
    is_quiet: bool = False

    def alone(self) -> list[str]:
        """Return its files in which tests are marked "alone": to collect all would take seconds."""
        places = [ROOT / path for path in self.paths if "::" not in path]
        files = {file for place in places for file in (place, *place.rglob("test_*.py"))}
        left = [ROOT / path for path in self.without]
        return [
            str(file)
            for file in sorted(files)
            if file.is_file() and not any(file == path or path in file.parents for path in left)
            if ALONE.search(file.read_text(encoding="utf-8"))
        ]


def tests_of(package: str, *parts: str) -> tuple[str, ...]:
    """Return paths of a package's tests."""
    return tuple(f"packages/{package}/tests/{part}".rstrip("/") for part in parts or ("",))


# In a suite of their own, so that none takes much longer than the others.
PROCESSES = tests_of(
    "synk-core",
    *("test_failures.py", "test_flight.py", "test_killed.py", "test_pool.py", "test_releases.py"),
    *("test_runtime.py", "test_security.py", "test_stacks.py"),
)
FAULTS = tests_of("synk-core", "faults")
PYMC = tests_of("synk-extensions", "test_pymc.py", "test_pymc_example.py")
PAGES = ("integration/test_docs_blocks.py", "integration/test_examples.py")

# Tests of what tests, builds, documents and measures, and of what is built. They need `make tools`,
# and run at night, and where a change asks for them (`.github/scripts/changed_packages.py`).
TOOLING = tuple(
    f"integration/test_{name}.py"
    for name in (
        *("bootstrap", "run_tests", "planted_faults", "ci"),
        *("benchmarks", "pictures", "wheels", "new_user", "notebook", "docs_site"),
    )
)

# Of the engine that is not at hand: its adapter's own tests, one of each kind of call, and PyMC's.
SMOKE = (
    *tests_of("synk-pytensor"),
    *tests_of(
        "synk-core",
        "test_adapters.py::test_the_engine_of_this_environment_is_found",
        "test_adapters.py::test_workers_compute_with_the_masters_engine_and_options",
        "test_function.py::test_outputs_come_back_as_from_theano",
        "test_function.py::test_inputs_by_name_and_of_other_kinds",
        "test_function.py::test_each_update_accumulates_by_its_own_operation",
        "test_function.py::test_any_batch_in_slices_gives_numpys_results",
        "test_function.py::test_dropout_masks_differ_by_rank_and_follow_from_the_seed",
        "test_in_graph.py::test_rows_of_all_ranks",
        "test_flat.py::test_givens_defaults_states_and_names",
        "test_flat.py::test_scan_and_its_gradient",
        "test_step.py::test_a_training_step_is_one_order_and_exact",
        "test_check.py::test_draws_for_each_row_are_row_wise_and_do_not_hide_a_mixed_result",
        "test_atomic.py::test_a_step_is_done_whole_or_not_at_all",
    ),
    *tests_of(
        "synk-extensions",
        "test_nn.py",
        "test_pymc.py::test_rows_by_the_name_of_a_coordinate_are_read_once[2]",
        "test_pymc.py::test_the_maximum_is_pymcs[2-L-BFGS-B]",
        "test_pymc.py::test_models_that_do_not_divide_are_refused[2-centred]",
        "test_pymc.py::test_draws_are_those_of_pymc[2]",
    ),
)


def all_suites() -> list[Suite]:
    """Return all suites of tests.

    Those of PyTensor compute by C code; by Numba where a test says so. `SYNK_LINKER=numba` has all
    of them computed by Numba.
    """
    theano = {
        "synk-core": (tests_of("synk-core"), (*FAULTS, *PROCESSES)),
        "synk-core/processes": (PROCESSES, ()),
        "synk-core/faults": (FAULTS, ()),
        "theano-compat": (tests_of("theano-compat"), ()),
        "synk-theano": (tests_of("synk-theano"), ()),
        "synk-extensions": (tests_of("synk-extensions"), ()),
        "integration": (("integration",), TOOLING),
        "tooling": ((*TOOLING, "dev/synk-testing/tests"), ()),
    }
    pytensor = {
        "synk-core/pytensor": (tests_of("synk-core"), FAULTS),
        "synk-pytensor": (tests_of("synk-pytensor"), ()),
        "synk-extensions/pytensor": (tests_of("synk-extensions"), PYMC),
        # Apart from the others: PyMC raises the limit of recursion.
        "synk-extensions/pymc": (PYMC, ()),
        "integration/pytensor": ((*PAGES, "integration/exactness"), ()),
    }
    suites = [Suite(name, tests_of(name)) for name in ("synk-shm", "synk-comm")]
    for name, places in theano.items():
        suites.append(Suite(name, *places, is_daily=name != "tooling", needs_theano=True))
    if not HAS_THEANO:
        return suites + [Suite(name, *places) for name, places in pytensor.items()]
    if NEWER.exists():
        newer = {"python": str(NEWER)}
        suites.append(Suite("pytensor/smoke", SMOKE, **newer))
        newer["is_daily"] = False
        suites += [Suite(name, *places, **newer) for name, places in pytensor.items()]
        suites += [Suite(f"{s.name}/newer", s.paths, **newer) for s in suites[:2]]
    return suites


SUITES = all_suites()


def programs(soak_s: int, trials: int) -> list[Suite]:
    """Return what a nightly run does besides the tests."""
    kills = ("--trials", str(trials), "--interrupts", str(trials // 3))
    commands = {
        "endurance/soak": ("integration/endurance/soak.py", "--seconds", str(soak_s)),
        "planted-faults": ("scripts/planted_faults.py",),
        "endurance/kill_trials": ("integration/endurance/kill_trials.py", *kills),
    }
    suites = [
        Suite(
            name,
            program=(*command, "--json", str(ENDURANCE / f"{Path(command[0]).stem}.json")),
            is_quiet=name != "endurance/soak",  # a fault may remove what others have in /dev/shm
        )
        for name, command in commands.items()
    ]
    pythons = {"pytensor": str(NEWER)} if NEWER.exists() else {}
    pythons["theano" if HAS_THEANO else "pytensor"] = sys.executable
    for engine, python in pythons.items():
        program = ("integration/exactness/random_graphs.py", "--count", str(GRAPHS[engine]))
        program += ("--json", str(ENDURANCE / f"random_graphs_{engine}.json"))
        suites.append(Suite(f"random-graphs/{engine}", program=program, python=python))
    return suites


class Run:
    """A suite under way, and its result; of its tests marked "alone", or of the others."""

    def __init__(
        self, suite: Suite, arguments: Sequence[str], alone: bool, environment: dict[str, str]
    ) -> None:
        self.suite, self.is_alone = suite, alone
        self.name = suite.name + (" (alone)" if alone and not suite.program else "")
        stem = LOGS / re.sub(r"\W+", "-", self.name).strip("-")
        self.log, self.report = stem.with_suffix(".log"), stem.with_suffix(".jsonl")
        self.report.unlink(missing_ok=True)
        command = [suite.python, *suite.program]
        if not suite.program:  # its tests would report theirs, that are to fail
            environment = {**environment, "SYNK_TESTS_REPORT": str(self.report)}
            mark = "alone" if alone else "not alone"
            arguments, given = list(arguments), None
            if "-m" in arguments:
                place = arguments.index("-m")
                given = arguments[place + 1]
                del arguments[place : place + 2]
            paths = suite.alone() if alone else suite.paths
            command += ["-m", "pytest", *paths, "-q", "-rfEs", "--color=no"]
            command += ["-m", f"({given}) and {mark}" if given else mark]
            command += [f"--ignore={path}" for path in suite.without] + arguments
        self.seconds = self.cpu_s = 0.0
        self.status: Optional[int] = None
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
            )

    def look(self, limit_s: float) -> bool:
        """Return whether it has ended; after `limit_s` seconds, end it."""
        self._reap(os.WNOHANG)
        self.seconds = time.monotonic() - self._begin
        if self.status is None and self.seconds > limit_s:
            self.end()
            self.status = TIMED_OUT
        return self.status is not None

    def end(self) -> None:
        """End it with everything it started, if it is still there."""
        if self.status is None:
            started = psutil.Process(self._process.pid).children(recursive=True)
            for process in (*started, self._process):
                try:
                    process.kill()
                except psutil.NoSuchProcess:
                    pass
            self._reap(0)

    def _reap(self, options: int) -> None:
        """Take its status, and the processor time of all processes that were waited for in it."""
        if self.status is None:
            pid, status, used = os.wait4(self._process.pid, options)
            if pid:
                self.status = self._process.returncode = os.waitstatus_to_exitcode(status)
                self.cpu_s = used.ru_utime + used.ru_stime

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

    def collected(self) -> int:
        """Return how many tests it has, as soon as it knows."""
        return sum(event.get("collected", 0) for event in self.events())

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
    """All suites of one run; `left_out` are names of those that cannot run here."""

    def __init__(
        self,
        suites: Sequence[Suite],
        arguments: Sequence[str],
        jobs: int,
        nightly: bool,
        left_out: Sequence[str] = (),
        is_complete: bool = False,
    ) -> None:
        self._left_out, self._is_complete = left_out, is_complete and not arguments
        self._arguments, self._jobs, self._nightly = arguments, jobs, nightly
        self._budgets = json.loads(BUDGETS.read_text(encoding="utf-8"))
        self._cpu_s: dict[str, float] = self._budgets["cpu_s"]["night" if nightly else "day"]
        beside = [suite for suite in suites if not suite.is_quiet]
        beside.sort(key=lambda suite: -self._cpu_s.get(suite.name, UNKNOWN_S))
        self._waiting = [(suite, False) for suite in beside]
        self._waiting += [(suite, True) for suite in suites if suite.is_quiet or suite.alone()]
        self._all = len(self._waiting)
        self._running: list[Run] = []
        self.done: list[Run] = []
        self._begin = self._said = time.monotonic()

    def run(self) -> None:
        """Run all, until the last one has ended."""
        self._say(f"{self._all} suites, {self._jobs} at a time")
        try:
            while self._waiting or self._running:
                self._start()
                ended = [run for run in self._running if run.look(self._limit())]
                for run in ended:
                    self._running.remove(run)
                    self.done.append(run)
                    self._say(f"{len(self.done):>3}/{self._all}  {self._line(run)}")
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
            environment = {"SYNK_TESTS": "all"} if self._nightly and not suite.program else {}
            self._running.append(Run(suite, self._arguments, alone, environment))

    def _progress(self, run: Run) -> str:
        collected = run.collected()
        return run.name + (f" {len(run.outcomes())}/{collected}" if collected else "")

    def _line(self, run: Run) -> str:
        return f"{run.name:<28} {run.seconds:6.0f} s {run.cpu_s:6.0f} CPU s  {run.verdict()}"

    def _say(self, text: str) -> None:
        self._said = time.monotonic()
        seconds = int(self._said - self._begin)
        print(f"{seconds // 60:>3}:{seconds % 60:02}  {text}", flush=True)

    def summary(self) -> int:
        """Print all failures and a summary; return the exit status."""
        # A selection may leave some suites empty; without one, no tests is a fault.
        empty_is_fine = bool(self._arguments)
        wrong = [
            run
            for run in self.done
            if run.status
            and not (run.status == NO_TESTS_COLLECTED and (empty_is_fine or run.is_alone))
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
        for line in self._grown():
            print(line)
        print("\n===== summary")
        for run in sorted(self.done, key=lambda run: -run.cpu_s):
            print(f"  {self._line(run)}")
        seconds, cpu_s = time.monotonic() - self._begin, sum(run.cpu_s for run in self.done)
        too_many = self._too_many()
        verdict = "FAILED" if wrong or too_many else "passed"
        print(f"  {'all':<28} {seconds:6.0f} s {cpu_s:6.0f} CPU s  {verdict}; logs: build/tests")
        if too_many:
            print(too_many)
        # Programs, and suites that broke off, count as one test each.
        broken = sum(not run.outcomes() for run in wrong)
        passed = counted["passed"] + sum(
            bool(run.suite.program) and not run.status for run in self.done
        )
        print(f"{passed} passed, {counted['failed'] + broken} failed, {counted['skipped']} skipped")
        return 1 if wrong or too_many else 0

    def _too_many(self) -> str:
        """Return which budget the number of tests exceeds; "" if it does not, or is not known."""
        tests, most = sum(run.collected() for run in self.done), self._budgets["tests"]
        if not self._is_complete or self._nightly or tests <= most:
            return ""
        return (
            f"FAILED: {tests} tests by day, scripts/budgets.json allows {most}: mark some nightly"
        )

    def cpu_seconds(self) -> dict[str, float]:
        """Return the processor time of each suite, of what runs alone included."""
        found: dict[str, float] = {}
        for run in self.done:
            found[run.suite.name] = round(found.get(run.suite.name, 0.0) + run.cpu_s, 1)
        return found

    def _grown(self) -> list[str]:
        """Return a warning about each suite that takes longer than it did: no failure, because
        machines differ."""
        if self._arguments:
            return []
        lines = [
            f"  {name:<28} {now:6.0f} CPU s, it was {self._cpu_s[name]:.0f}"
            for name, now in self.cpu_seconds().items()
            if now > GROWTH * self._cpu_s.get(name, now) + GROWTH_S
        ]
        return ["\n===== WARNING: slower than in scripts/budgets.json", *lines] if lines else []

    def write_table(self) -> None:
        """Note the processor time of what has run in scripts/budgets.json."""
        when = "night" if self._nightly else "day"
        found = self.cpu_seconds()
        self._budgets["cpu_s"][when] = found if self._is_complete else {**self._cpu_s, **found}
        self._budgets["cpu_s"]["measured"] = (
            f"{os.cpu_count()} cores, Python {platform.python_version()}, {date.today()}"
        )
        BUDGETS.write_text(json.dumps(self._budgets, indent=1) + "\n", encoding="utf-8")

    def _reasons(self) -> collections.Counter[str]:
        reasons: collections.Counter[str] = collections.Counter()
        for run in self.done:
            text = run.log.read_text(encoding="utf-8", errors="replace")
            for count, why in re.findall(r"^SKIPPED \[(\d+)\] .+?: (.*)$", text, re.MULTILINE):
                reasons[why] += int(count)
        return reasons


def chosen(names: Sequence[str], suites: Sequence[Suite], nightly: bool) -> list[Suite]:
    """Return the suites of these names; of a package's name, all its parts of every day."""
    known = {suite.name for suite in suites} | {suite.name.partition("/")[0] for suite in suites}
    if unknown := [name for name in names if name not in known]:
        sys.exit(f"no such suite: {', '.join(unknown)}; known are {', '.join(sorted(known))}")
    return [
        suite
        for suite in suites
        if suite.name in names
        or ((nightly or suite.is_daily) and (not names or suite.name.partition("/")[0] in names))
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
    parser.add_argument("--table", action="store_true", help="note what took how long")
    parser.add_argument("--list", action="store_true", help="the names of the suites")
    options = parser.parse_args(arguments[:cut])
    suites = SUITES + (programs(options.soak_s, options.trials) if options.nightly else [])
    if options.list:
        print("\n".join(suite.name for suite in suites))
        return 0
    suites = chosen(options.suites, suites, options.nightly)
    left_out = [suite.name for suite in suites if suite.needs_theano and not HAS_THEANO]
    suites = [suite for suite in suites if suite.name not in left_out]
    if not suites:
        sys.exit(f"{', '.join(left_out)}: needs Theano, and that Python 3.9 to 3.11")
    reset_signals()
    for folder in (LOGS, ENDURANCE):
        folder.mkdir(parents=True, exist_ok=True)
    given = arguments[cut + 1 :]
    runs = Runs(suites, given, options.jobs, options.nightly, left_out, not options.suites)
    try:
        runs.run()
    except KeyboardInterrupt:
        runs.summary()
        return 128 + signal.SIGINT
    status = runs.summary()
    if options.table:
        runs.write_table()
    return status


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
