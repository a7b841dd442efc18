"""Weights by name: what was saved is on all ranks, or nothing has changed."""

from __future__ import annotations

import re

import numpy as np
import pytest
from _training import Model, assert_same, dataset, everywhere, forked, plain

import synkhronos as synk
from synk_testing.engine import STREAMS, T, engine
from synkhronos.exceptions import InputTypeError, InputValueError
from synkhronos.extensions.train import make_train_function
from synkhronos.extensions.weights import load_weights, save_weights

VALUES = {
    "w": np.arange(6.0).reshape(2, 3),
    "b": np.array([0.1, np.inf, -0.0]),
    "scale": np.float64(2.5),
    "count": np.int64(7),
    "half": np.float32([0.1]),
    "none": np.zeros((0, 3)),
    # What numpy.savez() takes for itself, and a name within a folder.
    "file": np.ones(1),
    "a/b.c d": np.ones(2),
    "meta": np.ones(3),
}


def shareds(values):
    return [engine.shared(value, name=name) for name, value in values.items()]


def values_of(variables):
    return [np.asarray(variable.get_value()) for variable in variables]


def assert_identical(values, others):
    assert_same(values, others)
    assert [value.dtype for value in values] == [other.dtype for other in others]


def test_values_come_back_as_they_were(tmp_path):
    saved, path = shareds(VALUES), tmp_path / "weights"
    for by_name in (list, lambda each: {v.name: v for v in each}):
        loaded = shareds({name: np.zeros_like(value) for name, value in VALUES.items()})
        assert save_weights(path, by_name(saved)) == list(VALUES)
        assert load_weights(path, by_name(loaded[::-1])) == list(VALUES)[::-1]
        assert_identical(values_of(loaded), values_of(saved))
        assert [entry.name for entry in tmp_path.iterdir()] == ["weights"]
    with np.load(path, allow_pickle=False) as file:
        assert_identical([file[name] for name in VALUES], values_of(saved))


@pytest.mark.parametrize("strict", [True, False])
def test_unfit_weights_change_nothing(tmp_path, strict):
    path, usual = tmp_path / "w.npz", {"w": np.ones((2, 3)), "b": np.ones(3)}
    save_weights(path, shareds({"w": np.zeros((2, 3)), "b": np.zeros(3)}))
    missing = "v: missing in the file; .: in the file, but not in params; .: in"
    for params, message in [
        ({**usual, "b": np.ones(4)}, r"b: shape \(3,\) in the file, \(4,\) here"),
        ({**usual, "w": np.ones((1, 3))}, r"w: shape \(2, 3\) in the file, \(1, 3\) here"),
        ({**usual, "w": np.ones((2, 3), "int64")}, "w: float64 in the file, int64 here"),
        ({"v": np.ones(1)}, missing),
    ]:
        variables = shareds(params)
        message = rf"w\.npz does not fit params: .*{message}.*Nothing was changed"
        with pytest.raises(InputValueError, match=message):
            load_weights(path, variables, strict=strict)
        assert_same(values_of(variables), list(params.values()))


def test_names_of_dicts_and_common_names(tmp_path):
    w, v = engine.shared(np.array([0.1, 1e-30, 3])), engine.shared(np.zeros(3, "float32"))
    save_weights(tmp_path / "w.npz", {"encoder": w, "other": w})
    assert load_weights(tmp_path / "w.npz", {"encoder": v, "c": w}, strict=False) == ["encoder"]
    assert_identical(values_of([v]), [np.float32([0.1, 1e-30, 3])])
    message = r"c: missing in the file; other: in the file.*strict="
    with pytest.raises(InputValueError, match=message):
        load_weights(tmp_path / "w.npz", {"encoder": v, "c": w})


@pytest.mark.parametrize("call", [save_weights, load_weights])
def test_wrong_params_are_refused(tmp_path, call):
    path = tmp_path / "w.npz"
    save_weights(path, engine.shared(1.0, name="w"))
    before = path.read_bytes()
    twice = [engine.shared(v, name="w") for v in (1.0, 2.0)]
    for params, error, message in [
        ([engine.shared(1.0)], InputValueError, "has the name None; expected a text: pass"),
        ({3: engine.shared(1.0)}, InputValueError, "has the name 3; expected a text"),
        (twice, InputValueError, "two variables have the name 'w'"),
        ([T.dvector("x")], InputTypeError, "got x; expected a Lasagne layer, or shared"),
        (3, InputTypeError, "got 3; expected a Lasagne layer"),
        ({"w": np.ones(3)}, InputTypeError, "expected a Lasagne layer"),
    ]:
        with pytest.raises(error, match=rf"{call.__name__}\(\): .*{message}"):
            call(path, params)
    if call is save_weights:
        streams = STREAMS["numpy"](seed=1)
        streams.uniform((2,))
        state = streams.state_updates[0][0]
        state.name = "state"
        with pytest.raises(InputTypeError, match=r"'state' is .*; expected shared variables that"):
            save_weights(path, [state])
    assert path.read_bytes() == before


def test_other_files_are_refused(tmp_path):
    """test_training_files.py has more hostile ones; test_files.py of synk-core, disks that fail."""
    path, w = tmp_path / "file.npz", engine.shared(1.0, name="w")
    path.write_bytes(b"PK\x03\x04 no")
    kept = plain(Model(), checkpoint=tmp_path / "kept").save()
    for file, message in [
        (path, "cannot be read"),
        (kept, r"is a checkpoint of a Trainer; .*trainer\.resume\(path\)"),
    ]:
        with pytest.raises(InputValueError, match=rf"{re.escape(str(file))} {message}"):
            load_weights(file, w)
    for call in (load_weights, save_weights):
        with pytest.raises(FileNotFoundError):
            call(tmp_path / "none" / "w.npz", w)
    assert w.get_value() == 1


def test_all_ranks_get_the_values(tmp_path):
    path = tmp_path / "w.npz"
    trained = Model()
    plain(trained).run(1)
    save_weights(path, trained.params)
    expected = values_of(trained.params)
    early = Model()
    load_weights(path, early.params)  # before there are ranks: distributed with the function
    with forked(2):
        model = Model(make_train_function)
        early_loss = synk.function([early.x, early.y], early.clean)
        synk.distribute()
        assert load_weights(path, model.params) == ["w", "b"]
        for values in [*everywhere(model.params), *everywhere(early.params)]:
            assert_same(values, expected)
        x, y = dataset(9)
        loss = ((x @ expected[0] + expected[1] - y) ** 2).mean()
        np.testing.assert_allclose(early_loss(x, y), loss)
        wrong = [model.w, engine.shared(np.ones(2), name="b")]
        synk.broadcast(model.w, np.ones(4))
        with pytest.raises(InputValueError):
            load_weights(path, wrong)
        for values in everywhere([model.w]):
            assert_same(values, [np.ones(4)])
        save_weights(path, model.params)
    closed = Model()
    load_weights(path, closed.params)  # there are no ranks any more
    assert_same(values_of(closed.params), [np.ones(4), expected[1]])


def network(lasagne, names, units=3):
    layers = lasagne.layers
    below = layers.InputLayer((None, 2))
    below = layers.DenseLayer(below, units, name=names[0])
    below = layers.NonlinearityLayer(below)
    left = layers.DenseLayer(below, units, name=names[1])
    right = layers.DenseLayer(below, units, W=left.W, name=names[2])  # it shares its weights
    return layers.ElemwiseSumLayer([left, right])


@pytest.mark.parametrize(
    "names, prefixes",
    [
        ([None] * 3, ("DenseLayer_0", "DenseLayer_1", "DenseLayer_2")),
        (["a", None, "c"], ("a", "DenseLayer_0", "c")),
    ],
)
def test_parameters_of_lasagnes_layers_have_the_names_of_their_layers(tmp_path, names, prefixes):
    lasagne = pytest.importorskip("lasagne")
    lasagne.random.set_rng(np.random.RandomState(0))
    saved = network(lasagne, names)
    first, second, third = prefixes
    expected = [f"{first}.W", f"{first}.b", f"{second}.W", f"{second}.b", f"{third}.b"]
    assert save_weights(tmp_path / "w.npz", saved) == expected
    loaded = network(lasagne, names)
    assert load_weights(tmp_path / "w.npz", [loaded]) == expected
    assert_same(*map(lasagne.layers.get_all_param_values, (loaded, saved)))
    with pytest.raises(InputValueError, match=rf"{first}\.W: shape \(2, 3\) in the file, \(2, 4\)"):
        load_weights(tmp_path / "w.npz", network(lasagne, names, units=4))
