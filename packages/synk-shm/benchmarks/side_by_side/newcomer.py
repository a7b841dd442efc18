"""Code for fresh interpreters: ``python -c START order contender ...``.

The top of this file imports almost nothing, because one of the orders times imports.
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

_kept: list[Any] = []  # arrays alive at the end of the interpreter, like a script's globals


def command(order: str, *arguments: object) -> list[str]:
    """Return the command line that runs an order in a fresh interpreter."""
    return [sys.executable, "-c", START, order, *map(str, arguments)]


def environment() -> dict[str, str]:
    """Return the environment for `command`, in which this package can be imported."""
    path = os.pathsep.join(filter(None, [FOLDER, os.environ.get("PYTHONPATH", "")]))
    return {**os.environ, "PYTHONPATH": path}


def main() -> None:
    """Run the order on the command line, for `LIMIT_S` seconds at most."""
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
    """Import, make the first array; print the seconds of each, and the number of helpers."""
    import importlib

    import numpy as np

    start = time.perf_counter()
    for module in modules:
        importlib.import_module(module)
    imported = time.perf_counter()

    from side_by_side.contenders import CONTENDERS

    np.empty(1).fill(0)
    contender = CONTENDERS[name]()
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
    """Make small arrays until one fails; print their number and the error."""
    import resource

    from side_by_side.contenders import CONTENDERS

    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (int(descriptors), hard))
    contender = CONTENDERS[name]()
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
    """Make an array, wait, and exit normally without freeing it."""
    from side_by_side.contenders import CONTENDERS

    _kept.append(CONTENDERS[name]().hold(int(count), wait_for_go, folder))


def wait_for_go(_array: Any, folder: str) -> None:
    """Report that the array is made, and wait for the file that ends the wait."""
    with open(os.path.join(folder, READY), "w", encoding="ascii"):
        pass
    deadline = time.monotonic() + LIMIT_S
    while not os.path.exists(os.path.join(folder, GO)) and time.monotonic() < deadline:
        time.sleep(0.01)


def overfill(name: str, count: str) -> None:
    """Make an array larger than the free memory, write to it, and print the outcome."""
    import resource

    from synk_benchmarks.contender import NotOfferedError

    from side_by_side.contenders import CONTENDERS

    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    contender = CONTENDERS[name]()
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
    """Return the running processes that this one has started."""
    own = os.getpid()
    return [pid for pid, (parent, _) in relations().items() if parent == own]


def relations() -> dict[int, tuple[int, int]]:
    """Return (parent, process group) of every visible process."""
    found = {}
    for entry in os.listdir("/proc"):
        if not entry.isdigit():
            continue
        try:
            with open(f"/proc/{entry}/stat", encoding="utf-8", errors="replace") as file:
                state, parent, group = file.read().rsplit(")", 1)[1].split()[:3]
        except OSError:
            continue  # it has ended since
        if state != "Z":
            found[int(entry)] = (int(parent), int(group))
    return found


def _answer(content: dict[str, Any]) -> None:
    import json

    sys.stdout.write(json.dumps(content) + "\n")
    sys.stdout.flush()
