"""TensorBoard, Weights & Biases and MLflow get each epoch's record, whichever way the run ends.

None of them has to be installed: stand-ins with their signatures take their place. Where they are
installed, the signatures are compared, and TensorBoard's files read back by its own reader.
"""

from __future__ import annotations

import importlib
import inspect
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


def install(monkeypatch, fake):
    """Let `import` find the stand-in's modules, and the packages that they are in."""
    for name in fake.modules:
        parts = name.split(".")
        for end in range(1, len(parts)):
            parent = ".".join(parts[:end])
            monkeypatch.setitem(sys.modules, parent, types.ModuleType(parent))
    for name, content in fake.modules.items():
        module = content
        if isinstance(content, dict):
            module = types.ModuleType(name)
            module.__dict__.update(content)
        monkeypatch.setitem(sys.modules, name, module)


@pytest.fixture(params=KINDS)
def kind(request, monkeypatch):
    """A stand-in, and the function that makes the callback of it."""
    make_fake, make = KINDS[request.param]
    fake = make_fake()
    install(monkeypatch, fake)
    with nothing_left():
        yield fake, make


def trained(*callbacks, epochs=2, resume=False, **settings):
    trainer = Trainer(
        Model().train, dataset(), BATCH, callbacks=callbacks, verbose=False, **settings
    )
    return trainer, trainer.run(epochs, resume=resume)


def assert_logged(fake, history):
    """Each number of each record is there, at its step."""
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
    trainer, history = trained(add, log, seed=7, num_slices=2)
    assert_logged(fake, history)
    assert fake.logged()["more"] == {3: 1.5, 6: 1.5}
    assert fake.logged()["odd"] == {3: math.inf, 6: math.inf}
    assert not {"text", "array"} & set(fake.logged())
    assert {name: str(value) for name, value in fake.config().items()} == {
        "layers": "[3, 4]",
        "dropout": "0.5",
        "batch_size": "mine",
        "rows": str(ROWS),
        "shuffle": "True",
        "drop_last": "False",
        "num_slices": "2",
        "ranks": "1",
        "seed": "7",
    }
    # The next run of the Trainer continues the log; another training has one of its own.
    assert_logged(fake, trainer.run(3))
    assert len(getattr(fake, "runs", [None])) == 1
    assert_logged(fake, trained(log, epochs=1)[1])
    assert len(getattr(fake, "runs", [None] * 2)) == 2
    assert fake.open == 0
    assert getattr(fake, "flushed", 4) == 4  # after each epoch


def test_a_resumed_training_continues_the_log(kind, tmp_path):
    """A step after the checkpoint was lost; a checkpoint fits without the log, too."""
    fake, make = kind
    losing = Callback()
    losing.on_step_end = lambda trainer, loss: 1 / (trainer.step - 5)
    with pytest.raises(ZeroDivisionError):
        trained(EarlyStopping(9), make(), losing, checkpoint=tmp_path)
    assert fake.open == 0
    stopping = EarlyStopping(9)
    _, history = trained(stopping, make(), epochs=3, resume=True, checkpoint=tmp_path)
    assert_logged(fake, history)
    if not isinstance(fake, _trackers.FakeTensorBoard):
        assert len(fake.runs) == 1
        assert _trackers.ends(fake) == ["failed", "finished"]
    trained(EarlyStopping(9), checkpoint=tmp_path, epochs=4, resume=True)
    with pytest.raises(CheckpointError, match="EarlyStopping in the checkpoint, none here"):
        trained(make(), checkpoint=tmp_path, epochs=5, resume=True)


def interrupt(trainer, record):
    for _ in range(2):
        signal.raise_signal(signal.SIGINT)


def fail(trainer, record):
    raise ZeroDivisionError


@pytest.mark.parametrize("kind", WITH_ENDS, indirect=True)
@pytest.mark.parametrize(
    "callback, error, wandb, mlflow",
    [
        (fail, ZeroDivisionError, "failed", "failed"),
        (interrupt, KeyboardInterrupt, "failed", "killed"),
    ],
)
def test_a_run_is_closed_with_how_it_ended(kind, ctrl_c, callback, error, wandb, mlflow):
    fake, make = kind
    with pytest.raises(error):
        trained(make(), callback)
    assert _trackers.ends(fake) == [wandb if isinstance(fake, _trackers.FakeWandB) else mlflow]
    assert fake.open == 0


@pytest.mark.parametrize("kind", WITH_ENDS, indirect=True)
def test_a_run_that_is_under_way_is_used_and_left_open(kind):
    fake, make = kind
    begin = fake.init if isinstance(fake, _trackers.FakeWandB) else fake.start_run
    begin()
    _, history = trained(make())
    assert (fake.open, _trackers.ends(fake), len(fake.runs)) == (1, [], 1)
    assert_logged(fake, history)


def test_names_reach_the_libraries(monkeypatch):
    wandb, mlflow = _trackers.FakeWandB(), _trackers.FakeMLflow()
    install(monkeypatch, wandb)
    install(monkeypatch, mlflow)
    for _ in range(2):
        trained(WandB("p", "n"), MLflow("e", "n"), MLflow(), epochs=1)
    assert [run.names for run in wandb.runs] == [("p", "n")] * 2
    assert [run.names for run in mlflow.runs] == [("of e", "n")] * 2
    assert list(mlflow.experiments) == ["e"]


def accepts(real, fake):
    """Assert that the library's function has each parameter of its stand-in."""
    known = inspect.signature(real).parameters
    mine = inspect.signature(fake).parameters.values()
    assert [p.name for p in mine if p.kind is not p.VAR_KEYWORD and p.name not in known] == []


@pytest.mark.parametrize("name", ["wandb", "mlflow", "tensorboard"])
def test_the_stand_ins_have_the_signatures_of(name):
    library = pytest.importorskip(name)
    if name == "wandb":
        accepts(library.init, _trackers.FakeWandB().init)
        for method in ("define_metric", "log", "finish"):
            accepts(getattr(library.sdk.wandb_run.Run, method), getattr(_trackers.WandBRun, method))
        accepts(library.Config.update, _trackers.WandBConfig.update)
    elif name == "mlflow":
        for method, _ in inspect.getmembers(_trackers.FakeMLflow, inspect.isfunction):
            if not method.startswith("_") and method not in ("logged", "config"):
                accepts(getattr(library, method), getattr(_trackers.FakeMLflow(), method))
    else:
        for module, names in _trackers.FakeTensorBoard().modules.items():
            for each in {"EventFileWriter", "hparams_pb"} & names.keys():
                accepts(getattr(importlib.import_module(module), each), names[each])


def test_tensorboard_reads_what_was_written(tmp_path):
    """By the library's own reader: also what a resumed training hides."""
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
        # Going back to the first epoch hides the second one until it is logged again.
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
    # A new training in the same folder hides the earlier ones.
    trained(TensorBoard(tmp_path / "runs"), epochs=1)
    assert steps() == [3]
