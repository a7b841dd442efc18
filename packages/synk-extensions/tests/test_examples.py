"""The training example runs as a user runs it, and proves what it says."""

from __future__ import annotations

import importlib.util
import re

import pytest
from _programs import EXAMPLES, IN_C, start

from synk_testing.engine import IS_THEANO
from synkhronos.engine import TITLE

pytestmark = [
    pytest.mark.skipif(not EXAMPLES.is_dir(), reason="the examples belong to the repository"),
    pytest.mark.skipif(
        importlib.util.find_spec("sklearn") is None, reason="the examples need scikit-learn"
    ),
]


CNN = pytest.param(
    "cnn",
    marks=[
        pytest.mark.nightly,
        pytest.mark.skipif(
            not IS_THEANO or importlib.util.find_spec("lasagne") is None,
            reason="the convolutional network needs Theano and lasagne",
        ),
    ],
)


@pytest.mark.parametrize("model", ["mlp", CNN])
def test_training_arrives_where_a_plain_function_does(model):
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
