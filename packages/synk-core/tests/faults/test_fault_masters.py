"""The master fails, or is ended from outside, while a worker is in any state."""

from __future__ import annotations

import pytest
from _fault_case import Struck
from _fault_tables import cases


@pytest.mark.parametrize("setting, state, fault", cases("master"))
def test_an_exception(hosts, setting, state, fault):
    Struck(hosts, setting, state, fault).expect_own_failure()


@pytest.mark.parametrize("setting, state, fault", cases("ctrl-c"))
def test_ctrl_c(hosts, setting, state, fault):
    Struck(hosts, setting, state, fault).expect_interrupt()


@pytest.mark.parametrize("setting, state, fault", cases("parent"))
def test_an_end(hosts, setting, state, fault):
    Struck(hosts, setting, state, fault)
