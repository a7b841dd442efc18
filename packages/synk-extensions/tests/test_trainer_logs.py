"""TensorBoard, Weights & Biases and MLflow get the numbers of the training, whichever way it ends.

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
from _training import FEATURES, ROWS, Model, StopAt, assert_close, dataset

from synk_testing import nothing_left
from synk_testing.engine import engine
from synkhronos.extensions import updates
from synkhronos.extensions.train import (
    Callback,
    CheckpointError,
    EarlyStopping,
    MLflow,
    TensorBoard,
    Trainer,
    WandB,
    exponential,
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
    model = Model(rule=updates.sgd)
    trainer = Trainer(
        model.train,
        dataset(),
        BATCH,
        learning_rate=model.rate,
        schedule=exponential(0.1, 0.5),
        callbacks=callbacks,
        verbose=False,
        **settings,
    )
    return trainer, trainer.run(epochs, resume=resume)


def numpy_losses(epochs, seed=0):
    """The loss of each step, and its mean over the rows of each epoch, by hand."""
    x, y = dataset()
    rng = np.random.default_rng(seed)
    w, b = np.zeros(FEATURES), 0.0
    steps, means = [], []
    for epoch in range(epochs):
        order, squares = rng.permutation(ROWS), 0.0
        for start in range(0, ROWS, BATCH):
            rows = order[start : start + BATCH]
            residual = x[rows] @ w + b - y[rows]
            steps.append((residual**2).mean())
            squares += (residual**2).sum()
            w = w - 0.1 * 0.5**epoch * 2 * x[rows].T @ residual / len(rows)
            b = b - 0.1 * 0.5**epoch * 2 * residual.mean()
        means.append(squares / ROWS)
    return steps, means


def assert_logged(logged, epochs, every_steps=1):
    """Losses are those of NumPy; all else is as the schedule and the rows have it."""
    losses, means = numpy_losses(epochs)
    steps = [s for s in range(1, 3 * epochs + 1) if s % every_steps == 0]
    ends = [3 * epoch for epoch in range(1, epochs + 1)]
    assert sorted(logged["step/loss"]) == sorted(logged["step/learning_rate"]) == steps
    assert_close([logged["step/loss"][s] for s in steps], [losses[s - 1] for s in steps], 1e-6)
    rates = [0.1 * 0.5 ** ((s - 1) // 3) for s in steps]
    assert_close([logged["step/learning_rate"][s] for s in steps], rates, 1e-6)
    for name in ("epoch", "seconds", "train_loss", "train_error", "learning_rate"):
        assert sorted(logged[name]) == ends
    assert_close([logged["train_loss"][s] for s in ends], means, 1e-6)
    rates = [0.1 * 0.5**epoch for epoch in range(epochs)]
    assert_close([logged["learning_rate"][s] for s in ends], rates, 1e-6)
    assert [logged["epoch"][s] for s in ends] == [*range(1, epochs + 1)]
    # No validation, so no loss of it; and the number of the step is where the others are.
    assert not {"valid_loss", "step"} & set(logged)


@pytest.mark.parametrize("every_steps", [1, 2])
def test_losses_and_rates_are_logged_by_step_and_by_epoch(kind, every_steps):
    fake, make = kind
    trained(make(every_steps=every_steps))
    assert_logged(fake.logged(), 2, every_steps)
    assert fake.open == 0


def test_hyperparameters_are_the_trainers_and_the_users(kind):
    fake, make = kind
    log = make(config={"layers": [3, 4], "dropout": 0.5, "batch_size": "mine"})
    trained(log, seed=7, num_slices=2)
    logged = {name: str(value) for name, value in fake.config().items()}
    assert logged == {
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


def test_what_other_callbacks_add_to_a_record_is_logged_if_it_is_a_number(kind):
    fake, make = kind

    def add(trainer, record):
        record.update(more=np.float32(1.5), text="none", array=np.ones(2), nothing=None)

    trained(add, make())
    assert fake.logged()["more"] == {3: 1.5, 6: 1.5}
    assert not {"text", "array", "nothing"} & set(fake.logged())


def test_losses_that_are_not_finite_are_logged_as_they_are(kind):
    fake, make = kind

    def spoil(trainer, record):
        record["odd"] = math.inf

    trained(spoil, make(), epochs=1)
    assert fake.logged()["odd"] == {3: math.inf}


def test_a_resumed_training_continues_the_log(kind, tmp_path):
    """Two steps after the checkpoint were lost; they are logged again, as they are now."""
    fake, make = kind
    losing = Callback()
    losing.on_step_end = lambda trainer, loss: 1 / (trainer.step - 5)
    with pytest.raises(ZeroDivisionError):
        trained(make(every_steps=1), losing, checkpoint=tmp_path)
    assert fake.open == 0
    assert max(fake.logged()["step/loss"]) == 5
    trained(make(every_steps=1), epochs=3, resume=True, checkpoint=tmp_path)
    assert_logged(fake.logged(), 3)
    if not isinstance(fake, _trackers.FakeTensorBoard):
        assert len(fake.runs) == 1
        assert fake.ends() == ["failed", "finished"]


def test_the_next_run_of_a_trainer_continues_the_log(kind):
    fake, make = kind
    trainer, _ = trained(make(every_steps=1), epochs=1)
    trainer.run(3)
    assert_logged(fake.logged(), 3)
    assert len(getattr(fake, "runs", [None])) == 1


def test_another_training_has_a_log_of_its_own(kind):
    """As in a loop over folds, with one list of callbacks."""
    fake, make = kind
    log = make(every_steps=1)
    trained(log, epochs=2)
    trained(log, epochs=1)
    assert_logged(fake.logged(), 1)
    assert len(getattr(fake, "runs", [None] * 2)) == 2


def test_a_checkpoint_needs_no_log_but_all_other_callbacks(kind, tmp_path):
    _, make = kind
    trained(EarlyStopping(9), make(), checkpoint=tmp_path, epochs=1)
    trainer, history = trained(EarlyStopping(9), checkpoint=tmp_path, epochs=2, resume=True)
    assert (trainer.step, len(history)) == (6, 2)
    with pytest.raises(CheckpointError, match="EarlyStopping in the checkpoint, none here"):
        trained(make(), checkpoint=tmp_path, epochs=3, resume=True)
    trained(EarlyStopping(9), make(), checkpoint=tmp_path, epochs=3, resume=True)


def interrupt(trainer, record):
    for _ in range(2):
        signal.raise_signal(signal.SIGINT)


def fail(trainer, record):
    raise ZeroDivisionError


@pytest.mark.parametrize("kind", WITH_ENDS, indirect=True)
@pytest.mark.parametrize(
    "callback, error, wandb, mlflow",
    [
        (lambda trainer, record: trainer.stop(), None, "finished", "finished"),
        (fail, ZeroDivisionError, "failed", "failed"),
        (interrupt, KeyboardInterrupt, "failed", "killed"),
    ],
)
def test_a_run_is_closed_with_how_it_ended(kind, callback, error, wandb, mlflow):
    fake, make = kind
    usual = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        if error is None:
            trained(make(), callback)
        else:
            with pytest.raises(error):
                trained(make(), callback)
    finally:
        signal.signal(signal.SIGINT, usual)
    assert fake.ends() == [wandb if isinstance(fake, _trackers.FakeWandB) else mlflow]
    assert fake.open == 0


@pytest.mark.parametrize("kind", WITH_ENDS, indirect=True)
def test_a_run_that_is_under_way_is_used_and_left_open(kind):
    fake, make = kind
    begin = fake.init if isinstance(fake, _trackers.FakeWandB) else fake.start_run
    begin()
    trained(make(every_steps=1))
    assert (fake.open, fake.ends(), len(fake.runs)) == (1, [], 1)
    assert_logged(fake.logged(), 2)


def test_names_reach_the_libraries(monkeypatch):
    wandb, mlflow = _trackers.FakeWandB(), _trackers.FakeMLflow()
    install(monkeypatch, wandb)
    install(monkeypatch, mlflow)
    for _ in range(2):
        trained(WandB("p", "n"), MLflow("e", "n"), MLflow(), epochs=1)
    assert [(run.project, run.name) for run in wandb.runs] == [("p", "n")] * 2
    assert [(run.info.experiment_id, run.name) for run in mlflow.runs] == [("of e", "n")] * 2
    assert list(mlflow.experiments) == ["e"]


def test_event_files_are_flushed_after_each_epoch(monkeypatch):
    fake = _trackers.FakeTensorBoard()
    install(monkeypatch, fake)
    trained(TensorBoard("runs"), epochs=3)
    assert fake.flushed == 3


@pytest.mark.parametrize(
    "make, package",
    [(lambda: TensorBoard("runs"), "tensorboard"), (WandB, "wandb"), (MLflow, "mlflow")],
)
def test_a_missing_package_is_named_with_its_cure(monkeypatch, make, package):
    monkeypatch.setitem(sys.modules, package, None)
    cure = rf"needs {package}, .* pip install 'synkhronos\[{package}\]'"
    with pytest.raises(ImportError, match=cure):
        make()


def test_every_steps_is_at_least_one(kind):
    _, make = kind
    with pytest.raises(ValueError, match="every_steps is 0; expected at least 1"):
        make(every_steps=0)


class Noted(Callback):
    """Note the beginning and the exit of each run."""

    def __init__(self, name, notes, begin=None):
        self.name, self.notes, self.begin = name, notes, begin

    def on_run_begin(self, trainer):
        self.notes.append(f"{self.name} begins")
        if self.begin:
            raise self.begin

    def on_run_end(self, trainer, history):
        self.notes.append(f"{self.name} ends")

    def on_run_exit(self, trainer, error):
        self.notes.append(f"{self.name} exits {type(error).__name__}")


def test_callbacks_exit_in_reverse_order_if_they_began():
    notes = []
    trained(Noted("a", notes), Noted("b", notes), StopAt(2))
    begun = ["a begins", "b begins"]
    assert notes == [*begun, "a ends", "b ends", "b exits NoneType", "a exits NoneType"]
    notes.clear()
    with pytest.raises(OSError, match="full"):
        trained(Noted("a", notes), Noted("b", notes, OSError("full")), Noted("c", notes))
    assert notes == [*begun, "a exits OSError"]


def accepts(real, fake):
    """Assert that the library's function has each parameter of its stand-in."""
    known = inspect.signature(real).parameters
    mine = inspect.signature(fake).parameters.values()
    assert [p.name for p in mine if p.kind is not p.VAR_KEYWORD and p.name not in known] == []


def test_the_stand_in_for_wandb_has_its_signatures():
    wandb = pytest.importorskip("wandb")
    accepts(wandb.init, _trackers.FakeWandB().init)
    for name in ("define_metric", "log", "finish"):
        accepts(getattr(wandb.sdk.wandb_run.Run, name), getattr(_trackers.WandBRun, name))
    accepts(wandb.Config.update, _trackers.WandBConfig.update)


def test_the_stand_in_for_mlflow_has_its_signatures():
    mlflow = pytest.importorskip("mlflow")
    for name, _ in inspect.getmembers(_trackers.FakeMLflow, inspect.isfunction):
        if not name.startswith("_") and name not in ("logged", "config", "ends"):
            accepts(getattr(mlflow, name), getattr(_trackers.FakeMLflow(), name))
    accepts(mlflow.MlflowClient.get_metric_history, _trackers.FakeMLflow()._get_metric_history)


def test_mlflow_does_not_log_a_loss_that_is_not_finite_twice(monkeypatch):
    fake = _trackers.FakeMLflow()
    monkeypatch.setitem(sys.modules, "mlflow", fake)
    for _ in range(2):
        log = MLflow("e", every_steps=1)
        log.load_state({"id": "id-0" if fake.runs else None})
        log._open(0, {})
        log._write({"step/loss": float("nan")}, 1)
        log._close(None)
    assert [metric.step for metric in fake.runs[0].data.metrics["step/loss"]] == [1]


def test_mlflow_has_each_step_of_a_resumed_training_once(monkeypatch, tmp_path):
    """By its own client, in a local folder."""
    mlflow = pytest.importorskip("mlflow")
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", (tmp_path / "runs").as_uri())
    losing = Callback()
    losing.on_step_end = lambda trainer, loss: 1 / (trainer.step - 5)
    with pytest.raises(ZeroDivisionError):
        trained(MLflow("e", every_steps=1), losing, checkpoint=tmp_path / "kept")
    log = MLflow("e", every_steps=1)
    trained(log, epochs=3, resume=True, checkpoint=tmp_path / "kept")
    run_id, client = log.state()["id"], mlflow.MlflowClient()
    history = client.get_metric_history(run_id, "step/loss")
    assert [metric.step for metric in history] == [*range(1, 10)]
    logged = {
        name: {m.step: m.value for m in client.get_metric_history(run_id, name)}
        for name in client.get_run(run_id).data.metrics
    }
    assert_logged(logged, 3)


def test_the_stand_in_for_tensorboard_has_its_signatures():
    pytest.importorskip("tensorboard")
    for module, names in _trackers.FakeTensorBoard().modules.items():
        real = importlib.import_module(module)
        for name, fake in names.items():
            if not isinstance(fake, type) or name == "EventFileWriter":
                accepts(getattr(real, name), fake)


def test_tensorboard_reads_what_was_written(tmp_path):
    """By the library's own reader: also what a resumed training hides."""
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
    from tensorboard.plugins.hparams import metadata, plugin_data_pb2

    def read():
        found = EventAccumulator(str(tmp_path / "runs"))
        found.Reload()
        return found

    def logged():
        found = read()
        pairs = {
            tag: [(event.step, event.value) for event in found.Scalars(tag)]
            for tag in found.Tags()["scalars"]
        }
        assert all(len(dict(each)) == len(each) for each in pairs.values()), "shown twice"
        return {tag: dict(each) for tag, each in pairs.items() if each}

    losing = Callback()
    losing.on_step_end = lambda trainer, loss: 1 / (trainer.step - 5)
    log = {"config": {"layers": [3, 4]}, "every_steps": 1}
    with pytest.raises(ZeroDivisionError), nothing_left():
        trained(TensorBoard(tmp_path / "runs", **log), losing, checkpoint=tmp_path / "kept")
    assert sorted(logged()["step/loss"]) == [1, 2, 3, 4, 5]
    with nothing_left():
        trained(
            TensorBoard(tmp_path / "runs", **log),
            epochs=3,
            resume=True,
            checkpoint=tmp_path / "kept",
        )
    assert_logged(logged(), 3)
    content = read().SummaryMetadata(metadata.SESSION_START_INFO_TAG).plugin_data.content
    hparams = plugin_data_pb2.HParamsPluginData.FromString(content).session_start_info.hparams
    assert hparams["layers"].string_value == "[3, 4]"
    assert hparams["batch_size"].number_value == BATCH
    # A new training in the same folder hides the earlier ones.
    trained(TensorBoard(tmp_path / "runs", every_steps=1), epochs=1)
    assert_logged(logged(), 1)


def test_validation_is_logged(kind):
    fake, make = kind
    model = Model()
    valid = engine.function([model.x, model.y], model.clean)
    trainer = Trainer(
        model.train, dataset(), BATCH, valid=valid, valid_data=dataset(9), callbacks=[make()]
    )
    history = trainer.run(1)
    x, y = dataset(9)
    values = x @ model.w.get_value() + model.b.get_value() - y
    assert_close([fake.logged()["valid_loss"][3]], [(values**2).mean()], 1e-6)
    assert history["valid_loss"] == [fake.logged()["valid_loss"][3]]
