"""What runs in fresh interpreters: ``python -c START order contender ...``.

The top of this file imports next to nothing, since one of the orders times imports.
"""

from __future__ import annotations

import os
import sys
import time
from typing import Any, Callable

START = "from side_by_side.newcomer import main; main()"
FOLDER = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
READY, GO = "ready", "go"
LIMIT_S = 60

_kept: list[Any] = []  # arrays that are alive when the interpreter ends, like a script's globals


def command(order: str, *arguments: object) -> list[str]:
    """The command line that carries an order out in a fresh interpreter."""
    return [sys.executable, "-c", START, order, *map(str, arguments)]


def environment() -> dict[str, str]:
    """The environment for `command`: this package can be found, here and by grandchildren."""
    path = os.pathsep.join(filter(None, [FOLDER, os.environ.get("PYTHONPATH", "")]))
    return {**os.environ, "PYTHONPATH": path}


def main() -> None:
    """Carry out the order on the command line; dies by itself after a while."""
    import signal

    signal.alarm(LIMIT_S)
    order, *arguments = sys.argv[1:]
    orders: dict[str, Callable[..., None]] = {
        "begin": begin,
        "arrays": arrays,
        "hold": hold,
        "overfill": overfill,
    }
    orders[order](*arguments)


def begin(name: str, *modules: str) -> None:
    """Import, and make the first array: prints seconds for each, and how many helpers run."""
    import importlib

    import numpy as np

    start = time.perf_counter()
    for module in modules:
        importlib.import_module(module)
    imported = time.perf_counter()

    from side_by_side.contenders import make

    np.empty(1).fill(0)
    contender = make(name)
    before = time.perf_counter()
    array, keep = contender.create(128)
    array.fill(1)
    made = time.perf_counter()
    helpers = len(children())
    del array
    contender.destroy(keep)
    contender.close()
    _answer({"import": imported - start, "first": made - before, "helpers": helpers})


def arrays(name: str, descriptors: str, most: str) -> None:
    """Make small arrays until something refuses; prints how many there were, and what it said."""
    import resource

    from side_by_side.contenders import make

    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (int(descriptors), hard))
    contender = make(name)
    held: list[Any] = []
    reason = ""
    try:
        while len(held) < int(most):
            held.append(contender.create(128))
            held[-1][0].fill(1)
    except (OSError, MemoryError, ValueError) as error:
        reason = f"{type(error).__name__}: {error}"
    count = len(held)
    while held:
        array, keep = held.pop()
        del array
        contender.destroy(keep)
        del keep
    contender.close()
    _answer({"count": count, "reason": reason})


def hold(name: str, folder: str, count: str) -> None:
    """Have an array, say so, wait; then end normally without giving it back."""
    from side_by_side.contenders import make

    _kept.append(make(name).hold(int(count), wait_for_go, folder))


def wait_for_go(_array: Any, folder: str) -> None:
    """Say that the array is there, and wait for the file that allows going on."""
    with open(os.path.join(folder, READY), "w", encoding="ascii"):
        pass
    deadline = time.monotonic() + LIMIT_S
    while not os.path.exists(os.path.join(folder, GO)) and time.monotonic() < deadline:
        time.sleep(0.01)


def overfill(name: str, count: str) -> None:
    """Ask for more than there is, and write to it. Prints how that ended, if it can."""
    import resource

    from synk_benchmarks.contender import NotOfferedError

    from side_by_side.contenders import make

    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    contender = make(name)
    try:
        contender.overfill(int(count))
    except NotOfferedError as reason:
        _answer({"skipped": str(reason)})
    except (MemoryError, OSError) as error:
        _answer({"outcome": type(error).__name__})
    else:
        _answer({"outcome": "fits elsewhere"})
    contender.close()


def children() -> list[int]:
    """The processes that this one has started and that still run."""
    own = os.getpid()
    return [pid for pid, (parent, _) in relations().items() if parent == own]


def relations() -> dict[int, tuple[int, int]]:
    """(parent, process group) of every process that can be seen."""
    found = {}
    for entry in os.listdir("/proc"):
        if not entry.isdigit():
            continue
        try:
            with open(f"/proc/{entry}/stat", encoding="utf-8", errors="replace") as file:
                state, parent, group = file.read().rsplit(")", 1)[1].split()[:3]
        except OSError:
            continue  # gone since
        if state != "Z":
            found[int(entry)] = (int(parent), int(group))
    return found


def _answer(content: dict[str, Any]) -> None:
    import json

    sys.stdout.write(json.dumps(content) + "\n")
    sys.stdout.flush()
