"""Handwritten digits, as arrays: MNIST from a folder, or downloaded; else scikit-learn's.

The folder is the one given, or that of the environment variable MNIST_FOLDER, or the user's cache.
It holds MNIST's files in the IDX format, as they are published, packed by gzip or not. If it has
none they are downloaded into it. scikit-learn's digits, 1797 of 8 x 8 pixels, are taken if no
folder was named and nothing can be downloaded, or in place of a folder by the name "digits".
"""

from __future__ import annotations

import gzip
import hashlib
import http.client
import os
import tempfile
import urllib.request
import zlib
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

SOURCES = (
    "https://ossci-datasets.s3.amazonaws.com/mnist/",
    "https://storage.googleapis.com/cvdf-datasets/mnist/",
)
SHA256 = {
    "train-images-idx3-ubyte": "440fcabf73cc546fa21475e81ea370265605f56be210a4024d2ca8f203523609",
    "train-labels-idx1-ubyte": "3552534a0a558bbed6aed32b30c495cca23d567ec52cac8be1a0730e8010255c",
    "t10k-images-idx3-ubyte": "8d422c7b0a1c1c79245a5bcf07fe86e33eeafee792b84584aec276f5a2dbc4e6",
    "t10k-labels-idx1-ubyte": "f7ae60f92e00ec6debd23a6088c31dbd2371eca3ffa0defaefb259924204aec6",
}
TIMEOUT_S = 15
BYTES = 0x08  # the IDX format's code of uint8, which is all that MNIST uses


class NoDataError(SystemExit):
    """There are no digits to train with: ends the program with what was tried, and what to do."""


class Images(NamedTuple):
    """Images with the shape (rows, 1, side, side), float32 from 0 to 1, and int32 labels."""

    x_train: Any
    y_train: Any
    x_valid: Any
    y_valid: Any


def load(where: str | None = None) -> Images:
    """Find the digits, in a folder or "digits" (scikit-learn's), and print what they are."""
    named = where or os.environ.get("MNIST_FOLDER")
    if named == "digits":
        return _scikit_learn()
    cache = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    folder = Path(named or Path(cache, "mnist"))
    if not all(_place(folder, name).is_file() for name in SHA256):
        try:
            download(folder)
        except OSError as error:
            missing = f"no MNIST in {folder}, and it cannot be downloaded ({error})"
            if named:
                raise NoDataError(
                    f"{missing}; expected files such as train-images-idx3-ubyte.gz there. Name "
                    f"another folder by --data or MNIST_FOLDER, or use --data digits"
                ) from error
            print(f"{missing}: using scikit-learn's digits")
            return _scikit_learn()
    train, valid = _read_split(folder, "train"), _read_split(folder, "t10k")
    return _show(Images(*train, *valid), f"MNIST from {folder}")


def download(folder: Path) -> None:
    """Fetch MNIST's four files into a folder, each checked before it gets its name."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, expected in SHA256.items():
        content = _fetch(f"{name}.gz", expected)
        with tempfile.TemporaryDirectory(dir=folder) as partial:  # removed where the disk is full
            Path(partial, name).write_bytes(content)
            Path(partial, name).replace(folder / f"{name}.gz")


def _fetch(name: str, expected: str) -> bytes:
    refused = OSError("no source")
    for source in SOURCES:
        try:
            with urllib.request.urlopen(source + name, timeout=TIMEOUT_S) as answer:  # noqa: S310
                content: bytes = answer.read()
        except (OSError, http.client.HTTPException) as error:  # cut off on the way, too
            refused = OSError(f"{source + name}: {type(error).__name__}: {error}")
            continue
        got = hashlib.sha256(content).hexdigest()
        if got == expected:
            return content
        refused = OSError(f"{source + name}: SHA-256 is {got}, expected {expected}")
    raise refused


def _place(folder: Path, name: str) -> Path:
    """Return where a file is, packed or not."""
    packed = folder / f"{name}.gz"
    return packed if packed.is_file() else folder / name


def _read_split(folder: Path, split: str) -> tuple[Any, Any]:
    images = _read_idx(folder, f"{split}-images-idx3-ubyte")
    labels = _read_idx(folder, f"{split}-labels-idx1-ubyte")
    if images.ndim != 3 or labels.shape != images.shape[:1]:
        raise NoDataError(
            f"{folder}: got {split} images {images.shape} and labels {labels.shape}, expected "
            f"(rows, side, side) and (rows,)"
        )
    return images[:, None].astype("float32") / np.float32(255), labels.astype("int32")


def _read_idx(folder: Path, name: str) -> Any:
    """Return the array of a file in the IDX format: bytes behind a big-endian header."""
    path = _place(folder, name)
    try:
        content = path.read_bytes()
        if path.suffix == ".gz":
            content = gzip.decompress(content)
        if content[:3] != bytes([0, 0, BYTES]):
            raise ValueError(f"it begins with {content[:4]!r}")
        shape = np.frombuffer(content, ">u4", content[3], offset=4)
        return np.frombuffer(content, np.uint8, offset=4 + 4 * content[3]).reshape(shape)
    except (OSError, EOFError, IndexError, ValueError, zlib.error) as error:
        raise NoDataError(
            f"{path} cannot be read as an IDX file of bytes ({type(error).__name__}: {error}); if "
            "it is damaged, remove it, and it will be downloaded"
        ) from error


def _scikit_learn() -> Images:
    try:
        from sklearn.datasets import load_digits
    except ImportError as error:
        raise NoDataError(
            "scikit-learn is not installed (pip install scikit-learn); or name a folder "
            "with MNIST's files by --data or MNIST_FOLDER"
        ) from error
    x, y = load_digits(return_X_y=True)
    order = np.random.RandomState(1).permutation(len(x))
    x = x[order].reshape(-1, 1, 8, 8).astype("float32") / np.float32(16)
    y = y[order].astype("int32")
    last = len(x) - len(x) // 5
    return _show(Images(x[:last], y[:last], x[last:], y[last:]), "scikit-learn's digits")


def _show(digits: Images, name: str) -> Images:
    side = digits.x_train.shape[-1]
    rows = f"{len(digits.x_train)} to train with, {len(digits.x_valid)} held out"
    print(f"{name}: {side} x {side} pixels, {rows}", flush=True)
    return digits
