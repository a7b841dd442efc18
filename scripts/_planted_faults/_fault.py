"""What a fault is, as the table tells it."""

from __future__ import annotations

from typing import NamedTuple

KINDS = ("plans", "reductions", "life cycles", "refusals", "error paths", "atomicity", "linking")


class Fault(NamedTuple):
    """One fault: a text of a file, and what is put in its place.

    Attributes:
        name: short, the same for ever.
        package: the folder in ``packages``.
        kind: one of ``KINDS``.
        file: from the root.
        old: what the file has, exactly once.
        new: what it has with the fault.
        says: what is wrong now.
        tests: what to run after editing that file: arguments of pytest, paths from the root.
        known_missed: why no test catches it; empty if one has to.
    """

    name: str
    package: str
    kind: str
    file: str
    old: str
    new: str
    says: str
    tests: tuple[str, ...]
    known_missed: str = ""
