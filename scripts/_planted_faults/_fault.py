"""What a fault is."""

from __future__ import annotations

from typing import Callable, NamedTuple

KINDS = (
    *("plans", "reductions", "life cycles", "refusals", "error paths", "atomicity"),
    *("linking", "graphs", "exactness"),
)


class Fault(NamedTuple):
    """One fault: a text that a file has exactly once, and what is put in its place.

    Paths are from the root, `tests` are arguments of pytest: what to run after editing that file.
    Tests of every day have to catch it, unless `nightly` says why those of the night are enough.
    """

    name: str
    package: str
    kind: str
    file: str
    old: str
    new: str
    says: str
    tests: tuple[str, ...]
    nightly: str = ""


def faults_of(package: str, source: str = "", test: str = "test_{}.py") -> Callable[..., Fault]:
    """Return a function that makes the faults of a package, from the attributes of `Fault` in
    order.

    The file is below `source`; `tests` is one text, in which each word is the part of a file's name
    that `test` lacks, after its folder, and another package's name and a colon, and before
    "::test".
    """

    def fault(
        name: str,
        kind: str,
        file: str,
        old: str,
        new: str,
        says: str,
        tests: str,
        nightly: str = "",
    ) -> Fault:
        paths = []
        for one in tests.split():
            place, *single = one.split("::")
            other, _, part = place.rpartition(":")
            folder, slash, part = part.rpartition("/")
            file_of_tests = f"packages/{other or package}/tests/{folder}{slash}{test.format(part)}"
            paths.append("::".join([file_of_tests, *single]))
        place = f"packages/{package}/src/{source}{file}"
        return Fault(name, package, kind, place, old, new, says, tuple(paths), nightly)

    return fault
