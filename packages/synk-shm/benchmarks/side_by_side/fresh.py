"""Measure fresh processes: imports, the first array, helpers, the largest number of arrays."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from synk_benchmarks import process
from synk_benchmarks.contender import FAILED, NotOfferedError
from synk_benchmarks.results import COUNT, Cell, Row

from .bench import Bench, Parts, counts, rows
from .contender import Contender
from .newcomer import LIMIT_S, command, environment

DESCRIPTORS = 1024
MOST_ARRAYS = 5000


def imports(bench: Bench) -> list[Row]:
    """Measure what an import adds to NumPy's, and the first array of a process to that."""

    def measure(contender: Contender) -> Parts:
        if not contender.modules:
            raise NotOfferedError("nothing to import")
        parts: Parts = _ask(variables, "begin", contender.name, *contender.modules)
        return parts

    rounds = 3 if bench.quick else 9
    with process.environment_for_imports(environment()) as variables:
        cells = bench.take_turns("import", rounds, measure)
    titles = {
        "import": ("import/time", "import, over NumPy's"),
        "first": ("import/first", "first array after that"),
    }
    helpers = {"helpers": ("import/helpers", "helper processes then")}
    return rows(bench, cells, titles) + rows(bench, cells, helpers, COUNT)


def arrays(bench: Bench) -> list[Row]:
    """Count the arrays of 1 KB that one process can have with 1024 file descriptors."""
    cells: dict[str, Cell] = {}
    for contender in bench.contenders:
        bench.say(f"arrays at {DESCRIPTORS} descriptors: {contender.name}")
        try:
            found = _ask(environment(), "arrays", contender.name, DESCRIPTORS, MOST_ARRAYS)
        except process.Failed as error:
            cells[contender.name] = Cell(note=f"{FAILED}{error}")
        else:
            full = found["count"] >= MOST_ARRAYS
            cells[contender.name] = Cell((found["count"],), found["reason"], at_least=full)
    label = f"arrays at ulimit -n {DESCRIPTORS}"
    return [counts(bench, "arrays/1024", label, cells, more_is_better=True)]


def _ask(variables: Mapping[str, str], order: str, *arguments: object) -> Any:
    """Return the answer of a fresh interpreter to an order."""
    return json.loads(process.ask(command(order, *arguments), LIMIT_S + 10, variables))
