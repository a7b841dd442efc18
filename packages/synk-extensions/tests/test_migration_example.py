"""A script becomes parallel by the documented lines, and its losses stay what they were."""

from __future__ import annotations

import difflib
import importlib.util
import re

import pytest
from _programs import EXAMPLES, run

FOLDER = EXAMPLES / "migration"
NEW_LINES = 3  # beside imports

pytestmark = [
    pytest.mark.skipif(not EXAMPLES.is_dir(), reason="the examples belong to the repository"),
    pytest.mark.skipif(
        importlib.util.find_spec("sklearn") is None, reason="the example needs scikit-learn"
    ),
]
# In the order of the page.
PROGRAMS = [("train_plain.py", "train_synk.py"), ("pytensor_plain.py", "pytensor_synk.py")]
NEEDS = ["lasagne", "pytensor"]


def code(name):
    """The lines of a program after its docstring."""
    _, _, rest = (FOLDER / name).read_text(encoding="utf-8").split('"""', 2)
    return rest.splitlines()


@pytest.mark.parametrize("pair", [0, 1], ids=NEEDS)
def test_the_programs_differ_in_the_documented_lines(pair):
    lines = difflib.unified_diff(*map(code, PROGRAMS[pair]), n=0, lineterm="")
    changed = [line for line in lines if not line.startswith(("---", "+++", "@@"))]
    readme = (FOLDER / "README.md").read_text(encoding="utf-8")
    shown = re.findall(r"^```diff\n(.*?)^```", readme, flags=re.MULTILINE | re.DOTALL)[pair]
    assert [line for line in shown.splitlines() if not line.startswith("@@")] == changed
    added = [line[1:].strip() for line in changed if line.startswith("+")]
    assert len([line for line in added if not line.startswith(("import", "from"))]) == NEW_LINES


def losses(printed):
    return [float(loss) for loss in re.findall(r"loss: +([\d.]+)", printed)]


@pytest.mark.parametrize("pair", [0, 1], ids=NEEDS)
def test_both_print_the_same_losses(pair):
    if importlib.util.find_spec(NEEDS[pair]) is None:
        pytest.skip(f"the example needs {NEEDS[pair]}")
    plain_program, parallel_program = PROGRAMS[pair]
    plain = losses(run(FOLDER / plain_program, "2"))
    assert len(plain) == 4
    assert plain[2] < plain[0], "it learns"
    settings = {"SYNKHRONOS_N_PARALLEL": "2", "SYNKHRONOS_USE_GPU": "0"}
    parallel = losses(run(FOLDER / parallel_program, "2", **settings))
    assert parallel == pytest.approx(plain, rel=1e-9, abs=0)
