"""All checks by theme, run on threads of this process, or on a job's ranks."""

from __future__ import annotations

import traceback

from synk_comm import CommError
from synk_comm.testing import in_threads

from .again import AGAIN
from .ends import ENDS
from .errors import ERRORS
from .groups import GROUPS
from .letters import LETTERS
from .move import MOVE
from .nonblocking import NONBLOCKING
from .reduce import REDUCE
from .requests import REQUESTS

THEMES = {
    "reductions": REDUCE,
    "moves": MOVE,
    "letters": LETTERS,
    "requests": REQUESTS,
    "nonblocking": NONBLOCKING,
    "groups": GROUPS,
    "errors": ERRORS,
    "again": AGAIN,
}


def check_all(comm):
    for checks in THEMES.values():
        for check in checks:
            check(comm)


def check_theme(make_group, theme, size):
    """Run the checks of a theme in threads; each gets the group that the last one has left.

    Each of "ends" gets a group of its own. `make_group` returns communicators in rank order.
    """
    failures = []
    comms = make_group(size)
    try:
        for check in ENDS if theme == "ends" else THEMES[theme]:
            try:
                in_all(comms, check)
                if theme != "ends":
                    assert in_threads(comms, lambda comm: comm.all_reduce(1)) == [size] * size
                    continue
            except Exception:
                failures.append(f"{check.__name__}: {traceback.format_exc(limit=-4)}")
            for comm in comms:
                comm.close()
            comms = make_group(size)
    finally:
        for comm in comms:
            comm.close()
    assert not failures, "\n\n".join(failures)


def in_all(comms, function):
    """Return what a function returns on each rank, in threads; raise what went wrong first."""
    errors = []

    def run(comm):
        try:
            return function(comm)
        except Exception as exc:
            errors.append(exc)
            comm.abort(f"{type(exc).__name__}: {exc}")  # nobody waits for the others

    results = in_threads(comms, run, timeout_s=200)
    if errors:
        raise errors[0]
    return results


def check_job(make, themes):
    """Run the checks of some themes on all ranks; return what failed, here or elsewhere."""
    failures = []
    comm = make()
    for theme in themes:
        for check in ENDS if theme == "ends" else THEMES[theme]:
            said = ""
            try:
                check(comm)
            except Exception as exc:
                said = traceback.format_exc(limit=-4)
                comm.abort(f"{check.__name__} failed: {exc}")
            try:
                everyone = [said] if theme == "ends" else comm.all_gather_object(said)
            except CommError as exc:
                everyone = [said or f"{type(exc).__name__}: {exc}"]
            if theme == "ends" or any(everyone):
                comm.close()
                comm = make()
            if theme == "ends":
                everyone = comm.all_gather_object(said)
            if any(everyone):
                failures.append(f"{theme}, {check.__name__}: {next(filter(None, everyone))}")
    comm.close()
    return failures
