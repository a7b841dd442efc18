"""The program for PyMC's users runs, and proves what it says."""

from __future__ import annotations

import re

import pytest
from _programs import EXAMPLES, start

pytest.importorskip("pymc", reason="needs PyMC 6, on Python 3.12 or newer")

pytestmark = pytest.mark.skipif(
    not EXAMPLES.is_dir(), reason="the examples belong to the repository"
)


def test_ranks_find_pymcs_results():
    options = ("--processes", "2", "--rows", "2001", "--draws", "20")
    status, out, err = start("pymc_regression.py", *options)
    assert status == 0, f"{out}\n{err}"
    assert "Traceback" not in err
    for what in ("maximum", "first ten draws"):
        (difference,) = re.findall(rf"{what}: largest difference from PyMC alone (\S+)", out)
        assert 0 <= float(difference) <= 1e-6
    (plain, ours) = re.findall(r"evaluation: (\S+) ms by PyMC, (\S+) ms on 2 ranks", out)[0]
    assert ("It does not pay here" in out) == (float(ours) > float(plain))
    assert out.endswith("\nAll assertions passed.\n")
