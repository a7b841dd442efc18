"""The Trainer's loop, with the serial twin: its numbers are those of NumPy and of a plain loop."""

from __future__ import annotations

import csv
import functools
import logging
import math
import re
import shutil
import time
import warnings

import numpy as np
import pytest
from _training import (
    ROWS,
    Model,
    assert_close,
    assert_same,
    dataset,
    numpy_training,
    plain,
    without_seconds,
)

from synk_testing.engine import engine
from synk_testing.files import StandIn
from synkhronos.extensions import updates
from synkhronos.extensions.train import (
    Callback,
    EarlyStopping,
    ReduceOnPlateau,
    Trainer,
    exponential,
    warm_up,
)

ENGINE = engine.__name__


@functools.cache
def one_model():
    return Model()


def test_epochs_are_those_of_numpy(capsys):
    model = Model(rule=updates.sgd)
    valid = engine.function([model.x, model.y], [model.clean, model.error])
    x_valid, y_valid = dataset(23, seed=2)
    trainer = Trainer(
        model.train,
        dataset(),
        16,  # the last batch has two rows
        valid=valid,
        valid_data=(x_valid, y_valid),
        valid_slices=4,
        valid_names=["error"],
        num_slices=3,
        learning_rate=model.rate,
        schedule=exponential(0.1, 0.5),
        seed=3,
    )
    history = trainer.run(3)
    seconds = np.diff(history["seconds"], prepend=0)
    assert capsys.readouterr().out.splitlines() == [
        f"epoch {i + 1} of 3: train_loss {history['train_loss'][i]:.4g}, "
        f"valid_loss {history['valid_loss'][i]:.4g}, "
        f"train_error {history['train_error'][i]:.4g}, "
        f"valid_error {history['valid_error'][i]:.4g}, {seconds[i]:.1f} s"
        for i in range(3)
    ]
    losses, w, b = numpy_training(np.repeat([0.1, 0.05, 0.025], 4), 16, seed=3)
    losses = np.average(np.reshape(losses, (3, 4)), axis=1, weights=[16, 16, 16, 2])
    assert_close([history["train_loss"], model.w.get_value(), model.b.get_value()], [losses, w, b])
    residual = x_valid @ w + b - y_valid
    assert_close(
        [history["valid_loss"][-1], history["valid_error"][-1]],
        [(residual**2).mean(), abs(residual).mean()],
    )
    assert history["learning_rate"] == [0.1, 0.05, 0.025]
    assert history["step"] == [4, 8, 12]
    assert (history.status, len(history), trainer.epoch, trainer.step) == ("finished", 3, 3, 12)
    assert [record["epoch"] for record in history] == [1, 2, 3]
    assert repr(history) == "<History of 3 epochs, finished>"
    with pytest.raises(KeyError, match="'loss'; expected one of"):
        history["loss"]
    Trainer(model.train, dataset(), 50, verbose=False).run(1)
    assert capsys.readouterr().out == ""


def test_rows_come_in_their_order_without_a_smaller_batch_if_that_is_asked_for():
    trainer = Trainer(one_model().train, dataset(7), 3, shuffle=False, drop_last=True)
    assert trainer.run(1)["step"] == [2]
    sampler = trainer._sampler
    assert [[*rows] for rows in sampler.epoch(sampler.get_state())] == [[0, 1, 2], [3, 4, 5]]


class Notes(Callback):
    def __init__(self, name, seen, error=None):
        self.name, self.seen, self.error = name, seen, error

    def note(self, *what):
        self.seen.append(" ".join(map(str, (self.name, *what))))

    def on_run_begin(self, trainer):
        self.note("begins")
        if self.error:
            raise self.error

    def on_step_end(self, trainer, loss):
        self.note(trainer.step, f"{loss:.12g}")

    def on_epoch_end(self, trainer, record):
        self.note("epoch", record["epoch"])
        record["half"] = record["epoch"] / 2

    def on_run_end(self, trainer, history):
        self.note("ends")

    def on_run_exit(self, trainer, error):
        self.note("exits", type(error).__name__)


def test_callbacks_are_called_in_their_order_and_exit_in_reverse():
    seen = []
    callbacks = [Notes("a", seen), lambda *got: seen.append(got), Notes("b", seen)]
    trainer = plain(Model(rule=updates.sgd), 25, callbacks=callbacks)
    history = trainer.run(1)
    one, two = (f"{loss:.12g}" for loss in numpy_training([0.05] * 2, 25)[0])
    assert seen == [
        *("a begins", "b begins", f"a 1 {one}", f"b 1 {one}", f"a 2 {two}", f"b 2 {two}"),
        *("a epoch 1", (trainer, history.records[0]), "b epoch 1", "a ends", "b ends"),
        *("b exits NoneType", "a exits NoneType"),
    ]
    assert history["half"] == [0.5]
    seen.clear()
    callbacks[1:] = [Notes("b", seen, OSError("full")), Notes("c", seen)]
    with pytest.raises(OSError, match="full"):
        plain(Model(), callbacks=callbacks).run(1)
    assert seen == ["a begins", "b begins", "a exits OSError"]


def test_stop_ends_after_the_step_and_the_next_run_goes_on(caplog):
    caplog.set_level(logging.INFO, logger="synkhronos")
    stopping = Callback()
    stopping.on_step_end = lambda trainer, _: trainer.step in (2, 4) and trainer.stop("enough")
    model, other = Model(), Model()
    trainer = plain(model, callbacks=[stopping])
    first, second, third = trainer.run(2), trainer.run(2), trainer.run(2)
    assert (first.status, first.reason, len(first)) == ("stopped", "enough", 0)
    assert (second.status, len(second)) == ("stopped", 0)  # all steps, but no validation yet
    assert (third.status, len(third), trainer.step) == ("finished", 2, 8)
    assert [record.getMessage() for record in caplog.records] == ["training stopped: enough"] * 2
    history = plain(other).run(2)
    assert_same(model.values(), other.values())
    assert history["train_loss"] == third["train_loss"]


# The epoch at which to stop, and that of the best, were counted by hand.
@pytest.mark.parametrize(
    "losses, settings, mode, epochs, best",
    [
        ([5, 4, 4.5, 4.2, 4.1, 1], {"patience": 3}, "min", 5, 2),
        ([5, 4, 3.9, 3.8, 1], {"patience": 2, "min_delta": 0.5}, "min", 4, 2),
        ([5, 4, 3.7, 3.4, 3.1], {"patience": 2, "min_delta": 0.5}, "min", None, 4),
        ([1, 2, 3, 2.5, 2.9, 9], {"patience": 2}, "max", 5, 3),
        ([math.nan, math.nan, 1], {"patience": 2}, "min", 2, None),
        ([2, 2, 1], {"patience": 1, "restore_best": False}, "min", 2, 2),
    ],
)
def test_early_stopping(losses, settings, mode, epochs, best):
    model = one_model()
    waiting, after = iter(losses), []
    stopping = EarlyStopping(**{"restore_best": True, **settings})
    how = {"valid": lambda *_: next(waiting), "valid_data": dataset(3), "mode": mode}
    callbacks = [lambda *_: after.append(model.w.get_value()), stopping]
    history = plain(model, 25, callbacks=callbacks, **how).run(len(losses))
    assert len(history) == (epochs or len(losses))
    assert history.status == ("stopped" if epochs else "finished")
    if epochs:
        assert f"no better valid_loss for {settings['patience']} epochs" in history.reason
    assert_same([model.w.get_value()], [after[best - 1 if best else -1]])


def test_a_log_has_a_line_per_epoch(tmp_path):
    model, path = one_model(), tmp_path / "logs" / "run.csv"

    def note(trainer, record):
        if trainer.epoch == 2:
            record["number"] = 0.5
            shutil.rmtree(path.parent)

    valid = {
        "valid": engine.function([model.x, model.y], [model.clean, model.error]),
        "valid_data": dataset(9),
        "valid_names": ["error"],
    }
    settings = {"learning_rate": model.rate, "log": path, "callbacks": [note]}
    history = plain(model, **valid, **settings).run(3)
    assert history["number"] == [None, 0.5, None]
    with path.open(newline="") as file:
        header, *lines = csv.reader(file)
    assert header == [
        "epoch", "step", "seconds", "train_loss", "valid_loss", "train_error", "valid_error",
        "learning_rate",
    ]  # fmt: skip
    expected = [[record[name] for name in header] for record in history]
    assert [[*map(float, line)] for line in lines] == expected
    plain(model, log=path).run(1)  # another training begins the file anew
    assert len(path.read_text().splitlines()) == 2


def test_an_unwritable_path_is_an_error_before_the_first_step(tmp_path):
    (tmp_path / "file").touch()
    (tmp_path / "folder").mkdir()
    before = sorted(tmp_path.rglob("*"))
    wrong = {"checkpoint": ("file/there", "file"), "log": ("file/there", "folder")}
    for name, place in [(name, place) for name, places in wrong.items() for place in places]:
        trainer = plain(one_model(), **{name: tmp_path / place})
        with pytest.raises(OSError, match=re.escape(str(tmp_path / "f"))):
            trainer.run(1)
        assert trainer.step == 0
        assert sorted(tmp_path.rglob("*")) == before


def test_a_loss_that_is_no_number_ends_the_run(tmp_path):
    trainer = plain(Model(), shuffle=False, checkpoint=tmp_path)
    trainer.run(1)
    kept = sorted(tmp_path.iterdir())
    trainer._data[1][-1] = math.inf
    message = r"loss is inf.*step 8, .*resume\(\).*watch_finite"
    with pytest.raises(FloatingPointError, match=message):
        trainer.run(3)
    assert (trainer.epoch, trainer.step) == (1, 8)
    assert sorted(tmp_path.iterdir()) == kept


def test_a_callback_that_raises_loses_no_line_no_step_and_no_second(tmp_path, monkeypatch):
    log, clock, failed = tmp_path / "log.csv", [0.0], []
    monkeypatch.setattr(time, "perf_counter", lambda: clock[0])
    working = Callback()

    def work(trainer, loss):
        clock[0] += 1.0
        if trainer.step == 6 and len(failed) == 0:
            failed.append(trainer.step)
            raise ZeroDivisionError

    def fail(trainer, record):
        if trainer.epoch == 2 and len(failed) == 1:
            failed.append(record)
            raise ZeroDivisionError

    working.on_step_end = work
    model, other = Model(), Model()
    trainer = plain(model, callbacks=[working, fail], log=log)
    for _ in range(2):
        with pytest.raises(ZeroDivisionError):
            trainer.run(3)
        clock[0] += 1000.0
    history = trainer.run(3)
    assert history["seconds"] == [4.0, 8.0, 12.0]
    assert without_seconds(history) == without_seconds(plain(other).run(3))
    assert_same(model.values(), other.values())
    epochs = [line["epoch"] for line in csv.DictReader(log.read_text().splitlines())]
    assert epochs == ["1", "2", "3"]


def test_early_stopping_and_plateau_begin_anew_with_another_training():
    stopping, plateau = EarlyStopping(2, restore_best=True), ReduceOnPlateau(0.05, 0.5, 1)
    histories, models = [], []
    for _ in range(2):
        model = Model()
        how = {"learning_rate": model.rate, "schedule": warm_up(plateau, 1)}
        trainer = plain(model, mode="max", callbacks=[stopping], **how)
        histories.append(without_seconds(trainer.run(9)))
        models.append(model.values())
        assert trainer.run(9).status == "stopped"  # the same training stays stopped
    assert len(histories[0]) == 3
    assert histories[0] == histories[1]
    assert_same(*models)


WRONG = [
    ({"train": sum}, TypeError, "a result of make_train_function"),
    ({"data": ()}, ValueError, "data is empty"),
    ({"batch_size": 0}, ValueError, "50 rows make no batch of batch_size 0"),
    ({"batch_size": 51, "drop_last": True}, ValueError, "50 rows make no batch"),
    ({"valid": max}, ValueError, "one of valid and valid_data"),
    ({"schedule": abs}, ValueError, rf"no learning_rate; expected .*such as {ENGINE}\.shared\("),
    ({"schedule_by": "hour"}, ValueError, "schedule_by is 'hour'; expected one of 'epoch'"),
    ({"mode": "low"}, ValueError, "mode is 'low'"),
    ({"monitor": "valid_loss"}, ValueError, "monitor is 'valid_loss'; expected.*'train_error'"),
    ({"callbacks": [3]}, TypeError, "got 3 among callbacks"),
    ({"callbacks": [EarlyStopping]}, TypeError, "Callback object"),
    ({"valid": max, "valid_data": [1], "valid_slices": 0}, ValueError, "valid_slices is 0"),
    ({"valid": max, "valid_data": [1]}, ValueError, r"valid_data has \['no'\] rows"),
    ({"valid": max, "valid_data": ([1], [2, 3])}, ValueError, r"valid_data has \[1, 2\] rows"),
    ({"data": (dataset()[0], dataset(60)[1])}, ValueError, r"data has \[50, 60\] rows"),
    ({"batch_size": 16.0}, TypeError, "batch_size is 16.0; expected an integer"),
    ({"batch_size": dataset()[1]}, TypeError, r"one tuple: Trainer\(train, \(x, y\), 64\)"),
    ({"validation_data": dataset()}, TypeError, "did you mean valid_data="),
    ({"data": iter([1])}, TypeError, r"ends after one epoch; expected .* lambda epoch: batches"),
    ({"data": lambda epoch: []}, TypeError, "batch_size is 16, but data yields batches.* None"),
    ({"data": (StandIn(dataset()[0]), dataset(9)[1])}, ValueError, r"data has \[50, 9\] rows"),
    ({"batch_size": None}, TypeError, "batch_size is None; expected an integer"),
    ({"on_sigterm": "checkpoint"}, ValueError, r"needs a folder: Trainer\(checkpoint=\.\.\.\)"),
    ({"on_sigterm": "stop"}, ValueError, "on_sigterm is 'stop'; expected one of 'checkpoint'"),
    ({"log": "run.jsonl"}, ValueError, r"log is 'run\.jsonl'; expected .* CSV .* 'run\.csv'"),
    ({"learning_rate": 0.1}, TypeError, "learning_rate is 0.1; expected the scalar shared"),
    ({"learning_rate": engine.shared(0.1)}, ValueError, "which the training step does not read"),
]


def test_wrong_arguments_are_refused_in_words():
    usual = {"train": one_model().train, "data": dataset(), "batch_size": 16}
    for change, error, message in WRONG:
        with pytest.raises(error, match=message):
            Trainer(**{**usual, **change})
    with pytest.raises(ValueError, match=r"needs a folder: Trainer\(checkpoint=\.\.\.\)"):
        Trainer(**usual).run(1, resume=True)
    for epochs in ("3", 2.5, -1):
        with pytest.raises(TypeError, match=f"epochs is {epochs!r}; expected an integer"):
            Trainer(**usual).run(epochs)
    with pytest.raises(ValueError, match="patience is 0"):
        EarlyStopping(0)


def test_outputs_that_no_log_can_hold_are_refused(monkeypatch):
    model = one_model()
    valid = engine.function([model.x, model.y], [model.clean, model.error])
    with pytest.raises(ValueError, match=r"valid returns 2 outputs; expected 1.*valid_names"):
        plain(model, valid=valid, valid_data=dataset(3))
    with pytest.raises(TypeError, match=r"valid_loss has the shape \(4,\)"):
        plain(model, valid=lambda x, y: x.sum(axis=0), valid_data=dataset(3)).run(1)
    monkeypatch.setattr(model.train, "output_names", ("loss", "loss"))
    (record,) = plain(model).run(1)
    assert {"train_loss", "train_output_1"} <= record.keys()


def test_warnings_name_the_line_of_the_program():
    x, y = dataset()
    y[3] = math.inf
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("default")
        Trainer(Model().train, (x, y), ROWS + 1, terminate_on_nan=False).run(3)
    caught = [one for one in caught if issubclass(one.category, UserWarning)]
    texts = [str(one.message) for one in caught]
    assert re.search(f"batch_size is {ROWS + 1}, .* only {ROWS} rows", texts[0])
    assert len(texts) == len(set(texts)) <= 3  # the loss is inf first, then nan
    assert all("synkhronos.watch_finite()" in text for text in texts[1:])
    assert {one.filename for one in caught} == {__file__}


def test_a_callback_cannot_begin_another_run_within_the_run():
    """Rows would be seen twice, and means be of other rows than they say."""
    refused = []

    def begin(trainer, *_):
        for call in (lambda: trainer.run(9), trainer.resume):
            with pytest.raises(RuntimeError, match=r"while run\(\) .*let a callback call stop"):
                call()
            refused.append(call)

    recursive = Callback()
    for when in ("on_run_begin", "on_step_end", "on_epoch_end", "on_run_end"):
        setattr(recursive, when, begin)
    assert plain(one_model(), 50, callbacks=[recursive]).run(1).status == "finished"
    assert len(refused) == 8
