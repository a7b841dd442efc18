"""The contract as functions of one communicator, to be run on all ranks at the same time.

Expected values come from NumPy, on data that every rank can make for all ranks.
"""

from __future__ import annotations

from synk_comm.abc import Communicator

from ._checks_again import AGAIN
from ._checks_errors import ERRORS
from ._checks_groups import GROUPS
from ._checks_letters import LETTERS
from ._checks_move import MOVE
from ._checks_nonblocking import NONBLOCKING
from ._checks_reduce import REDUCE
from ._checks_requests import REQUESTS
from ._checks_tools import Check

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
