"""TensorBoard, Weights & Biases and MLflow get each epoch's record, whichever way the run ends.

Stand-ins take their places; TensorBoard's own reader reads files back if it is installed.
"""

from __future__ import annotations

import math
import signal
import sys
import types

import _trackers
import numpy as np
import pytest
from _training import ROWS, Model, dataset

from synk_testing import nothing_left
from synkhronos.extensions.train import (
    Callback,
    CheckpointError,
    EarlyStopping,
    MLflow,
    TensorBoard,
    Trainer,
    WandB,
)

BATCH = 17  # three steps make an epoch
KINDS = {
    "TensorBoard": (_trackers.FakeTensorBoard, lambda **config: TensorBoard("runs", **config)),
    "WandB": (_trackers.FakeWandB, lambda **config: WandB("project", "name", **config)),
    "MLflow": (_trackers.FakeMLflow, lambda **config: MLflow("experiment", "name", **config)),
}
WITH_ENDS = ["WandB", "MLflow"]


@pytest.fixture(params=KINDS)
def kind(request, monkeypatch):
    """A stand-in that `import` finds, and the function that makes the callback of it."""
    make_fake, make = KINDS[request.param]
    fake = make_fake()
    for name, content in fake.modules.items():
        parts, module = name.split("."), content
        if isinstance(content, dict):
            module = types.ModuleType(name)
            module.__dict__.update(content)
        for end in range(1, len(parts)):
            parent = ".".join(parts[:end])
            monkeypatch.setitem(sys.modules, parent, types.ModuleType(parent))
        monkeypatch.setitem(sys.modules, name, module)
    with nothing_left():
        yield fake, make


def trained(*callbacks, epochs=2, resume=False, **settings):
    trainer = Trainer(
        Model().train, dataset(), BATCH, callbacks=callbacks, verbose=False, **settings
    )
    return trainer, trainer.run(epochs, resume=resume)


def assert_logged(fake, history):
    logged = fake.logged()
    names = {"epoch", "seconds", "train_loss", "train_error"}
    assert names <= set(logged)
    assert not {"valid_loss", "step"} & set(logged)  # there is no validation
    for name in names:
        assert list(logged[name]) == history["step"]
        np.testing.assert_allclose(list(logged[name].values()), history[name], rtol=1e-6)


def test_records_and_hyperparameters_are_logged(kind):
    fake, make = kind

    def add(trainer, record):
        record.update(more=np.float32(1.5), odd=math.inf, text="none", array=np.ones(2))

    log = make(config={"layers": [3, 4], "dropout": 0.5, "batch_size": "mine"})
    trainer, history = trained(add, log, seed=np.int64(7), num_slices=2)
    assert_logged(fake, history)
    assert fake.logged()["more"] == {3: 1.5, 6: 1.5}
    assert fake.logged()["odd"] == {3: math.inf, 6: math.inf}
    assert not {"text", "array"} & set(fake.logged())
    config = {"layers": [3, 4], "dropout": 0.5, "batch_size": "mine", "rows": ROWS, "shuffle": True}
    config.update(drop_last=False, num_slices=2, ranks=1, seed=7)
    logged = {name: str(value) for name, value in fake.runs[0].config.items()}
    assert logged == {name: str(value) for name, value in config.items()}
    assert_logged(fake, trainer.run(3))
    assert len(fake.runs) == 1
    assert_logged(fake, trained(log, epochs=1)[1])
    if isinstance(fake, _trackers.FakeTensorBoard):
        assert fake.flushed == 4  # after each epoch
    else:  # the second run finds the experiment of the first
        project = "project" if isinstance(fake, _trackers.FakeWandB) else "of experiment"
        assert [run.names for run in fake.runs] == [(project, "name")] * 2
    assert fake.run is None


def test_a_resumed_training_continues_the_log(kind, tmp_path):
    fake, make = kind
    losing = Callback()
    losing.on_step_end = lambda trainer, loss: 1 / (trainer.step - 5)
    with pytest.raises(ZeroDivisionError):
        trained(EarlyStopping(9), make(), losing, checkpoint=tmp_path)
    assert fake.run is None
    _, history = trained(EarlyStopping(9), make(), epochs=3, resume=True, checkpoint=tmp_path)
    assert_logged(fake, history)
    (run,) = fake.runs
    assert run.ends in (["failed", "finished"], ["closed", "closed"])
    trained(EarlyStopping(9), checkpoint=tmp_path, epochs=4, resume=True)
    with pytest.raises(CheckpointError, match="EarlyStopping in the checkpoint, none here"):
        trained(make(), checkpoint=tmp_path, epochs=5, resume=True)


@pytest.mark.parametrize("kind", WITH_ENDS, indirect=True)
def test_a_run_is_closed_with_how_it_ended(kind, ctrl_c):
    fake, make = kind

    def interrupt(trainer, record):
        for _ in range(2):
            signal.raise_signal(signal.SIGINT)

    with pytest.raises(KeyboardInterrupt):
        trained(make(), interrupt)
    assert fake.runs[0].ends == ["failed" if isinstance(fake, _trackers.FakeWandB) else "killed"]
    assert fake.run is None


@pytest.mark.parametrize("kind", WITH_ENDS, indirect=True)
def test_a_run_that_is_under_way_is_used_and_left_open(kind):
    fake, make = kind
    run = fake.init() if isinstance(fake, _trackers.FakeWandB) else fake.start_run()
    _, history = trained(make())
    assert (fake.run, run.ends, fake.runs) == (run, [], [run])
    assert_logged(fake, history)


def test_tensorboard_reads_the_files(tmp_path):
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
    from tensorboard.plugins.hparams import metadata, plugin_data_pb2

    def read():
        found = EventAccumulator(str(tmp_path / "runs"))
        found.Reload()
        return found

    def steps():
        return [event.step for event in read().Scalars("train_loss")]

    def log():
        return TensorBoard(tmp_path / "runs", config={"layers": [3, 4]})

    with nothing_left():
        trained(log(), checkpoint=tmp_path / "kept")
        first = sorted((tmp_path / "kept").glob("step-*"))[0]
        trainer = Trainer(
            Model().train, dataset(), BATCH, callbacks=[log()], checkpoint=tmp_path / "kept"
        )
        assert trainer.resume(first)
        history = trainer.run(3)
    assert steps() == history["step"] == [3, 6, 9]
    content = read().SummaryMetadata(metadata.SESSION_START_INFO_TAG).plugin_data.content
    hparams = plugin_data_pb2.HParamsPluginData.FromString(content).session_start_info.hparams
    assert hparams["layers"].string_value == "[3, 4]"
    assert hparams["batch_size"].number_value == BATCH
    trained(TensorBoard(tmp_path / "runs"), epochs=1)
    assert steps() == [3]
