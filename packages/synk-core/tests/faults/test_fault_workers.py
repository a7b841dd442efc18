"""A worker fails, in every state and way: the right error, in time, nothing half done or left."""

from __future__ import annotations

import pytest
from _fault_case import Struck
from _fault_tables import DEADLY, ERRORS, cases


@pytest.mark.parametrize("setting, state, fault", cases("worker"))
def test_a_worker(hosts, setting, state, fault):
    struck = Struck(hosts, setting, state, fault)
    if fault.name in ERRORS:
        struck.expect_failure()
    elif fault.name in DEADLY:
        struck.expect_death()
    elif fault.name == "SIGSTOP":
        struck.expect_stall()
    else:
        struck.expect_lateness()
