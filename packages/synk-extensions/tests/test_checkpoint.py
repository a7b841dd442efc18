"""Checkpoints, with the serial twin: resuming is as if nothing had happened, or changes nothing."""

from __future__ import annotations

import json
import re
import zipfile

import numpy as np
import pytest
from _training import Model, StopAt, assert_same, dataset, plain, without_seconds

from synk_testing.engine import STREAMS, T, engine
from synkhronos.extensions import updates
from synkhronos.extensions.train import (
    Callback,
    CheckpointError,
    Checkpoints,
    EarlyStopping,
    ReduceOnPlateau,
    Trainer,
    cosine,
    make_train_function_theano,
)
from synkhronos.extensions.train import _checkpoint_files as checkpoint_file
from synkhronos.extensions.train._ranks import to_row


class Own(np.random.Generator):
    """Of a program's own class."""


GENERATORS = {
    "own": lambda: Own(np.random.PCG64(7)),
    "PCG64": lambda: np.random.default_rng(7),
    "MT19937": lambda: np.random.Generator(np.random.MT19937(7)),
    "SFC64": lambda: np.random.Generator(np.random.SFC64(7)),
    "RandomState": lambda: np.random.RandomState(7),
}


def random_values(model):
    values = [shared.get_value() for shared in model.train.state.random]
    return [v if isinstance(v, np.ndarray) else to_row(v) for v in values]


def files_of(folder):
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def names_in(folder):
    return sorted(path.name for path in folder.iterdir())


LAST = [*STREAMS][-1]


@pytest.mark.parametrize(
    "noise, rule, generator, stop",
    [
        (LAST, "adam", "own", 1),
        pytest.param("numpy", "momentum", "PCG64", 6, marks=pytest.mark.nightly),
        pytest.param("numpy", "adadelta", "MT19937", 4, marks=pytest.mark.nightly),
        pytest.param(LAST, "adagrad", "SFC64", 8, marks=pytest.mark.nightly),
        pytest.param(None, "sgd_nonflat", "RandomState", 5, marks=pytest.mark.nightly),
    ],
)
def test_resuming_equals_an_uninterrupted_run_bit_for_bit(tmp_path, noise, rule, generator, stop):
    def build(folder, *callbacks):
        model = Model(rule=getattr(updates, rule), noise=noise, running=True)
        valid = engine.function([model.x, model.y], model.clean)
        how = {"learning_rate": model.rate, "schedule": cosine(0.1, 12), "schedule_by": "step"}
        how.update(valid=valid, valid_data=dataset(9), valid_slices=2, log=folder / "log.csv")
        seed = GENERATORS[generator]()
        return model, plain(model, seed=seed, checkpoint=folder, callbacks=callbacks, **how)

    whole, trainer = build(tmp_path / "whole")
    expected = trainer.run(3)

    first, trainer = build(tmp_path / "parts", StopAt(stop))
    assert trainer.run(3).status == "stopped"
    second, trainer = build(tmp_path / "parts")
    history = trainer.run(3, resume=True)

    assert history.status == "finished"
    assert without_seconds(history) == without_seconds(expected)
    assert_same(second.values(), whole.values())
    assert_same(random_values(second), random_values(whole))
    if noise:
        assert (random_values(second)[0] != random_values(first)[0]).any()
    lines = (tmp_path / "parts" / "log.csv").read_text().splitlines()
    assert [line.split(",")[0] for line in lines] == ["epoch", "1", "2", "3"]
    assert history["seconds"] == sorted(history["seconds"])


def test_early_stopping_and_plateau_go_on_where_they_were(tmp_path):
    losses = [5, 4, 4.5, 4.2, 4.1, 3.9, 4.0, 4.0, 4.0, 4.0, 1.0]

    def build(folder, start=0):
        model, waiting = Model(), iter(losses[start:])
        how = {"valid": lambda *_: next(waiting), "valid_data": dataset(2), "checkpoint": folder}
        how.update(learning_rate=model.rate, schedule=ReduceOnPlateau(0.1, 0.5, patience=2))
        return model, plain(model, callbacks=[EarlyStopping(4, restore_best=True)], **how)

    whole, trainer = build(tmp_path / "whole")
    expected = trainer.run(len(losses))
    assert (expected.status, len(expected)) == ("stopped", 10)
    parts = tmp_path / "parts"
    build(parts)[1].run(2)
    build(parts, 2)[1].run(8, resume=True)
    model, trainer = build(parts, 8)
    history = trainer.run(len(losses), resume=True)
    assert without_seconds(history) == without_seconds(expected)
    assert history["learning_rate"] == [0.1] * 4 + [0.05] * 4 + [0.025] * 2
    assert_same([model.w.get_value()], [whole.w.get_value()])
    again, trainer = build(parts)
    newest = Checkpoints(parts).newest()
    written = newest.stat().st_ino
    assert len(trainer.run(100, resume=True)) == 10
    assert newest.stat().st_ino == written  # there was nothing to write
    assert_same([again.w.get_value()], [whole.w.get_value()])


def test_the_last_and_the_best_are_kept(tmp_path):
    losses = iter([5.0, 3.0, 4.0, 4.0, 3.5, 9.0, 9.0])
    how = {"valid": lambda *_: next(losses), "valid_data": dataset(2)}
    model, other, after = Model(), Model(), []
    note = [lambda *_: after.append(model.w.get_value())]
    plain(model, checkpoint=Checkpoints(tmp_path, keep=2), callbacks=note, **how).run(5)
    assert names_in(tmp_path) == ["best.npz", "step-000000016.npz", "step-000000020.npz"]
    with pytest.raises(CheckpointError, match="monitor: 'valid_loss' in the checkpoint, 'train_"):
        plain(other).resume(tmp_path / "best.npz")
    trainer = plain(other, checkpoint=tmp_path, **how)
    assert trainer.resume(tmp_path / "best.npz")
    assert (trainer.epoch, trainer.step) == (2, 8)
    assert_same([other.w.get_value()], [after[1]])
    trainer.run(3)
    assert names_in(tmp_path) == ["best.npz", "step-000000012.npz"]


@pytest.mark.parametrize(
    "settings, steps",
    [
        ({"every_steps": 3, "keep": None}, [3, 4, 6, 8, 9]),
        ({"every_steps": 3, "keep": 2}, [8, 9]),
        ({"every_epochs": 2, "keep": None}, [8, 9]),
        ({"every_epochs": 0, "keep": None}, [9]),
    ],
)
def test_when_checkpoints_are_written(tmp_path, settings, steps):
    checkpoint = Checkpoints(tmp_path, best=False, **settings)
    plain(Model(), checkpoint=checkpoint, callbacks=[StopAt(9)]).run(9)
    assert [int(path.stem[5:]) for path in checkpoint.paths()] == steps
    assert {path.suffix for path in tmp_path.iterdir()} == {".npz"}


def test_a_folder_of_another_training_is_not_mixed_with(tmp_path):
    model = Model()
    assert plain(model, checkpoint=tmp_path).resume() is False
    plain(model, checkpoint=tmp_path).run(1)
    before = files_of(tmp_path)
    for call in (lambda t: t.run(2), lambda t: t.save()):
        trainer = plain(model, checkpoint=tmp_path)
        with pytest.raises(CheckpointError, match=r"earlier training.*resume=True"):
            call(trainer)
        assert trainer.step == 0
    assert files_of(tmp_path) == before
    assert plain(model, checkpoint=tmp_path / "other").save().name == "step-000000000.npz"
    for call, message in [
        (plain(model).resume, "without path needs a folder"),
        (plain(model).save, "no folder"),
        (lambda: Checkpoints(tmp_path, keep=0), "keep is 0; expected at least 1"),
    ]:
        with pytest.raises(ValueError, match=message):
            call()


def test_a_checkpoint_holds_no_pickles_and_numbers_to_the_last_bit(tmp_path):
    plain(Model(noise="numpy"), checkpoint=tmp_path).run(1)
    (path,) = Checkpoints(tmp_path).paths()
    with zipfile.ZipFile(path) as file:
        assert all(name.endswith(".npy") for name in file.namelist())
    with np.load(path, allow_pickle=False) as file:
        header = json.loads(str(file["meta"]))
        assert all(not file[name].dtype.hasobject for name in file.files)
    assert (header["format"], header["version"]) == ("synkhronos training checkpoint", 1)
    plain_content = {"floats": [0.1 + 0.2, 5e-324], "big": 2**127 + 1, "none": None, "flag": True}
    arrays = [np.arange(3, dtype="int8"), np.zeros((0, 2))]
    content = {**plain_content, "nested": [{"a": arrays[0]}, {"b": [np.float32(0.1), arrays[1]]}]}
    checkpoint_file.write_file(tmp_path / "c.npz", content)
    for wrong in ({"a": object()}, {"a": np.array([None])}):
        with pytest.raises(TypeError, match="a checkpoint keeps numbers, strings"):
            checkpoint_file.write_file(tmp_path / "c.npz", wrong)
    back = checkpoint_file.read_file(tmp_path / "c.npz")
    (first, second) = back.pop("nested")
    assert back == plain_content
    assert second["b"][0] == np.float32(0.1)
    for array, expected in zip([first["a"], second["b"][1]], arrays):
        assert array.dtype == expected.dtype
        assert array.shape == expected.shape
        np.testing.assert_array_equal(array, expected)


def test_a_folder_with_nothing_but_the_best_is_gone_on_with_too(tmp_path):
    def die(trainer, record):
        if trainer.epoch == 3:
            raise KeyboardInterrupt

    folder = Checkpoints(tmp_path, every_epochs=0)
    with pytest.raises(KeyboardInterrupt):
        plain(Model(), checkpoint=folder, callbacks=[die]).run(4)
    assert names_in(tmp_path) == ["best.npz"]
    with pytest.raises(CheckpointError, match=r"newest is best\.npz"):
        plain(Model(), checkpoint=folder).run(4)
    model, whole = Model(), Model()
    trainer = plain(model, checkpoint=folder)
    assert trainer.resume()
    assert trainer.epoch == 2
    trainer.run(4)
    plain(whole).run(4)
    assert_same(model.values(), whole.values())


def test_an_unfinished_file_of_a_killed_run_is_no_checkpoint(tmp_path):
    """That the old file stays until then: test_files.py of synk-core."""
    for name in ("step-000000001", "best"):
        (tmp_path / f".{name}.npz.abc.tmp").touch()
    folder = Checkpoints(tmp_path)
    assert folder.newest() is None
    folder.write(2, {"new": 2})
    assert names_in(tmp_path) == ["step-000000002.npz"]


def test_a_checkpoint_of_another_training_changes_nothing(tmp_path):
    def build(params="wv", rule=updates.momentum, dtype="float64", width=3, **settings):
        x = T.matrix("x", dtype=dtype)
        shareds = [engine.shared(np.ones(width, dtype), name=name) for name in params]
        rate = engine.shared(np.asarray(0.1, dtype), name="rate")
        loss = ((x.dot(sum(shareds)) - 1) ** 2).mean()
        train = make_train_function_theano(loss, shareds, [x], rule, learning_rate=rate)
        how = {"batch_size": 4, "learning_rate": rate, "callbacks": [EarlyStopping(9)], **settings}
        how["callbacks"] = [*how["callbacks"], StopAt(2)]
        data = np.random.RandomState(3).randn(10, width).astype(dtype)
        return train, Trainer(train, data, checkpoint=tmp_path, verbose=False, **how)

    build()[1].run(1)
    other = np.random.Generator(np.random.MT19937(0))
    for here, *messages in [
        ({"params": "wu"}, r"params: .*, v float64\(3,\) in the checkpoint, .*, u float64"),
        ({"width": 4}, r"params: w float64\(3,\)", r"optimizer: .*velocity\(v\)"),
        ({"dtype": "float32"}, r"v float64\(3,\) in the checkpoint, .*v float32\(3,\) here"),
        (
            {"params": "w", "rule": updates.sgd},
            r"params: w .*, v .* in the checkpoint, w float64\(3,\) here",
            "optimizer: .* in the checkpoint, none here",
        ),
        ({"learning_rate": None}, "learning_rate: .* in the checkpoint, none here"),
        ({"batch_size": 5}, "batch_size: 4 in the checkpoint, 5 here"),
        ({"seed": np.random.RandomState(0)}, "rows were shuffled by a Generator"),
        ({"seed": other}, "seed: the generator refuses its state"),
        ({"callbacks": []}, "callback or sync: EarlyStopping in the checkpoint, none"),
        ({"mode": "max"}, "mode: 'min' in the checkpoint, 'max' here"),
    ]:
        train, trainer = build(**here)
        shareds = [*train.state.params, *train.state.optimizer]
        for shared in shareds:
            shared.set_value(shared.get_value() + 1)  # so that a load could be seen
        before = [shared.get_value() for shared in shareds]
        with pytest.raises(CheckpointError) as refused:
            trainer.resume()
        assert all(re.search(message, str(refused.value)) for message in messages)
        assert_same([shared.get_value() for shared in shareds], before)
        assert trainer.step == 0


@pytest.mark.parametrize("when, stop", [("on_epoch_end", 4), ("on_step_end", 3)])
def test_a_checkpoint_by_a_callback_has_the_notes_of_later_callbacks(tmp_path, when, stop):
    class Steps(Callback):
        seen = None  # nothing at first

        def on_step_end(self, trainer, loss):
            self.seen = trainer.step

        def state(self):
            return {"seen": self.seen}

        def load_state(self, state):
            """Without which a state is not saved."""

    saving = Callback()
    setattr(saving, when, lambda trainer, _: trainer.save())
    folder = Checkpoints(tmp_path, every_epochs=0, best=False)
    callbacks = [saving, Steps(), EarlyStopping(2), StopAt(stop)]
    history = plain(Model(), checkpoint=folder, callbacks=callbacks).run(1)
    content = checkpoint_file.read_file(folder.newest())
    assert content["callbacks"][0]["state"] == {"seen": stop}
    best = history["train_loss"][0] if history.records else np.inf
    assert content["callbacks"][1]["state"]["best"] == content["progress"]["best"] == best


def overflowing(folder, step):
    """A training whose parameters overflow in a step; the losses up to there are finite."""
    model, rates = Model(rule=updates.sgd), {step - 1: 1e308}
    how = {"schedule": lambda t: rates.get(t, 0.05), "schedule_by": "step"}
    return model, plain(model, checkpoint=folder, learning_rate=model.rate, **how), rates


@pytest.mark.parametrize(
    "settings, step, kept",
    [
        # The end of an epoch, whose mean is the best so far; its file would take that place.
        ({}, 8, {"best.npz", "step-000000004.npz"}),
        ({"every_steps": 3, "keep": 1, "best": False}, 6, {"step-000000004.npz"}),
    ],
)
def test_parameters_that_are_not_finite_take_no_checkpoints_place(tmp_path, settings, step, kept):
    model, trainer, rates = overflowing(Checkpoints(tmp_path, **settings), step)
    trainer.run(1)
    before = files_of(tmp_path)
    assert set(before) == kept
    message = rf"parameter w is not finite after step {step}.*resume\(\).*watch_finite\(\)"
    for act in (lambda: trainer.run(3), trainer.save):
        with pytest.raises(FloatingPointError, match=message):
            act()
        assert trainer.step == step
        assert files_of(tmp_path) == before

    # The cure of the message: go back, and choose another rate.
    rates.clear()
    assert trainer.resume()
    history = trainer.run(3)
    twin, whole, rates = overflowing(None, 0)
    expected = whole.run(3)
    assert_same(model.values(), twin.values())
    assert history["train_loss"] == expected["train_loss"]
