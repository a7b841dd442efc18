"""Some random kill -9 and Ctrl-C: ranks say so at once, leave nothing, and do no call by half."""

from __future__ import annotations

import json
import os
import random
import sys
from pathlib import Path

import pytest
from _checkout import ran

from synk_core import Runtime

sys.path.insert(0, str(Path(__file__).parent))

import _victim
import kill_trials

TRIALS = 4 if os.environ.get("SYNK_TESTS") == "all" else 2
LIMIT_S = 280


@pytest.mark.slow
def test_some_random_kills(tmp_path: Path) -> None:
    path = tmp_path / "trials.json"
    program = (kill_trials.__file__, "--trials", TRIALS, "--interrupts", TRIALS, "--json", path)
    done = ran(sys.executable, *program, timeout=LIMIT_S)
    assert done.returncode == 0, done.stdout + done.stderr
    told = json.loads(path.read_text(encoding="utf-8"))["summary"]
    assert told["trials"] == 2 * TRIALS
    assert told["interrupted"]["trials"] == TRIALS
    assert told["wrong"] == 0
    assert told["leaks"] == dict.fromkeys(kill_trials.LEAKS, 0)


def test_a_call_that_happened_on_some_ranks_only_is_noticed() -> None:
    with Runtime(2, use_gpu=False) as runtime:
        doing = _victim.Work(runtime, random.Random(5))
        for state in (*_victim.ACTS, "mixed"):
            doing.do(state)
            assert doing.wrong() == ""
        doing.do("updating")
        doing.is_done = False
        assert "expected {'before'}" in doing.wrong(within=True)
        assert doing.wrong() == ""
        doing.bench.w.set_value(doing.bench.w.get_value() + 1)
        assert "neither" in doing.wrong(), "the master has another value"
