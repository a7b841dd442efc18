"""The process of one rank of ``testing.run_ranks``: ``python -m synk_comm._run_rank``.

A job comes through standard input, its outcome goes back through a pipe; both are pickles
between a parent and its own child.
"""

from __future__ import annotations

import faulthandler
import importlib
import importlib.util
import os
import pickle
import sys
import traceback
from typing import Any, NamedTuple

from synk_comm import join


class Job(NamedTuple):
    """What a rank is to do: call ``function(comm, *args)`` of a module or file."""

    ticket: str
    module: str
    path: str
    function: str
    args: tuple[Any, ...]
    timeout_s: float
    outcome_fd: int


def load(job: Job) -> Any:
    """Return the job's function; test modules are often not importable by name."""
    try:
        module = importlib.import_module(job.module)
    except ImportError:
        spec = importlib.util.spec_from_file_location(job.module, job.path)
        if spec is None or spec.loader is None:
            raise
        module = importlib.util.module_from_spec(spec)
        sys.modules[job.module] = module
        spec.loader.exec_module(module)
    found: Any = module
    for name in job.function.split("."):
        found = getattr(found, name)
    return found


def main() -> None:
    """Run the job; whatever it raises is its outcome."""
    job = Job(*pickle.load(sys.stdin.buffer))  # noqa: S301 - from the parent of this process
    faulthandler.dump_traceback_later(job.timeout_s, exit=True)
    parent = os.getppid()

    def watch() -> None:
        if os.getppid() != parent:
            raise SystemExit("the parent has gone")

    value, failure = None, ""
    try:
        function = load(job)
        with join(job.ticket, timeout_s=job.timeout_s, watch=watch) as comm:
            value = function(comm, *job.args)
    except BaseException:  # noqa: BLE001 - a KeyboardInterrupt is an outcome too
        failure = traceback.format_exc()
    with open(job.outcome_fd, "wb") as pipe:
        pickle.dump((value, failure), pipe)


if __name__ == "__main__":
    main()
