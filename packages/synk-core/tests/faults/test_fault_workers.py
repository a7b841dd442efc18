"""A worker fails, in every state and way: the right error, in time, nothing half done or left."""

from __future__ import annotations

import itertools

import pytest
from _fault_case import Struck
from _fault_tables import CHOSEN, CLASSES, DEADLY, ERRORS, FAULTS, STATES, cases


@pytest.mark.parametrize("setting, state, fault", cases("worker"))
def test_a_worker(hosts, figures, setting, state, fault):
    struck = Struck(hosts, figures, setting, state, fault)
    if fault.name in ERRORS:
        struck.expect_failure()
    elif fault.name in DEADLY:
        struck.expect_death()
    elif fault.name == "SIGSTOP":
        struck.expect_stall()
    else:
        struck.expect_lateness()


def test_the_choice_has_every_state_and_every_fault():
    assert {state for state, _ in CHOSEN} == {state.name for state in STATES}
    assert {fault for _, fault in CHOSEN} == {fault.name for fault in FAULTS}
    assert sorted(itertools.chain(*CLASSES)) == sorted(fault.name for fault in FAULTS)
