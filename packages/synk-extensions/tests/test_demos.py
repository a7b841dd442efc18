"""Every demo runs: each asserts that parallel is serial."""

from __future__ import annotations

import pytest
from _programs import DEVICES, EXAMPLES, on_devices, run, start

DEMOS = sorted((EXAMPLES / "demos").glob("demo_*.py"))

pytestmark = pytest.mark.skipif(
    not EXAMPLES.is_dir(), reason="the examples belong to the repository"
)


def test_there_are_five():
    assert [path.stem for path in DEMOS] == [f"demo_{i}" for i in range(1, 6)]


# By night also those of `Data` and `batch=`, which the documentation's tested pages use, too.
@pytest.mark.parametrize(
    "program",
    [
        pytest.param(path, marks=[pytest.mark.nightly] * (path.stem in ("demo_2", "demo_4")))
        for path in DEMOS
    ],
    ids=lambda path: path.stem,
)
def test_demo_runs(program, tmp_path):
    status, out, err = start(program, *on_devices(), folder=tmp_path)
    assert status == 0, f"{out}\n{err}"
    if not DEVICES:  # a GPU's libraries have things to say
        assert err == ""
    assert out.endswith("\nAll assertions passed.\n")
    assert list(tmp_path.iterdir()) == [], "a program leaves no file behind"


@pytest.mark.nightly
@pytest.mark.parametrize("program", DEMOS[2::2], ids=lambda path: path.stem)
def test_demo_runs_on_one_process(program):
    """Those that speak of each rank."""
    assert "All assertions passed." in run(program, *on_devices(only_first=True))


def test_demos_explain_their_options():
    out = run(DEMOS[0], "--help")
    assert "--devices" in out
    assert "--processes" in out
