"""Random programs of shared arrays; see driver.py, which also runs a single one again.

With SYNK_SHM_STRESS_SECONDS=600 the programs with fresh seeds go on for ten minutes.
"""

from __future__ import annotations

import os
import re
import secrets
import sys
from pathlib import Path

import pytest

from synk_testing import Program

DRIVER = Path(__file__).with_name("driver.py")
ALL = os.environ.get("SYNK_TESTS") == "all"
SECONDS = float(os.environ.get("SYNK_SHM_STRESS_SECONDS", "0"))
TIMEOUT_S = 300

FAILED_ONCE = 806558527
"""A seed: a child sends its last message and leaves together with a parent that has no arrays."""

FOUND = re.findall(r"^@kept\ndef (\w+)", DRIVER.with_name("found.py").read_text(), re.M)

pytestmark = pytest.mark.skipif(
    not (sys.platform == "linux" and hasattr(os, "pidfd_open")),
    reason="watches processes and shared memory through Linux's /proc, /dev/shm and pidfds",
)


def start(*arguments: object) -> Program:
    options = ("-W", "error")
    return Program(DRIVER, *arguments, options=options, stacks=False, limit_s=TIMEOUT_S + SECONDS)


def finish(program: Program) -> tuple[int, str]:
    with program:
        status, out, err = program.finish()
    print(out, err)
    return status, out + err


def test_programs() -> None:
    """Programs with fixed seeds, and some with fresh seeds."""
    same, other = (50, 20) if ALL else (6, 3)
    fresh = secrets.randbelow(1 << 31)
    more = ("--seconds", SECONDS) if SECONDS else ("--count", other)
    running = [
        start("--seed", 1, "--count", same),
        start("--seed", 51, "--count", same),
        start("--seed", FAILED_ONCE),
        start("--seed", fresh, *more),
    ]
    results = [finish(program) for program in running]
    assert [code for code, _ in results] == [0] * len(running)
    assert sum(int(re.findall(r"(\d+) programs", text)[-1]) for _, text in results) >= 2 * same


def test_programs_among_others() -> None:
    """In the system's /dev/shm, where other programs have segments, and clean up."""
    code, _ = finish(start("--common", "--seed", 1000, "--count", 6 if ALL else 3))
    assert code == 0


@pytest.mark.parametrize("third", range(3))
def test_programs_that_failed_once(third: int) -> None:
    """One after the other; a report names the program, to run it again."""
    names = FOUND[third::3]
    assert names
    code, text = finish(start("--keep-going", "--found", *names))
    assert code == 0
    assert f" {len(names)} programs" in text


def test_a_seed_is_a_program() -> None:
    first, second = (start("--seed", 4, "--verbose") for _ in range(2))
    steps = [re.findall(r"^ *\d+  .*?(?=  -> |$)", finish(one)[1], re.M) for one in (first, second)]
    assert len(steps[0]) > 20
    assert steps[0] == steps[1]


@pytest.mark.parametrize(
    ("kind", "report"),
    [
        ("stray_link", "has an unknown name"),
        ("wrong_value", "the values are"),
        ("stray_process", "processes are left"),
        ("stray_descriptor", "these files open"),
        ("noise", "lines on stderr are left"),
        ("hang", "did not answer in 1.0 s"),
        ("crash", "died, exit code -11"),
    ],
)
def test_faults_are_reported(kind: str, report: str) -> None:
    """A process commits a fault. The report names it, and how to run the program again."""
    code, text = finish(start("--seed", 3, "--limit", 1, "--sabotage", kind))
    assert code == 1
    assert report in text
    assert f"commits a fault: {kind}" in text
    assert re.search(r"^ +1  p1\.root\(", text, re.M), "the whole program"
    assert "--seed 3 --verbose" in text
    assert "1 failed" in text


@pytest.mark.nightly
def test_a_failing_program_is_made_shorter() -> None:
    _, text = finish(start("--seed", 3, "--limit", 5, "--sabotage", "noise", "--shrink"))
    longer, shorter = (int(n) for n in re.findall(r"^seed 3, (\d+) steps", text, re.M))
    assert shorter < longer
