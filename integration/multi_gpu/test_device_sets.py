"""The tests of the whole API on each device set of this machine, in processes of their own."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
from _checkout import ran

HERE = Path(__file__).resolve().parent
LIMIT_S = 280

# At night, because on CPU processes the packages' own tests say the same; and of OpenCL a part,
# because kernels of an empty cache take minutes. Others are the business of `run.py`, on a machine
# that has them.
SETS = {"cpu-2": "", "opencl-2": "test_aliases or test_shared"}


@pytest.mark.nightly
@pytest.mark.parametrize("name", SETS)
def test_the_whole_api_on(name: str, tmp_path: Path) -> None:
    answer = tmp_path / "answer.json"
    options = ("--parts", "cases", "-k", SETS[name], "--limit", LIMIT_S - 30)
    command = (sys.executable, HERE / "run.py", "--sets", name, "--json", answer, *options)
    done = ran(*command, timeout=LIMIT_S)
    parts = json.loads(answer.read_text(encoding="utf-8")) if answer.exists() else []
    if parts and all(part["reason"] for part in parts):
        pytest.skip(parts[0]["reason"])
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    passed = [r for part in parts for r in part["results"] if r["outcome"] == "passed"]
    assert len(passed) > (80 if not SETS[name] else 10), done.stdout
