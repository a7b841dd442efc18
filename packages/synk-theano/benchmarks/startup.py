"""What the hook costs a Python that never imports Theano: start-up with and without it.

    python benchmarks/startup.py [--runs 200]

Starts this interpreter in turn in three ways, with nothing else in between: without any .pth file
(-S, and the folder added by hand), with a .pth that is switched off, and with the hook. Prints the
medians, the difference, and its spread; and the cost of one import that is not Theano's.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
import timeit
from pathlib import Path

import synk_theano_compat
from synk_theano_compat import _hook

SITE = Path(synk_theano_compat.__file__).parent.parent


def started(code: str, switch: str) -> float:
    """Return the milliseconds that a fresh interpreter takes for ``code``."""
    environment = {**os.environ, "SYNK_THEANO_COMPAT": switch}
    start = time.perf_counter()
    subprocess.run([sys.executable, "-S", "-E", "-c", code], env=environment, check=True)
    return (time.perf_counter() - start) * 1e3


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--runs", type=int, default=200)
    runs = parser.parse_args().runs
    with tempfile.TemporaryDirectory() as empty:
        read = "import site, sys; sys.path.append({0!r}); site.addsitedir({0!r})"
        ways = {
            "no .pth": (read.format(empty), "0"),
            "switched off": (read.format(str(SITE)), "0"),
            "active": (read.format(str(SITE)), "1"),
        }
        for way in ways.values():
            started(*way)
        taken: dict[str, list[float]] = {name: [] for name in ways}
        for _ in range(runs):
            for name, way in ways.items():
                taken[name].append(started(*way))
    base = statistics.median(taken["no .pth"])
    for name, values in taken.items():
        low, middle, high = statistics.quantiles(values, n=4)
        spread = f"(least {min(values):.2f}, quartiles {low:.2f}, {high:.2f})"
        sys.stdout.write(f"{name:13} {middle:7.2f} ms  {spread}  {middle - base:+.2f}\n")
    finder = _hook.Finder()
    seconds = min(timeit.repeat(lambda: finder.find_spec("numpy.linalg"), number=100_000)) / 100_000
    sys.stdout.write(f"each import that is not Theano's: {seconds * 1e9:.0f} ns\n")


if __name__ == "__main__":
    main()
