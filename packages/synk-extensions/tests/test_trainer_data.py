"""The Trainer with rows in files, and with batches that the program makes: as with arrays."""

from __future__ import annotations

import contextlib
import itertools
import os
import signal
import threading

import numpy as np
import pytest
from _training import Model, StopAt, assert_close, assert_same, dataset, forked, without_seconds

import synkhronos as synk
from synk_testing.engine import engine
from synk_testing.files import StandIn
from synkhronos.extensions.batches import index_batches
from synkhronos.extensions.train import (
    Callback,
    CheckpointError,
    Trainer,
    exponential,
    make_train_function,
    make_train_function_theano,
)

SIZE = 17  # three batches of 50 rows, the last one smaller


@pytest.fixture(scope="module", params=["parallel", "serial"])
def setting(request):
    """A model, its function for validation, and the values that it starts with."""
    parallel = request.param == "parallel"
    with forked(2) if parallel else contextlib.nullcontext():
        model = Model(make_train_function if parallel else make_train_function_theano)
        function = synk.function if parallel else engine.function
        model.validate = function([model.x, model.y], [model.clean, model.error])
        yield model, model.values(), parallel


@pytest.fixture
def model(setting):
    model, start, parallel = setting
    model.is_parallel = parallel
    state = model.train.state

    def reset():
        for shared, value in zip([*state.params, *state.optimizer, model.rate], start):
            shared.set_value(value)
            if parallel:
                synk.broadcast(shared)

    model.reset = reset
    reset()
    return model


def rows(epoch):
    """Return those that a Trainer with seed 0 uses in its epoch."""
    generator = np.random.default_rng(0)
    for _ in range(epoch):
        generator.permutation(50)
    return index_batches(50, SIZE, generator)


def batches(epoch):
    x, y = dataset()
    return ((x[chosen], y[chosen]) for chosen in rows(epoch))


def trained(model, data, size=SIZE, epochs=3, valid_data=None, stop=None, **settings):
    model.reset()
    how = {"valid": model.validate, "valid_data": valid_data or dataset(23, seed=2), **settings}
    how.update(learning_rate=model.rate, schedule=exponential(0.1, 0.9), schedule_by="step")
    how.update(valid_names=["error"], callbacks=[StopAt(stop)], verbose=False)
    history = Trainer(model.train, data, size, **how).run(epochs, resume="checkpoint" in settings)
    return model.values(), without_seconds(history)


def assert_as(one, other):
    assert_same(one[0], other[0])
    assert one[1] == other[1]


def test_rows_of_a_file_and_batches_of_a_function_are_those_of_arrays(model):
    x, y = dataset()
    expected = trained(model, (x, y))
    for data, size in (((StandIn(x), y), SIZE), (batches, None)):
        assert_as(trained(model, data, size), expected)


def test_a_loader_is_iterated_anew_for_each_epoch(model):
    class Loader:
        epochs = 0

        def __len__(self):
            return 3

        def __iter__(self):
            self.epochs += 1
            return map(list, batches(0))

    loader = Loader()
    assert_as(trained(model, loader, None), trained(model, lambda _epoch: batches(0), None))
    assert loader.epochs == 3


@pytest.mark.parametrize("stop", [1, 3, pytest.param(4, marks=pytest.mark.nightly)])
def test_a_resumed_training_draws_the_batches_that_are_left(model, stop, tmp_path):
    uninterrupted = trained(model, batches, None, 2)
    asked = []

    def noted(epoch):
        asked.append(epoch)
        return batches(epoch)

    trained(model, noted, None, 2, stop=stop, checkpoint=tmp_path)
    assert asked == [0, 1][: 1 + (stop > 3)]
    assert_as(trained(model, noted, None, 2, checkpoint=tmp_path), uninterrupted)


def test_a_run_that_failed_continues_its_epoch(model):
    asked, failing = [], True

    def data(epoch):
        asked.append(epoch)
        for place, batch in enumerate(batches(epoch)):
            if failing and place == 2:
                raise OSError("the disk is gone")
            yield batch

    trainer = Trainer(model.train, data, verbose=False)
    with pytest.raises(OSError, match="the disk is gone"):
        trainer.run(1)
    assert (trainer.epoch, trainer.step) == (0, 2)
    failing = False
    trainer.run(2)
    values = model.values()
    model.reset()
    Trainer(model.train, batches, verbose=False).run(2)
    assert_same(values, model.values())
    assert asked == [0, 0, 1]


@pytest.mark.parametrize("number, steps", [(signal.SIGTERM, 3), (signal.SIGINT, 4)])
def test_a_signal_ends_the_wait_for_a_batch(model, ctrl_c, tmp_path, number, steps):
    taken, over, late = threading.Event(), threading.Event(), []

    counting = Callback()
    counting.on_step_end = lambda trainer, _: trainer.step == steps and taken.set()

    def waiting(epoch):
        for place, batch in enumerate(batches(epoch)):
            if 3 * epoch + place == steps:
                assert taken.wait(60)
                os.kill(os.getpid(), number)
                if not over.wait(60):
                    late.append(number)
            yield batch

    settings = {"on_sigterm": "checkpoint", "checkpoint": tmp_path, "verbose": False}
    trainer = Trainer(model.train, waiting, callbacks=[counting], **settings)
    try:
        if number == signal.SIGTERM:
            with pytest.raises(SystemExit, match="143"):
                trainer.run(2)
        else:
            assert trainer.run(2).interrupted
    finally:
        over.set()
    assert (trainer.step, late) == (steps, [])
    Trainer(model.train, batches, **settings).run(2, resume=True)
    resumed = model.values()
    model.reset()
    Trainer(model.train, batches, verbose=False).run(2)
    assert_same(resumed, model.values())


def test_validation_reads_a_file_slice_by_slice(model):
    x, y = dataset(23, seed=2)

    def losses(**settings):
        _, records = trained(model, dataset(), **settings)
        return [record[name] for record in records for name in ("valid_loss", "valid_error")]

    expected = losses()
    for slices, lengths in ((4, [6, 6, 6, 5]), (40, [1] * 23)):
        source = StandIn(x)
        assert_close(losses(valid_data=(source, y), valid_slices=slices), expected)
        assert source.read == lengths * 3


def test_a_function_that_makes_no_batches_is_reported(model):
    before = model.values()
    for data, error, text in [
        (lambda _epoch: None, TypeError, r"data\(0\) returned None; expected an iterable"),
        (lambda _epoch: [], ValueError, "data gave no batch for epoch 0"),
        (lambda _epoch: [5.0], TypeError, "got 1 inputs|got 1 values"),
        (lambda _epoch: [None], TypeError, r"a batch is None; expected an array for each input"),
        (lambda _epoch: [{"x": 1}], TypeError, r"a batch is {'x': 1}; expected an array for each"),
        (lambda _epoch: ["ab"], TypeError, r"a batch is 'ab'; expected an array for each"),
        (lambda epoch: [batches(epoch)], TypeError, "a batch is <generator .* expected an array"),
        (lambda _epoch: [dataset(0)], ValueError, "a batch of epoch 0 has no rows; expected at"),
    ]:
        with pytest.raises(error, match=text):
            Trainer(model.train, data, verbose=False).run(1)
        assert_same(model.values(), before)


def test_none_in_place_of_a_batch_does_not_end_an_epoch(model):
    trainer = Trainer(model.train, lambda epoch: [*batches(epoch), None], verbose=False)
    with pytest.raises(TypeError):
        trainer.run(1)
    assert (trainer.epoch, trainer.step) == (0, 3)
    model.reset()
    losses = model.train.steps(itertools.chain(batches(0), [None]))
    assert len([*itertools.islice(losses, 3)]) == 3
    with pytest.raises(TypeError):
        next(losses)


def test_a_checkpoint_of_batches_does_not_fit_rows_and_the_reverse(model, tmp_path):
    trained(model, batches, None, 1, stop=2, checkpoint=tmp_path / "batches")
    trained(model, dataset(), epochs=1, checkpoint=tmp_path / "rows")
    with pytest.raises(CheckpointError, match="shuffled by a loader, here by a Generator"):
        trained(model, dataset(), checkpoint=tmp_path / "batches")
    with pytest.raises(CheckpointError, match="by a Generator, here batches come from a loader"):
        trained(model, batches, None, checkpoint=tmp_path / "rows")
