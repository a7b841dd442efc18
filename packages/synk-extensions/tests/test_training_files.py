"""Files of a training, in hostile places and from hostile hands."""

from __future__ import annotations

import json
import os
import select
import stat
from pathlib import Path

import pytest
from _training import Model, dataset

from synkhronos.extensions.train import Trainer
from synkhronos.extensions.weights import save_weights


def trained(model=None, **settings):
    trainer = Trainer((model or Model()).train, dataset(), 16, verbose=False, **settings)
    return trainer, trainer.run(2)


def test_what_a_training_writes_is_its_users_alone_and_follows_no_planted_link(tmp_path):
    precious = tmp_path / "precious"
    precious.write_bytes(b"precious")
    models = [Model(), Model()]
    before = os.umask(0)
    try:
        new, shared = tmp_path / "new" / "checkpoints", tmp_path / "shared"
        shared.mkdir()
        names = [f".{name}.npz" for name in ("best", "step-000000004", "step-000000008")]
        for name in [*(f"{name}.tmp" for name in names), ".log.csv.tmp"]:
            (shared / name).symlink_to(precious)
        (shared / "step-000000008.npz").symlink_to(tmp_path / "absent")
        (shared / ".step-000000001.npz.tmp").mkdir()
        trained(models[0], checkpoint=new, log=tmp_path / "logs" / "log.csv")
        trained(models[1], checkpoint=shared, log=shared / "log.csv")
        save_weights(new / "weights.npz", models[1].params)
    finally:
        os.umask(before)
    assert precious.read_bytes() == b"precious"
    assert not (tmp_path / "absent").exists()
    made = [path for path in tmp_path.rglob("*") if path not in (precious, shared)]
    modes = {p: stat.S_IMODE(p.lstat().st_mode) for p in made if not p.is_symlink()}
    del modes[shared / ".step-000000001.npz.tmp"]
    assert modes == {path: 0o700 if path.is_dir() else 0o600 for path in modes}
    files = {path.name for path in shared.iterdir() if path.is_file() and not path.is_symlink()}
    assert files == {"best.npz", "step-000000004.npz", "step-000000008.npz", "log.csv"}


def test_a_log_may_be_a_fifo(tmp_path):
    """It stays open between epochs, so that its reader does not see an end."""
    path = tmp_path / "log.jsonl"
    os.mkfifo(path)
    reader = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    ends = []
    trainer, history = trained(log=path, callbacks=[lambda *_: ends.append(_is_at_end(reader))])
    lines = os.read(reader, 1 << 20).splitlines()
    assert [json.loads(line) for line in lines] == history.records
    assert ends == [False, False]
    assert stat.S_ISFIFO(path.stat().st_mode)
    del trainer
    os.close(reader)


def _is_at_end(reader):
    """Whether nobody has the other end of a FIFO open."""
    poll = select.poll()
    poll.register(reader)
    return any(event & select.POLLHUP for _, event in poll.poll(0))


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
        trained(log=path, callbacks=[plant])
    assert precious.read_bytes() == b"precious"


def test_a_log_that_cannot_be_one_is_refused_before_the_first_step(tmp_path):
    trainer = Trainer(Model().train, dataset(), 16, log=tmp_path)
    with pytest.raises(OSError, match=r"log=.*is a folder"):
        trainer.run(1)
    assert trainer.step == 0
    assert list(Path(tmp_path).iterdir()) == []
