"""The ResNet example trains, in plain Theano and on all ranks, with the few lines that it shows.

With PyTensor, of which there is no plain program, it trains on all ranks.
"""

from __future__ import annotations

import difflib
import importlib.util
import re

import pytest
from _programs import (
    EXAMPLES,
    IN_C,
    WITHOUT_CONVOLUTIONS,
    number_of_ranks,
    on_devices,
    on_one_device,
    run,
)

from synk_testing.engine import IS_THEANO, theano_only

pytestmark = [
    pytest.mark.skipif(not EXAMPLES.is_dir(), reason="the examples belong to the repository"),
    pytest.mark.skipif(
        IS_THEANO and importlib.util.find_spec("lasagne") is None, reason="it needs lasagne"
    ),
]
FOLDER = EXAMPLES / "resnet"
MOST_LINES = 20  # that are added: the documented few
QUICK = ("--tiny", "--steps", "30", "--interval", "5")


def losses(printed):
    return [float(loss) for loss in re.findall(r"step \d+ of 30: loss ([\d.]+)", printed)]


def train(program, *options):
    printed = run(FOLDER / program, *QUICK, *options, **IN_C)
    assert re.search(r"[\d.]+ images/s on \d+ device", printed)
    (accuracy,) = re.findall(r"validation: loss [\d.]+, accuracy ([\d.]+)%", printed)
    assert float(accuracy) > 40, "ten classes"
    found = losses(printed)
    assert len(found) == 1 + 6
    assert found[-1] < 0.8 * found[0]
    return found


@pytest.fixture(scope="module")
def plain():
    if WITHOUT_CONVOLUTIONS:
        pytest.skip("these devices have no convolutions")
    return train("train_plain.py", *on_one_device())


@theano_only("train_plain.py")
@pytest.mark.nightly  # a minute and more of compiling
def test_training_on_one_rank_is_plain_theano(plain):
    assert train("train_synk.py", *on_devices(only_first=True)) == pytest.approx(plain, rel=0.05)


@pytest.mark.skipif(IS_THEANO, reason="PyTensor only")
@pytest.mark.nightly
def test_training_on_all_ranks_with_pytensor():
    train("train_synk.py", *on_devices())


@theano_only("train_plain.py")
@pytest.mark.nightly  # a minute and more of compiling
def test_training_on_all_ranks(plain):
    per_rank = 2 * 32 // number_of_ranks()
    parallel = train("train_synk.py", *on_devices(), "--batch-size", str(per_rank))
    assert parallel[0] == pytest.approx(plain[0], rel=0.2), "the same parameters, other rows"


def code(name):
    _, _, rest = (FOLDER / name).read_text(encoding="utf-8").split('"""', 2)
    return rest.splitlines()


def test_the_programs_differ_in_the_documented_lines():
    difference = difflib.unified_diff(
        code("train_plain.py"), code("train_synk.py"), n=0, lineterm=""
    )
    changed = [line for line in difference if not line.startswith(("---", "+++", "@@"))]
    readme = (FOLDER / "README.md").read_text(encoding="utf-8")
    (shown,) = re.findall(r"^```diff\n(.*?)^```", readme, flags=re.MULTILINE | re.DOTALL)
    assert [line for line in shown.splitlines() if not line.startswith("@@")] == changed
    added = [line[1:].strip() for line in changed if line.startswith("+")]
    assert len([line for line in added if line and not line.startswith("#")]) <= MOST_LINES


def test_the_model_has_the_size_of_the_paper():
    printed = run(
        "-c",
        "import resnet; model = resnet.build_model();"
        "print(sum(p.get_value().size for p in model.params))",
        folder=FOLDER,
    )
    assert printed.split() == ["25557032"]
