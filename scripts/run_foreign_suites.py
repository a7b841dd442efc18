"""Run parts of the test suites of Theano, Lasagne and PyTensor under what this project changes.

    python scripts/run_foreign_suites.py --list
    python scripts/run_foreign_suites.py --venv /tmp/foreign             all, in an environment of
                                                                         their own, made if absent
    python scripts/run_foreign_suites.py tests/test_ifelse lasagne/init  some, in this environment
    python scripts/run_foreign_suites.py --venv /tmp/foreign lasagne-0.2 Lasagne 0.2.dev1's and ours
    python scripts/run_foreign_suites.py --pytensor FOLDER               PyTensor's, of a checkout

Theano's and Lasagne's run under the compatibility hook; PyTensor's have their functions made as
those of Synkhronos: see `_through_synk.py`. Every suite runs in its own pytest, one after the
other, and is compared with `foreign_suites.json` beside this script. The exit status is 1 when
something that passed then fails now, or is gone. All suites take hours; `--quick` has the compiler
spend no time on optimisation.
"""

from __future__ import annotations

import argparse
import fnmatch
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import xml.etree.ElementTree as ET
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).resolve().parent.parent
KNOWN = Path(__file__).with_name("foreign_suites.json")
HAS_THEANO = sys.version_info < (3, 12)
ADAPTER = ("theano-compat", "synk-theano") if HAS_THEANO else ("synk-pytensor",)
LOCAL = ("synk-shm", "synk-comm", "synk-core", *ADAPTER)
LASAGNE = "lasagne==0.1"
NEWER = "lasagne-0.2.dev1/"
NEWER_LASAGNE = (
    "https://github.com/Lasagne/Lasagne/archive/5d3c63cb315c50b1cbd27a6bc8664b406f34dd99.zip"
)
MENDED_FILE = "lasagne/tests/layers/test_conv.py"
MENDED = {
    "output[slices]": "output[tuple(slices)]",
    "[[slice(None, None, factor) for factor in factors]]": (
        "[tuple(slice(None, None, factor) for factor in factors)]"
    ),
}
"""Lines of Lasagne 0.2.dev1's tests that index NumPy with lists: none of the file would run."""
# setuptools, because Theano and Lasagne ask pkg_resources and distutils; mock, for Lasagne's tests.
NEEDED = (
    *("numpy==1.23.5", "scipy==1.15.3", "setuptools==65.5.0"),
    *("pytest==7.4.4", "parameterized", "mock", LASAGNE),
)
NEEDED_BY_PYTENSOR = ("pytest>=8", "pytest-mock")
SUITE_LIMIT_S = 4 * 3600


class Suite(NamedTuple):
    """One row of the table: what is run, and what came of it."""

    name: str
    failing: dict[str, str]
    """Tests that are known to fail (`Class::test`, with `*`), and the cause of each."""
    passed: int
    skipped: int = 0
    select: str = ""

    @property
    def label(self) -> str:
        """The suite's name in the comparison."""
        return f"{self.name} -k '{self.select}'" if self.select else self.name

    @property
    def figures(self) -> str:
        """How many tests passed, are known to fail, and were skipped."""
        return f"{self.passed} / {len(self.failing)} / {self.skipped}"


class Result(NamedTuple):
    """What became of a suite: numbers, names of tests that failed, and why there are none."""

    passed: int
    skipped: int
    failed: list[str]
    problem: str = ""


def known_suites() -> list[Suite]:
    """Read the table: what this Python can run of it."""
    rows: list[dict[str, Any]] = json.loads(KNOWN.read_text(encoding="utf-8"))["suites"]
    suites = [Suite(**{"failing": {}, **row}) for row in rows]
    return [suite for suite in suites if suite.name.startswith("pytensor/") != HAS_THEANO]


def is_ours(suite: Suite) -> bool:
    """Return whether these are tests of this repository, with Lasagne 0.2.dev1."""
    return suite.name.startswith((f"{NEWER}packages/", f"{NEWER}integration/"))


def make_environment(folder: Path) -> Path:
    """Return the interpreter of the environment in ``folder``, which is made if it is not there."""
    python = folder / "bin" / "python"
    ready = folder / ".ready"
    if ready.exists():
        return python
    subprocess.run([sys.executable, "-m", "venv", "--clear", str(folder)], check=True)
    pip = [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    editable = [part for name in LOCAL for part in ("-e", str(ROOT / "packages" / name))]
    needed = NEEDED if HAS_THEANO else NEEDED_BY_PYTENSOR
    subprocess.run([*pip, *editable, *needed], check=True)
    if HAS_THEANO:
        subprocess.run([str(python), "-m", "synk_theano_compat", "--install"], check=True)
    ready.touch()
    return python


def unpack_lasagne(python: Path, requirement: str, folder: Path) -> Path:
    """Fetch Lasagne's sources, which alone have its tests, and unpack them."""
    folder.mkdir()
    pip = [str(python), "-m", "pip", "download", "--quiet", "--disable-pip-version-check"]
    subprocess.run(
        [*pip, "--no-deps", "--no-binary", ":all:", "--dest", str(folder), requirement], check=True
    )
    (archive,) = folder.iterdir()
    shutil.unpack_archive(archive, folder)
    (unpacked,) = (path for path in folder.iterdir() if path.is_dir())
    if requirement == NEWER_LASAGNE:
        file = unpacked / MENDED_FILE
        text = file.read_text(encoding="utf-8")
        for old, new in MENDED.items():
            text = text.replace(old, new)
        file.write_text(text, encoding="utf-8")
    return unpacked


def run_suite(suite: Suite, python: Path, top: Path, flags: str, scratch: Path) -> Result:
    """Run one suite in its own pytest and return what became of its tests."""
    report, log = scratch / "report.xml", scratch / "log"
    report.unlink(missing_ok=True)
    name = suite.name.removeprefix("pytensor/").removeprefix(NEWER)
    root, settings = (ROOT, ROOT / "pyproject.toml") if is_ours(suite) else (top, os.devnull)
    command = [str(python), "-m", "pytest", "-c", str(settings), "-q", "-p", "no:cacheprovider"]
    command += ["--tb=short", f"--rootdir={root}", f"--junitxml={report}", str(root / name)]
    command += ["-k", suite.select] if suite.select else []
    command += [] if HAS_THEANO else ["-p", "_through_synk"]
    engine = "THEANO" if HAS_THEANO else "PYTENSOR"
    environment = {
        **{name: value for name, value in os.environ.items() if not name.startswith(engine)},
        # Ours choose their flags.
        **({} if is_ours(suite) else {f"{engine}RC": os.devnull, f"{engine}_FLAGS": flags}),
        "PYTHONPATH": str(top if HAS_THEANO else Path(__file__).parent),
        # One thread: the numbers of the tests are small, and the machine may have other work.
        **dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"), "1"),
    }
    problem = ""
    with log.open("w+", encoding="utf-8", errors="replace") as output:
        # A session, so that it is ended with the compilers that it started.
        how: dict[str, Any] = {"cwd": scratch, "env": environment, "start_new_session": True}
        streams = {"stdin": subprocess.DEVNULL, "stdout": output, "stderr": subprocess.STDOUT}
        process = subprocess.Popen(command, **how, **streams)
        try:
            status = process.wait(timeout=SUITE_LIMIT_S)
            if status not in (0, 1):
                output.seek(0)
                problem = f"pytest ended with {status}: {output.read()[-2000:]}"
        except subprocess.TimeoutExpired:
            problem = f"not finished after {SUITE_LIMIT_S} s"
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
    if not report.exists():
        return Result(0, 0, [], problem or "pytest wrote no report")
    return read_report(report)._replace(problem=problem)


def read_report(report: Path) -> Result:
    """Sort the tests of a JUnit report by what became of them."""
    passed, skipped, failed = 0, 0, []
    # The report was written by our own pytest a moment ago.
    for case in ET.parse(report).getroot().iter("testcase"):  # noqa: S314
        owner = case.get("classname", "").rpartition(".")[2]
        name = f"{owner}::{case.get('name')}"
        tags = {child.tag for child in case}
        if tags & {"failure", "error"}:
            failed.append(name)
        elif "skipped" in tags:
            skipped += 1
        else:
            passed += 1
    return Result(passed, skipped, failed)


def compare(suite: Suite, result: Result) -> list[str]:
    """Return what is worse than it was: nothing if all is well."""
    worse = [f"{suite.label}: {result.problem}"] if result.problem else []
    worse += [
        f"{suite.label}: {name} fails"
        for name in result.failed
        if not any(fnmatch.fnmatchcase(name, pattern) for pattern in suite.failing)
    ]
    if result.passed < suite.passed:
        worse.append(f"{suite.label}: {result.passed} passed, it was {suite.passed}")
    return worse


def main(arguments: list[str]) -> int:
    """Run the suites and print the comparison; return 1 if something is worse than it was."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0] if __doc__ else None)
    parser.add_argument("suites", nargs="*", help="parts of names; all suites if none is given")
    parser.add_argument("--list", action="store_true", help="show the table and stop")
    parser.add_argument("--venv", type=Path, help="run in this environment, made if absent")
    parser.add_argument("--cache", type=Path, help="Theano's base_compiledir; kept if given")
    parser.add_argument("--pytensor", type=Path, help="a checkout of PyTensor")
    parser.add_argument("--quick", action="store_true", help="compile without optimisation (-O0)")
    options = parser.parse_args(arguments)
    suites = [
        suite
        for suite in known_suites()
        if not options.suites or any(part in suite.label for part in options.suites)
    ]
    if not suites:
        print(f"no suite has {options.suites} in its name; --list shows them", file=sys.stderr)
        return 2
    if options.list:
        for suite in suites:
            print(f"{suite.label:<56} {suite.figures}")
        return 0
    if not HAS_THEANO and not options.pytensor:
        print("PyTensor's tests are in a checkout of it: --pytensor FOLDER", file=sys.stderr)
        return 2
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    python = make_environment(options.venv) if options.venv else Path(sys.executable)
    worse: list[str] = []
    print("suite: passed / failed / skipped", flush=True)
    with tempfile.TemporaryDirectory(prefix="foreign-suites-") as folder:
        scratch = Path(folder)
        # Theano's distribution has its tests.
        find = "import importlib.util as u; print(u.find_spec('theano').origin)"
        done = subprocess.check_output([str(python), "-c", find], text=True) if HAS_THEANO else ""
        own = Path(done).parents[1] if HAS_THEANO else options.pytensor.resolve()
        lasagne: dict[str, Path] = {}
        cache = (options.cache or scratch / "cache").resolve()
        quick = "gcc.cxxflags=-O0" if HAS_THEANO else "gcc__cxxflags=-O0,linker=cvm"
        flags = f"base_compiledir={cache}" + (f",{quick}" if options.quick else "")
        flags += "" if HAS_THEANO else ",blas__ldflags="  # or it warns that pip brings no BLAS
        for suite in suites:
            top = own
            if suite.name.startswith("lasagne"):
                release = NEWER_LASAGNE if suite.name.startswith(NEWER) else LASAGNE
                if release not in lasagne:
                    place = scratch / f"lasagne-{len(lasagne)}"
                    lasagne[release] = unpack_lasagne(python, release, place)
                top = lasagne[release]
            own_python = Path(sys.executable) if is_ours(suite) else python
            result = run_suite(suite, own_python, top, flags, scratch)
            found = compare(suite, result)
            verdict = "worse" if found else "ok"
            now = f"{result.passed} / {len(result.failed)} / {result.skipped}"
            print(f"{suite.label:<56} {now:<16} (known {suite.figures:<15}) {verdict}", flush=True)
            worse += found
    print("\n" + ("\n".join(worse) if worse else "nothing is worse than it was"), flush=True)
    return 1 if worse else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
