"""The contract as functions of one communicator, to be run on all ranks at the same time.

Expected values come from NumPy, on data that every rank can make for all ranks. The ranks may be
processes of one job, which no test has started.
"""

from __future__ import annotations

import traceback
from typing import Callable, Sequence

from synk_comm.abc import Communicator
from synk_comm.exceptions import CommError

from ._checks_again import AGAIN
from ._checks_ends import ENDS
from ._checks_errors import ERRORS
from ._checks_groups import GROUPS
from ._checks_letters import LETTERS
from ._checks_move import MOVE
from ._checks_nonblocking import NONBLOCKING
from ._checks_reduce import REDUCE
from ._checks_requests import REQUESTS
from ._checks_tools import Check

Make = Callable[[], Communicator]

THEMES: dict[str, list[Check]] = {
    "reductions": REDUCE,
    "moves": MOVE,
    "letters": LETTERS,
    "requests": REQUESTS,
    "nonblocking": NONBLOCKING,
    "groups": GROUPS,
    "errors": ERRORS,
    "again": AGAIN,
}
CHECKS: list[Check] = [check for checks in THEMES.values() for check in checks]


def check_all(comm: Communicator) -> None:
    """Run every check, one after the other."""
    for check in CHECKS:
        check(comm)


def check_job(make: Make, themes: Sequence[str] = ()) -> list[str]:
    """Run the checks of the contract in a group of processes; every rank calls it.

    ``mpiexec -n 4 python -m synk_comm.testing mpi`` does so for a back-end's name.

    Args:
        make: a new group of all ranks; called again when a check has ended the last one.
        themes: of ``THEMES``, and ``"ends"``: how a group ends; all if empty.

    Returns:
        What failed on this rank, or, if it only failed on others, where; in words.
    """
    failures: list[str] = []
    comm = make()
    for theme in [theme for theme in themes or [*THEMES, "ends"] if theme != "ends"]:
        for check in THEMES[theme]:
            said = _failed(comm, check)
            if said:
                failures.append(f"{theme}, {check.__name__}: {said}")
                comm.close()
                comm = make()
    if comm.size > 1 and "ends" in (themes or ["ends"]):
        for end in ENDS:
            said = ""
            try:
                end(comm)
            except Exception:  # noqa: BLE001 - the other checks are of interest, too
                said = traceback.format_exc(limit=-4)
                comm.abort(f"{end.__name__} failed")
            comm.close()
            comm = make()
            everyone = comm.all_gather_object(said)
            if any(everyone):
                failures.append(f"ends, {end.__name__}: {said or next(filter(None, everyone))}")
    comm.close()
    return failures


def _failed(comm: Communicator, check: Check) -> str:
    """Run one check; return what failed, here or on another rank, which all ranks then know."""
    said = ""
    try:
        check(comm)
        if comm.all_reduce(1).item() != comm.size:
            said = "the group is out of step after it"
    except Exception as exc:  # noqa: BLE001 - the other checks are of interest, too
        said = traceback.format_exc(limit=-4)
        comm.abort(f"{check.__name__} failed: {exc}")
    try:
        everyone = comm.all_gather_object(said)
    except CommError as exc:
        return said or f"{type(exc).__name__}: {exc}"
    return said or next(filter(None, everyone), "")
