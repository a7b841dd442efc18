"""Files of a training, in hostile places and from hostile hands."""

from __future__ import annotations

import contextlib
import copy
import io
import json
import os
import random
import stat
import tracemalloc
import zipfile

import numpy as np
import pytest
from _training import Model, StopAt, assert_same, plain

from synk_testing.engine import STREAMS, engine
from synkhronos.exceptions import InputValueError
from synkhronos.extensions.train import CheckpointError, Checkpoints, EarlyStopping, ReduceOnPlateau
from synkhronos.extensions.train._ranks import to_row
from synkhronos.extensions.weights import load_weights, save_weights


def test_files_of_a_training_are_private_and_follow_no_planted_link(tmp_path):
    """Whatever the umask. The links of drafts: test_files.py of synk-core."""
    new, shared, model = tmp_path / "new" / "checkpoints", tmp_path / "shared", Model()
    before = os.umask(0)
    try:
        plain(model, checkpoint=new, log=tmp_path / "logs" / "log.csv").run(2)
        save_weights(new / "weights.npz", model.params)
    finally:
        os.umask(before)
    modes = {path: stat.S_IMODE(path.stat().st_mode) for path in tmp_path.rglob("*")}
    assert modes == {path: 0o700 if path.is_dir() else 0o600 for path in modes}
    assert len(modes) == 8
    shared.mkdir()
    (shared / "step-000000008.npz").symlink_to(tmp_path / "absent")
    (shared / ".step-000000001.npz.tmp").mkdir()
    plain(model, checkpoint=shared).run(2)
    assert not (tmp_path / "absent").exists()
    files = {path.name for path in shared.iterdir() if path.is_file() and not path.is_symlink()}
    assert files == {"best.npz", "step-000000004.npz", "step-000000008.npz"}


@pytest.mark.parametrize("planted", ["link", "folder"])
def test_a_log_that_became_something_else_meanwhile_is_an_error(tmp_path, planted):
    path, precious = tmp_path / "log.csv", tmp_path / "precious"
    precious.write_bytes(b"precious")

    def plant(trainer, record):
        path.unlink()
        if planted == "folder":
            path.mkdir()
        else:
            path.symlink_to(precious)
            os.chown(path, 65534, 65534, follow_symlinks=False)

    if planted == "link" and os.geteuid():
        pytest.skip("needs root, to be another user")
    with pytest.raises(OSError, match=r"link of another user|is a folder"):
        plain(Model(), log=path, callbacks=[plant]).run(2)
    assert precious.read_bytes() == b"precious"


LAST = [*STREAMS][-1]
MOST_BYTES, BOMB = 16 << 20, 40 << 20
"""What reading a small file may need; and what it would, if such a member was unpacked."""


def with_memories(model, folder, *callbacks, seed=0):
    how = {"learning_rate": model.rate, "schedule": ReduceOnPlateau(0.1, patience=1)}
    callbacks = [EarlyStopping(9, restore_best=True), *callbacks]
    return plain(model, seed=seed, checkpoint=folder, callbacks=callbacks, **how)


def state_of(model, trainer):
    """Everything that loading a checkpoint changes, for comparison."""
    rows = [variable.get_value() for variable in model.train.state.random]
    rows = [value if isinstance(value, np.ndarray) else to_row(value) for value in rows]
    more = trainer._sampler.get_state(), [part.state() for part in trainer._contents.stateful]
    return [*model.values(), *rows], repr((more, trainer._progress))


def assert_state(model, trainer, expected, note=None):
    values, text = state_of(model, trainer)
    assert_same(values, expected[0])
    assert text == expected[1], note


@pytest.fixture(scope="module", params=["seed", pytest.param("MT19937", marks=pytest.mark.nightly)])
def good(request, tmp_path_factory):
    """A model, and its checkpoint within an epoch, as members by name."""
    folder, model = tmp_path_factory.mktemp("good"), Model(noise=LAST, running=True)
    seed = 0 if request.param == "seed" else np.random.Generator(np.random.MT19937(7))
    with_memories(model, folder, StopAt(6), seed=seed).run(9)
    (path,) = [path for path in Checkpoints(folder).paths() if "06" in path.name]
    return model, path, copy.deepcopy(seed)


def npy(array, version=(1, 0), pickled=False):
    file = io.BytesIO()
    np.lib.format.write_array(file, array, version, allow_pickle=pickled)
    return file.getvalue()


def head(shape, kind="<f8", more=b""):
    """An array's beginning, whatever follows."""
    file = io.BytesIO()
    header = {"descr": kind, "fortran_order": False, "shape": shape}
    np.lib.format.write_array_header_1_0(file, header)
    return file.getvalue() + more


HOSTILE_MEMBERS = [
    npy(np.array([{}]), pickled=True),
    *map(npy, [np.zeros(3, [("a", "i4"), ("b", "f8")]), np.array("text"), np.zeros(4, ">f8")]),
    *map(npy, [np.full((4,), np.nan), np.full((627,), 1e9), np.full((629,), -1e300)]),
    *(npy(np.zeros(4), version) for version in [(2, 0), (3, 0)]),
    b"\x93NUMPY\x02\x00\xff\xff\xff\x7f{",
    *map(head, [(1 << 40,), (1 << 62, 1 << 62), (-4,), (10**30,)]),
    *(head((), kind) for kind in (f"<U{BOMB}", f"|V{BOMB}")),
    head((BOMB >> 3,), more=bytes(1 << 16)),
    b"",
    b"PK\x03\x04",
]
HOSTILE = [
    *(-1, 0, 1, 5, 2**31, 2**63, 10**400, -(10**400), float("nan"), float("inf"), -float("inf")),
    *(1e308, True, None, "", "text", "1", [], {}, [[]], {"a": 1}, [1.0] * 9),
    *({"__array__": "meta"}, {"__array__": "gone"}, {"__array__": []}, [None]),
]


def leaves(value, place=()):
    """Places of all values within the JSON text."""
    yield place
    if isinstance(value, (dict, list)):
        for key, item in value.items() if isinstance(value, dict) else enumerate(value):
            yield from leaves(item, (*place, key))


def flip(chance, data):
    data = bytearray(data)
    for _ in range(chance.randint(1, 3)):
        data[chance.randrange(len(data))] ^= 1 << chance.randrange(8)
    return bytes(data)


def cut(chance, data):
    place = chance.randrange(len(data))
    return data[:place] + data[place + chance.randrange(400) :]


def packed(members, **how):
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", **how) as file:
        for name, content in members.items():
            file.writestr(name, content)
    return out.getvalue()


def unpacked(data):
    with zipfile.ZipFile(io.BytesIO(data)) as file:
        return {name: file.read(name) for name in file.namelist()}


def edited(change):
    """Return a change of the JSON text's content, or of the other members."""

    def edit(data):
        members = unpacked(data)
        header = json.loads(str(np.lib.format.read_array(io.BytesIO(members["meta.npy"]))))
        change(header, header["content"], members)
        members["meta.npy"] = npy(np.array(json.dumps(header)))
        return packed(members)

    return edit


def change_member(chance, data):
    members = unpacked(data)
    members[chance.choice(sorted(members))] = chance.choice(HOSTILE_MEMBERS)
    return packed(members)


def change_text(chance, data):
    def change(header, *_):
        *place, last = chance.choice([place for place in leaves(header) if place])
        part = header
        for key in place:
            part = part[key]
        part[last] = chance.choice(HOSTILE)
        if chance.random() < 0.15:
            del part[last]

    return edited(change)(data)


def forget_best(content, number):
    del content["callbacks"][number]["state"]["best"]


def with_a_bomb(data):
    members = {**unpacked(data), "meta.npy": head((BOMB,), "|u1", bytes(BOMB))}
    return packed(members, compression=zipfile.ZIP_DEFLATED)


def turn_a_bit(data):
    with zipfile.ZipFile(io.BytesIO(data)) as file:
        place = file.getinfo("array_0.npy").header_offset + 190
    return data[:place] + bytes([data[place] ^ 1]) + data[place + 1 :]


DAMAGES = [
    (turn_a_bit, "CRC"),
    (with_a_bomb, "meta is larger than the file"),
    (lambda data: packed({"meta.npy": npy(np.array([{}]), pickled=True)}), "allow_pickle"),
    (edited(lambda header, *_: header.update(version=2)), "version 2, expected .* version 1"),
    (edited(lambda _, content, __: content.pop("progress")), "'progress'"),
    (edited(lambda _, content, __: content["progress"].pop("sums")), "sums"),
    (edited(lambda _, content, __: content["variables"].pop("local")), "'local'"),
    (edited(lambda *_: _[2].pop("array_1.npy")), "array_1.*in the archive"),
    (edited(lambda _, content, __: forget_best(content, 0)), "ReduceOnPlateau refused its state"),
    (edited(lambda _, content, __: forget_best(content, 1)), "EarlyStopping refused its state"),
]


def test_a_damaged_checkpoint_is_reported_and_changes_nothing(good, tmp_path):
    model, path, generator = good
    data, file = path.read_bytes(), tmp_path / "step-000000006.npz"
    trainer = with_memories(model, tmp_path, seed=copy.deepcopy(generator))
    before = state_of(model, trainer)
    with pytest.raises(CheckpointError, match="No such file"):
        trainer.resume(file)
    for damage, message in DAMAGES:
        file.write_bytes(damage(data))
        with pytest.raises(CheckpointError, match=message):
            trainer.resume(file)
        assert_state(model, trainer, before)


HARMLESS = (flip, cut)
MUTATIONS = (*HARMLESS, change_member, *3 * [change_text])


@pytest.mark.parametrize(
    "seed", [0, *(pytest.param(seed, marks=pytest.mark.nightly) for seed in range(1, 9))]
)
def test_whatever_a_checkpoint_holds_it_is_loaded_whole_or_refused(good, tmp_path, seed):
    model, path, generator = good
    data, chance = path.read_bytes(), random.Random(seed)
    file = tmp_path / "step-000000006.npz"
    trainer = with_memories(model, tmp_path, seed=copy.deepcopy(generator))
    trainer.resume(path)
    whole = state_of(model, trainer)
    loaded = 0
    tracemalloc.start()
    try:
        for number in range(100):
            kind = chance.choice(MUTATIONS)
            file.write_bytes(kind(chance, data))
            trainer = with_memories(model, tmp_path, seed=copy.deepcopy(generator))
            before = state_of(model, trainer)
            tracemalloc.reset_peak()
            held = tracemalloc.get_traced_memory()[0]
            try:
                trainer.resume(file)
            except CheckpointError:
                assert_state(model, trainer, before, (number, kind))
                continue
            finally:
                assert tracemalloc.get_traced_memory()[1] - held < MOST_BYTES, (number, kind)
            loaded += 1
            if kind in HARMLESS:
                assert_state(model, trainer, whole, (number, kind))
            # A parameter may be NaN, and what EarlyStopping kept of other shapes.
            with contextlib.suppress(FloatingPointError, CheckpointError):
                trainer.run(trainer.epoch + 1)
    finally:
        tracemalloc.stop()
    assert loaded, "some harmless ones were among them"


def test_whatever_a_file_of_weights_holds_it_is_loaded_whole_or_refused(tmp_path):
    values = {"w": np.arange(6.0).reshape(2, 3), "b": np.float64(2.5), "n": np.arange(4)}
    path = tmp_path / "w.npz"
    variables = [engine.shared(value * 0, name=name) for name, value in values.items()]
    members = {f"{name}.npy": npy(np.asarray(value)) for name, value in values.items()}
    bombs = [(name, head((BOMB >> 3,), more=bytes(BOMB)), zipfile.ZIP_DEFLATED) for name in "wx"]
    stored = zipfile.ZIP_STORED
    others = [(name, content, stored) for name in values for content in HOSTILE_MEMBERS]
    lzma = [("w", head((2, 3), more=bytes(BOMB)), zipfile.ZIP_LZMA)]
    for name, content, kind in [*bombs, *others, *lzma]:
        path.write_bytes(packed({**members, f"{name}.npy": content}, compression=kind))
        tracemalloc.start()
        try:
            with pytest.raises(InputValueError):
                load_weights(path, variables, strict=name in "xw")
            assert tracemalloc.get_traced_memory()[1] < MOST_BYTES
        finally:
            tracemalloc.stop()
        assert_same([v.get_value() for v in variables], [v * 0 for v in values.values()])


@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
def test_arrays_saved_by_numpy_without_names_are_loaded_in_order(tmp_path, save):
    values = [np.arange(6.0).reshape(2, 3), np.ones(3)]
    save(tmp_path / "w.npz", *values)
    variables = [engine.shared(value * 0, name=name) for name, value in zip("wb", values)]
    assert load_weights(tmp_path / "w.npz", variables) == ["w", "b"]
    assert_same([variable.get_value() for variable in variables], values)
    with pytest.raises(InputValueError, match=r"arr_0: in the file, but not in params"):
        load_weights(tmp_path / "w.npz", variables[:1])
