"""One device set per process: Theano cannot let go of a device once it has initialized it.

Without its name in the environment, by `run.py`, the cases are not collected.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import pytest

from synk_testing import hard_limit, usual_signals

HERE = Path(__file__).parent
# Helpers, whose names begin with "_", are imported by name.
sys.path.insert(0, str(HERE))
# Its programs are interrupted, wherever this was started.
usual_signals()

NAME = os.environ.get("SYNK_DEVICE_SET")
RECORD = os.environ.get("SYNK_DEVICE_RECORD")
LIMIT_S = float(os.environ.get("SYNK_DEVICE_TEST_LIMIT_S", "180"))

if NAME is None:
    collect_ignore = ["cases", "failures"]


def _write(**entry: Any) -> None:
    """Add a line to the record: what was done is known even if this process then dies."""
    if RECORD:
        with open(RECORD, "a", encoding="utf-8") as record:
            record.write(json.dumps(entry) + "\n")


if NAME is not None:

    def pytest_collection_modifyitems(config: Any, items: list[Any]) -> None:
        """Leave out what an earlier process has done."""
        done = set()
        if RECORD and Path(RECORD).exists():
            lines = Path(RECORD).read_text(encoding="utf-8").splitlines()
            done = {json.loads(line)["test"] for line in lines}
        config.hook.pytest_deselected(items=[item for item in items if item.nodeid in done])
        items[:] = [item for item in items if item.nodeid not in done]

    def pytest_runtest_logstart(nodeid: str, location: Any) -> None:
        _write(test=nodeid, event="start")

    def pytest_runtest_logreport(report: Any) -> None:
        if report.when == "call" or report.outcome != "passed":
            longrepr = report.longrepr
            if report.skipped and isinstance(longrepr, tuple):
                longrepr = longrepr[2]
            _write(
                test=report.nodeid,
                event="report",
                when=report.when,
                outcome=report.outcome,
                seconds=report.duration,
                text="" if longrepr is None else str(longrepr),
                output=report.capstderr[-4000:] if report.failed else "",
            )

    # What waits where no signal comes through, such as for a device, ends this process.
    _limit = hard_limit(LIMIT_S, last_resort=True)

    @pytest.fixture(scope="session")
    def device_set() -> Any:
        from _sets import SETS

        return SETS[NAME]
