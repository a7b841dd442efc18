"""The examples run as a user runs them, and prove what they say: the training, and each demo."""

from __future__ import annotations

import re

import pytest
from _programs import DEVICES, EXAMPLES, IN_C, on_devices, run, start

from synkhronos.engine import TITLE

pytestmark = pytest.mark.skipif(
    not EXAMPLES.is_dir(), reason="the examples belong to the repository"
)
DEMOS = sorted((EXAMPLES / "demos").glob("demo_*.py"))


@pytest.mark.parametrize("model", ["mlp", pytest.param("cnn", marks=pytest.mark.nightly)])
def test_training_arrives_where_a_plain_function_does(model):
    for module in ("sklearn", *(["theano", "lasagne"] if model == "cnn" else [])):
        pytest.importorskip(module)
    status, out, err = start(
        "train_digits.py",
        *("--model", model, "--processes", "2"),
        *("--epochs", "2", "--batch-size", "211"),
        **(IN_C if model == "cnn" else {}),
    )
    assert (status, err) == (0, "")
    (difference,) = re.findall(rf"plain {TITLE} after one epoch: (\S+)", out)
    assert 0 <= float(difference) <= 1e-10
    assert "2 process(es), epoch 2 of 2: loss" in out
    (row,) = re.findall(rf"^{model.upper()} .* x .*$", out, re.MULTILINE)
    _, plain, ours, speed_up, _, shown = row.split()
    assert shown == difference
    assert float(speed_up) == pytest.approx(float(ours) / float(plain), rel=0.01, abs=0.005)
    (accuracy,) = re.findall(r"accuracy ([\d.]+)%", out)
    assert float(accuracy) > 50


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
    assert "All assertions passed." in run(program, *on_devices(only_first=True))


def test_there_are_five_demos_that_explain_their_options():
    assert [path.stem for path in DEMOS] == [f"demo_{i}" for i in range(1, 6)]
    out = run(DEMOS[0], "--help")
    assert "--devices" in out
    assert "--processes" in out
