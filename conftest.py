"""The settings and fixtures of all tests of this repository, however pytest was started."""

from __future__ import annotations

import atexit
import json
import os
import re
import shutil
import sys
import tempfile
from pathlib import Path
from typing import Any, Iterator

import pytest

from synk_testing import hard_limit, quick_flags, usual_signals

ROOT = Path(__file__).resolve().parent

usual_signals()
# Where tests take longer, or less, a conftest.py below has another of this name.
_limit = hard_limit(300)
# Of this pytest only, not of those that tests start.
REPORT = os.environ.pop("SYNK_TESTS_REPORT", None)
# Tests start hundreds of processes, each of which would compile the packages' source anew.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False
# Each process that imports NumPy would spend a tenth of a second of another core on letting
# OpenBLAS's threads wait for work in a loop; they sleep, after 2**4 turns instead of 2**26.
os.environ.setdefault("OPENBLAS_THREAD_TIMEOUT", "4")
# All tests are of CPU processes, but for those that name their devices.
os.environ.setdefault("SYNKHRONOS_USE_GPU", "0")
# What a program writes does not depend on how long it takes.
os.environ.setdefault("SYNKHRONOS_PROGRESS", "0")
# Graphs are optimised as usual, and computed by Theano's own implementations in Python: the C code
# that it writes is its own affair, and compiling takes longer than the tests. What is ours around
# that code has tests that are marked "c_code"; all others run so too, if all is asked for.
ALL = os.environ.get("SYNK_TESTS") == "all"
# Nor does each variable know the lines that made it, which takes an eighth of the time of a build.
QUICK = ["linker=py", "DebugMode.check_c=False", "traceback.limit=0"]
FLAGS = [*([] if ALL else QUICK), "optimizer_excluding=fusion"]
os.environ.setdefault("THEANO_FLAGS", ",".join(FLAGS))
# PyTensor's own in Python round otherwise, and Numba compiles for seconds, so it is C code there.
# SYNK_LINKER=numba has all tests computed by Numba, as users have it.
LINKER = os.environ.get("SYNK_LINKER", "cvm")
# No BLAS is named, so that each process need not look for one, and warn that pip brings none.
PYTENSOR = f"linker={LINKER},optimizer_excluding=fusion,blas__ldflags="
os.environ.setdefault("PYTENSOR_FLAGS", PYTENSOR)
# What is compiled goes into a cache of this checkout's own; the user's home is left alone. Suites
# that run at the same time each have one, because Theano says on stderr when it waits for another's
# compiler. It is set in a file: tests that have flags of their own have this, too.
ENGINE = "theano" if sys.version_info < (3, 12) else "pytensor"
CACHE = ROOT / "build" / ENGINE / (Path(REPORT).stem if REPORT else "by-hand")
CACHE.mkdir(parents=True, exist_ok=True)
SETTINGS = CACHE / "theanorc"
CXXFLAGS = quick_flags(ROOT / "build" / "headers")
CONTENT = f"[global]\nbase_compiledir = {CACHE}\n[gcc]\ncxxflags = {CXXFLAGS}\n"
# Others may be reading it.
if not SETTINGS.exists() or SETTINGS.read_text(encoding="utf-8") != CONTENT:
    SETTINGS.write_text(CONTENT, encoding="utf-8")
os.environ["THEANORC"] = os.environ["PYTENSORRC"] = str(SETTINGS)
if "XDG_CACHE_HOME" not in os.environ:
    cache_home = str(ROOT / "build" / "cache")
    if not re.fullmatch(r"[\w./+@~=-]+", cache_home, re.ASCII):
        # Theano splits flags at blanks: BLAS would be linked from whatever TMPDIR a test sets.
        cache_home = tempfile.mkdtemp(prefix="synk-cache-", dir="/tmp")
        atexit.register(shutil.rmtree, cache_home, ignore_errors=True)
    os.environ["XDG_CACHE_HOME"] = cache_home


@pytest.fixture(autouse=True)
def linker(request: pytest.FixtureRequest) -> Iterator[None]:
    """Compile C code if a test is marked "c_code", and optimise little if it is "fast_compile"."""
    changes = {}
    if request.node.get_closest_marker("c_code") is not None:
        changes["linker"] = "cvm"
    if request.node.get_closest_marker("fast_compile") is not None and not ALL:
        changes["optimizer"] = "fast_compile"
    if not changes:
        yield
        return
    from synk_testing.engine import engine

    with pytest.MonkeyPatch.context() as patch:
        for name, value in changes.items():
            patch.setattr(engine.config, name, value)
        # Theano keeps the mode that it has made of the settings.
        patch.setattr(engine.compile.mode, "instantiated_default_mode", None, raising=False)
        yield


def _report(**event: Any) -> None:
    """Report to `scripts/run_tests.py` what happens, one JSON object a line."""
    if REPORT:
        with open(REPORT, "a", encoding="utf-8") as file:
            file.write(json.dumps(event) + "\n")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave what is marked "nightly" to nightly runs, unless somebody asks for it by name."""
    by_hand = REPORT is None
    if ALL or (by_hand and any("::" in argument for argument in config.args)):
        return
    left = [item for item in items if item.get_closest_marker("nightly")]
    config.hook.pytest_deselected(items=left)
    items[:] = [item for item in items if item not in left]


def pytest_collection_finish(session: pytest.Session) -> None:
    """Report how many tests there are."""
    _report(collected=len(session.items))


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Report each phase of a test."""
    _report(id=report.nodeid, when=report.when, outcome=report.outcome)


def pytest_collectreport(report: pytest.CollectReport) -> None:
    """Report a file that could not be collected."""
    if report.failed:
        _report(id=report.nodeid, when="collect", outcome="failed")
