"""Operations of several acts are done whole, undone or not begun, wherever Ctrl-C comes."""

from __future__ import annotations

import signal
from contextlib import nullcontext
from functools import partial
from types import CodeType, FunctionType, ModuleType

import numpy as np
import pytest
from _training import Model, dataset, everywhere, forked, without_seconds

from synk_core._workers import interrupts
from synk_core._workers.interrupts import LATER
from synk_testing.strikes import struck
from synkhronos.extensions import updates
from synkhronos.extensions.train import (
    EarlyStopping,
    ReduceOnPlateau,
    Trainer,
    _callbacks,
    _checkpoint_contents,
    _history,
    _learning_rate,
    _ranks,
    _serial,
    _trainer,
    find_learning_rate,
    make_train_function,
    make_train_function_theano,
)
from synkhronos.extensions.train._checkpoint_files import read_file
from synkhronos.extensions.train._ranks import OneProcess
from synkhronos.extensions.weights import load_weights, save_weights

MAKE = {"serial": make_train_function_theano, "parallel": make_train_function}


def codes_of(*sources):
    """The code of functions, and of all functions within them, or within a class or module."""
    found = set()
    for source in sources:
        inner = getattr(source, "co_consts", ())
        if isinstance(source, CodeType) and "synk" in source.co_filename:
            found.add(source)
        elif isinstance(source, FunctionType):
            inner = [source.__code__]
        elif isinstance(source, ModuleType):
            name = source.__name__
            inner = [v for v in vars(source).values() if getattr(v, "__module__", "") == name]
        elif isinstance(source, type):
            inner = vars(source).values()
        found |= codes_of(*inner) if inner else set()
    return found


def places_of(codes, act, step):
    """Act; return the first and last time of each line that it runs, but for `step` - 1 of each."""
    lines = struck(codes, (), act, LATER.is_pending).lines
    first = {line: place for place, line in reversed([*enumerate(lines, 1)])}
    last = {line: place for place, line in enumerate(lines, 1)}
    return sorted({*first.values(), *last.values()})[::step]


class Acts:
    """A training, acts that change it as a whole, and the code of the functions they go through."""

    def __init__(self, kind, folder):
        self.model = model = Model(MAKE[kind], updates.adam, noise="numpy", running=True)
        self.plateau = ReduceOnPlateau(0.1, 0.5, 2)
        stopping = EarlyStopping(9, restore_best=True)
        self.trainer = trainer = Trainer(
            model.train, dataset(), 17, learning_rate=model.rate, schedule=self.plateau,
            callbacks=[stopping], checkpoint=folder, verbose=False,
        )  # fmt: skip
        trainer.run(2)
        self.kind, state = kind, model.train.state
        self.random = list(state.random)
        self.shareds = [*state.params, *state.optimizer, *state.local, model.rate]
        path = folder / "weights"
        save_weights(path, model.params)
        self.acts = {
            "resume": trainer.resume,
            "rate": lambda: find_learning_rate(
                model.train, model.rate, dataset(), 17, 1e-4, 1.0, steps=4
            ),
            "set": lambda: trainer.set_values(stopping.state()["values"]),
        }
        if kind == "serial":  # with ranks it is one broadcast
            self.acts["load"] = lambda: load_weights(path, model.params)
        self.codes = codes_of(
            _trainer, _checkpoint_contents, _learning_rate, _ranks, _serial, _callbacks,
            interrupts.whole, interrupts._call_all,
        )  # fmt: skip

    def values(self):
        ranks = self.trainer._ranks
        (*states,) = ranks.perform([*map(ranks.get_states, self.random)])
        if self.kind == "parallel":
            values = [value for rank in everywhere(self.shareds) for value in rank]
        else:
            values = [np.array(shared.get_value()) for shared in self.shareds]
        trainer = self.trainer
        python = [trainer.step, trainer.epoch, len(trainer.records), *self.plateau.state().values()]
        return [*values, *map(np.array, states), np.array(python, dtype=float)]

    def drift(self):
        """Change everything that a checkpoint has."""
        self.trainer.run(3)
        ranks = self.trainer._ranks
        for shared in self.shareds:
            other = shared.get_value() * 0 + 7
            ranks.perform([ranks.set(None, [shared], [other.astype(shared.dtype)])])


@pytest.fixture(scope="module", params=["serial", "parallel"])
def acts(request, tmp_path_factory):
    usual = signal.signal(signal.SIGINT, signal.default_int_handler)
    with forked(2) if request.param == "parallel" else nullcontext():
        yield Acts(request.param, tmp_path_factory.mktemp("whole"))
    signal.signal(signal.SIGINT, usual)


def same(values, others):
    return all(map(np.array_equal, values, others))


@pytest.mark.parametrize("name", ["resume", "rate", "set", "load"])
@pytest.mark.parametrize("step", [29, pytest.param(1, marks=pytest.mark.nightly)])
def test_ctrl_c_leaves_all_as_it_was_or_done(acts, name, step):
    if name not in acts.acts:
        pytest.skip("not of this kind")
    act = acts.acts[name]
    acts.drift()
    before = acts.values()
    places = places_of(acts.codes, act, 1 if name in ("set", "load") else step)
    after = acts.values()
    assert name != "rate" or same(after, before)
    ends = set()
    for number, place in enumerate(places):
        if not same(acts.values(), before):
            acts.drift()
        # The second Ctrl-C of two comes soon after the first.
        strikes = {place, place + number % 3}
        lines, given, _ = struck(acts.codes, strikes, act, LATER.is_pending)
        values = acts.values()
        assert same(values, before) or same(values, after), lines[place - 1]
        ends.add(given)
    assert False in ends


def fresh(model, folder, values):
    OneProcess().perform([([*model.params, *model.train.state.optimizer], values)])
    callbacks = [lambda trainer, record: None, EarlyStopping(2, 3.0, restore_best=True)]
    return Trainer(
        model.train, dataset(), 17, callbacks=callbacks, checkpoint=folder, log=folder / "log.csv",
        learning_rate=model.rate, schedule=ReduceOnPlateau(0.05, 0.5, 1, 0.2), verbose=False,
    )  # fmt: skip


def results(model, trainer, folder):
    log = [line.split(",") for line in (folder / "log.csv").read_text().splitlines()]
    files = {p.name: read_file(p) for p in folder.glob("*.npz")}
    for content in files.values():
        content["progress"].pop("seconds")
        content["progress"]["records"] = without_seconds(content["progress"]["records"])
    left = without_seconds(trainer.records), trainer.step, [[*a[:2], *a[3:]] for a in log]
    return repr((left, sorted(files.items()), [v.tolist() for v in model.values()]))


@pytest.mark.parametrize("step", [37, pytest.param(1, marks=pytest.mark.nightly)])
def test_the_next_run_after_two_ctrl_c_equals_an_uninterrupted_one(ctrl_c, tmp_path, step):
    model = Model(rule=updates.adam)
    start = [v.get_value() for v in [*model.params, *model.train.state.optimizer]]
    codes = codes_of(_trainer, _callbacks, _history, _serial, _learning_rate, interrupts.whole)
    trainer = fresh(model, tmp_path / "whole", start)
    places = places_of(codes, lambda: trainer.run(6), step)
    expected = results(model, trainer, tmp_path / "whole")
    assert 2 < trainer.epoch < 6  # it was stopped
    ends = []
    for place in places:
        trainer = fresh(model, tmp_path / str(place), start)
        run, strikes = partial(trainer.run, 6), {place, place + 1}
        lines, given, _ = struck(codes, strikes, run, LATER.is_pending)
        ends.append(given)
        trainer.run(6)
        assert results(model, trainer, tmp_path / str(place)) == expected, lines[place - 1]
        assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    assert False in ends
