"""The training example runs as a user runs it, and proves what it says."""

from __future__ import annotations

import importlib.util
import re

import pytest
from _programs import EXAMPLES, IN_C, start, zygote

pytestmark = [
    pytest.mark.skipif(not EXAMPLES.is_dir(), reason="the examples belong to the repository"),
    pytest.mark.skipif(
        any(importlib.util.find_spec(name) is None for name in ("lasagne", "sklearn", "rich")),
        reason="the training example needs lasagne, scikit-learn and rich",
    ),
]


@pytest.mark.parametrize("model", ["mlp", pytest.param("cnn", marks=pytest.mark.nightly)])
def test_training_arrives_where_plain_theano_does(model):
    status, out, err = start(
        "train_digits.py",
        *("--model", model, "--processes", "2"),
        *("--epochs", "2", "--batch-size", "53"),
        **(IN_C if model == "cnn" else {}),
    )
    assert (status, err) == (0, "")
    (difference,) = re.findall(r"plain Theano after one epoch: (\S+)", out)
    assert 0 <= float(difference) <= 1e-10
    assert "2 processes, epoch 2 of 2: loss" in out
    (row,) = re.findall(rf"^\s*{model.upper()} .*%.* x .*$", out, re.MULTILINE)
    assert difference in row
    (accuracy,) = re.findall(r"accuracy ([\d.]+)%", out)
    assert float(accuracy) > 50


def test_training_fails_if_the_parameters_differ():
    done = zygote().run(
        "import sys, train_digits; train_digits.LARGEST_DIFFERENCE = -1.0;"
        "sys.exit(train_digits.main(['--model', 'mlp', '--epochs', '1', '--processes', '1']))",
        folder=EXAMPLES,
    )
    assert done.status == 1
    assert "MORE THAN" in done.out


def test_training_explains_its_options():
    status, out, err = start("train_digits.py", "--help")
    assert (status, err) == (0, "")
    for option in ("--processes", "--epochs", "--batch-size", "--model"):
        assert option in out
    status, _, err = start("train_digits.py", "--epochs", "0")
    assert status == 2
    assert "--epochs must be at least 1" in err
