"""Both trainings on digits reach their accuracy, and the digits are found where they may be."""

from __future__ import annotations

import gzip
import hashlib
import importlib.util
import io
import re
import sys
import urllib.error

import numpy as np
import pytest
from _programs import EXAMPLES, IN_C, WITHOUT_CONVOLUTIONS, on_devices, run, start

FOLDER = EXAMPLES / "lasagne_mnist"

pytestmark = [
    pytest.mark.skipif(not EXAMPLES.is_dir(), reason="the examples belong to the repository"),
    pytest.mark.skipif(
        importlib.util.find_spec("lasagne") is None, reason="the examples need lasagne"
    ),
]


def idx(array):
    header = bytes([0, 0, 8, array.ndim]) + np.array(array.shape, dtype=">u4").tobytes()
    return header + array.astype(np.uint8).tobytes()


def drawn_digits(rows, seed):
    """Ten coarse patterns with noise: as easy to tell apart as one likes."""
    patterns = np.random.RandomState(1).randint(0, 2, size=(10, 4, 4)).repeat(3, 1).repeat(3, 2)
    rng = np.random.RandomState(seed)
    labels = rng.randint(10, size=rows)
    return 150 * patterns[labels] + rng.randint(100, size=(rows, 12, 12)), labels


def write_split(folder, split, rows, seed):
    images, labels = drawn_digits(rows, seed)
    for name, array in (("images-idx3", images), ("labels-idx1", labels)):
        (folder / f"{split}-{name}-ubyte.gz").write_bytes(gzip.compress(idx(array)))


@pytest.fixture
def mnist(tmp_path):
    write_split(tmp_path, "train", rows=600, seed=2)
    write_split(tmp_path, "t10k", rows=120, seed=3)
    return tmp_path


@pytest.fixture
def few(tmp_path):
    """So few that Theano draws its random numbers quickly in Python."""
    write_split(tmp_path, "train", rows=16, seed=2)
    write_split(tmp_path, "t10k", rows=16, seed=3)
    return tmp_path


@pytest.fixture
def mnist_data(monkeypatch):
    """The example's module, with nothing to download."""
    spec = importlib.util.spec_from_file_location("mnist_data", FOLDER / "mnist_data.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)

    def nobody_there(url, timeout):
        raise urllib.error.URLError("no route to host")

    monkeypatch.setattr(module.urllib.request, "urlopen", nobody_there)
    monkeypatch.delenv("MNIST_FOLDER", raising=False)
    return module


def accuracy(printed):
    (reached,) = re.findall(r"^accuracy ([\d.]+)%: .* reached$", printed, re.MULTILINE)
    return float(reached)


PROGRAMS = ["train_cpu_data.py", "train_gpu_data.py"]


@pytest.mark.nightly  # half a minute each, and compiling; below they train for an epoch
@pytest.mark.parametrize("model", ["mlp", "cnn"])
@pytest.mark.parametrize("program", PROGRAMS)
def test_training_reaches_its_accuracy(program, model, mnist):
    has_digits = importlib.util.find_spec("sklearn") is not None
    data = "digits" if has_digits else mnist
    if model == "cnn" and WITHOUT_CONVOLUTIONS:
        pytest.skip("these devices have no convolutions")
    options = ("--model", model, "--data", data, *on_devices())
    printed = run(FOLDER / program, *options, **IN_C)
    assert accuracy(printed) >= 93
    assert re.findall(r"epoch (\d+) of 12: loss", printed) == [str(n) for n in range(1, 13)]


def test_training_says_when_its_accuracy_is_not_reached(few):
    options = ("--data", few, "--epochs", "1", "--accuracy", "1.1")
    status, out, err = start(FOLDER / "train_gpu_data.py", *options, *on_devices())
    assert status == 1, err
    assert "110.0% NOT REACHED" in out


def test_a_few_epochs_have_no_accuracy_to_reach(few):
    options = ("--data", few, "--epochs", "1", "--learning-rate", "0")
    printed = run(FOLDER / PROGRAMS[0], *options, *on_devices())  # the other one trains above
    last = printed.splitlines()[-1]
    assert re.fullmatch(r"accuracy [\d.]+%", last)
    assert float(last.split()[1][:-1]) < 93


def test_a_folder_is_read(mnist_data, mnist, monkeypatch, capsys):
    monkeypatch.setenv("MNIST_FOLDER", str(mnist))
    digits = mnist_data.load()
    images, labels = drawn_digits(600, seed=2)
    assert digits.x_train.dtype == "float32"
    np.testing.assert_allclose(digits.x_train[:, 0], images / 255, rtol=1e-6)
    np.testing.assert_array_equal(digits.y_train, labels)
    assert digits.x_valid.shape == (120, 1, 12, 12)
    assert "12 x 12 pixels, 600 to train with, 120 held out" in capsys.readouterr().out


def test_without_digits_the_cure_is_reported(mnist_data, tmp_path, monkeypatch):
    with pytest.raises(mnist_data.NoDataError, match=r"no route to host.*--data digits"):
        mnist_data.load(str(tmp_path))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setitem(sys.modules, "sklearn", None)
    monkeypatch.setitem(sys.modules, "sklearn.datasets", None)
    with pytest.raises(mnist_data.NoDataError, match="pip install scikit-learn"):
        mnist_data.load()


def test_a_damaged_file_is_refused(mnist_data, mnist):
    path = mnist / "train-images-idx3-ubyte.gz"
    for content, complaint in (
        (gzip.compress(b"<html>"), "begins with b'<htm'"),
        (gzip.compress(idx(np.zeros((3, 2, 2)))[:-1]), r"size 11 into shape \(3,\s?2,\s?2\)"),
        (b"no gzip at all", "train-images"),
        (gzip.compress(idx(np.zeros((5, 2, 2)))), r"\(5, 2, 2\).*\(600,\)"),
    ):
        path.write_bytes(content)
        with pytest.raises(mnist_data.NoDataError, match=complaint):
            mnist_data.load(str(mnist))


def test_download_checks_its_files(mnist_data, mnist, tmp_path, monkeypatch):
    files = {path.name: path.read_bytes() for path in mnist.glob("*.gz")}
    sums = {name[:-3]: hashlib.sha256(content).hexdigest() for name, content in files.items()}
    monkeypatch.setattr(mnist_data, "SHA256", sums)
    first, _ = mnist_data.SOURCES

    def answer(url, timeout):
        if url == f"{first}train-images-idx3-ubyte.gz":
            raise urllib.error.URLError("gone")
        if url == f"{first}t10k-labels-idx1-ubyte.gz":
            return io.BytesIO(b"something else")
        return io.BytesIO(files[url.rsplit("/", 1)[1]])

    monkeypatch.setattr(mnist_data.urllib.request, "urlopen", answer)
    target = tmp_path / "fetched"
    assert len(mnist_data.load(str(target)).x_train) == 600
    assert {path.name: path.read_bytes() for path in target.iterdir()} == files

    wrong = lambda *_, **__: io.BytesIO(b"something else")  # noqa: E731
    monkeypatch.setattr(mnist_data.urllib.request, "urlopen", wrong)
    with pytest.raises(mnist_data.NoDataError, match=r"SHA-256 is .* expected"):
        mnist_data.load(str(tmp_path / "again"))
    assert list((tmp_path / "again").iterdir()) == []
