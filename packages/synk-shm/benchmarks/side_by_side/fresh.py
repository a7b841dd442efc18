"""What a fresh process costs: imports, the first array, helpers, and how many it can have."""

from __future__ import annotations

import json
import subprocess
import tempfile
from typing import Any

from .contender import Contender, NotOfferedError
from .newcomer import LIMIT_S, command, environment
from .results import COUNT, Cell, Row
from .rounds import Bench, Parts, counts, rows, take_turns

DESCRIPTORS = 1024
MOST_ARRAYS = 5000


def imports(bench: Bench) -> list[Row]:
    """What an import adds to NumPy's, and what the first array of a process adds to that."""

    folder = tempfile.TemporaryDirectory(prefix="side-by-side.")
    variables = environment()
    if variables.pop("PYTHONDONTWRITEBYTECODE", ""):
        # Installed packages are compiled; let the round that does not count do it for all.
        variables["PYTHONPYCACHEPREFIX"] = folder.name

    def measure(contender: Contender) -> Parts:
        if not contender.modules:
            raise NotOfferedError("nothing to import")
        parts: Parts = _ask("begin", contender.name, *contender.modules, variables=variables)
        return parts

    rounds = 3 if bench.quick else 9
    with folder:
        cells = take_turns(bench, "import", rounds, measure)
    titles = {
        "import": ("import/time", "import, over NumPy's"),
        "first": ("import/first", "first array after that"),
    }
    helpers = {"helpers": ("import/helpers", "helper processes then")}
    return rows(bench, cells, titles) + rows(bench, cells, helpers, COUNT)


def arrays(bench: Bench) -> list[Row]:
    """How many arrays of 1 KB one process can have at once with 1024 file descriptors."""
    cells: dict[str, Cell] = {}
    for contender in bench.contenders:
        bench.say(f"arrays at {DESCRIPTORS} descriptors: {contender.name}")
        try:
            found = _ask("arrays", contender.name, DESCRIPTORS, MOST_ARRAYS)
        except (RuntimeError, subprocess.TimeoutExpired) as error:
            cells[contender.name] = Cell(note=f"failed: {error}")
        else:
            full = found["count"] >= MOST_ARRAYS
            cells[contender.name] = Cell((found["count"],), found["reason"], at_least=full)
    label = f"arrays at ulimit -n {DESCRIPTORS}"
    return [counts(bench, "arrays/1024", label, cells, more_is_better=True)]


def _ask(order: str, *arguments: object, variables: dict[str, str] | None = None) -> Any:
    """What a fresh interpreter answers to an order."""
    done = subprocess.run(
        command(order, *arguments),
        env=variables or environment(),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=LIMIT_S + 10,
        check=False,
    )
    if done.returncode != 0:
        raise RuntimeError(done.stderr.strip()[-300:] or f"ended with {done.returncode}")
    return json.loads(done.stdout)
