"""Checkpoints on disk: a folder of the last few and the best, each a single file.

A file is a .npz of arrays, one of which is a JSON text that describes the others. No pickles are
written or read, so the worst that a file from elsewhere can cause is an error. A single file can be
replaced atomically: readers find the old one or the new one, even after a power cut.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import zipfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np

from synkhronos.exceptions import SynkError

FORMAT = "synkhronos training checkpoint"
VERSION = 1

META = "meta"  # the JSON text's name among the arrays
_ARRAY = "__array__"  # stands in the JSON text for an array
_NAME = re.compile(r"step-(\d+)\.npz")
_UNFINISHED = ".*.npz.tmp"


class CheckpointError(SynkError, ValueError):
    """A checkpoint cannot be read, does not fit this training, or would mix with another training.

    The attempt has changed nothing.
    """


class Checkpoints:
    """Choose when to write checkpoints and which to keep: an argument of :class:`Trainer`.

    File names contain the number of steps taken, ``step-000001200.npz``; ``best.npz`` is the
    checkpoint of the best epoch so far, by the Trainer's ``monitor``.

    Args:
        folder: Folder for the files; created if it does not exist.
        every_epochs: Epochs between two checkpoints; 0 for none. A run that ends or is interrupted
            always writes one.
        every_steps: Steps between two further checkpoints, which may fall within epochs.
        keep: Number of newest checkpoints to keep; None for all. ``best.npz`` does not count.
        best: Write ``best.npz``.

    Raises:
        ValueError: A number is out of range.
    """

    def __init__(
        self,
        folder: str | os.PathLike[str],
        every_epochs: int = 1,
        every_steps: int | None = None,
        keep: int | None = 3,
        best: bool = True,
    ) -> None:
        for name, number, least in [
            ("every_epochs", every_epochs, 0),
            ("every_steps", every_steps, 1),
            ("keep", keep, 1),
        ]:
            if number is not None and number < least:
                raise ValueError(f"{name} is {number}; expected at least {least}")
        self.folder = Path(folder)
        self.every_epochs = every_epochs
        self.every_steps = every_steps
        self.keep = keep
        self.best = best
        self._own: set[Path] | None = None  # None until the folder was looked at

    @property
    def best_path(self) -> Path:
        """Path of the best checkpoint."""
        return self.folder / "best.npz"

    def paths(self) -> list[Path]:
        """Return the numbered files in the folder, oldest first."""
        if not self.folder.is_dir():
            return []
        found = [(_NAME.fullmatch(path.name), path) for path in self.folder.iterdir()]
        return [path for _, path in sorted((int(m[1]), path) for m, path in found if m)]

    def newest(self) -> Path | None:
        """Return the file to continue from, or None: the best one if there is no other."""
        paths = self.paths() or [path for path in [self.best_path] if path.is_file()]
        return paths[-1] if paths else None

    def write(self, step: int, content: Any) -> Path:
        """Write a checkpoint, then delete those beyond ``keep``.

        Those of later steps are deleted, too: they belong to a run that was taken back.

        Raises:
            CheckpointError: Another training has written to the folder in the meantime.
        """
        self._require_own()
        path = self.folder / f"step-{step:09d}.npz"
        if self._own is not None:
            self._own.add(path)  # before it is there
        write_file(path, content)
        paths = self.paths()
        present = paths.index(path) + 1
        kept = paths[:present] if self.keep is None else paths[:present][-self.keep :]
        for other in set(paths) - set(kept):
            other.unlink(missing_ok=True)
        self._own = set(kept)
        for unfinished in self.folder.glob(_UNFINISHED):
            unfinished.unlink(missing_ok=True)
        return path

    def write_best(self, content: Any) -> None:
        """Write ``best.npz``.

        Raises:
            CheckpointError: As :meth:`write`.
        """
        self._require_own()
        write_file(self.best_path, content)

    def take(self, paths: Iterable[Path]) -> None:
        """Treat these files as those of this training."""
        self._own = set(paths)

    def require_empty(self) -> None:
        """
        Raises:
            CheckpointError: A new training would mix with the checkpoints of an earlier one.
        """
        newest = self.newest()
        if newest is not None:
            raise CheckpointError(
                f"{self.folder} has checkpoints of an earlier training (the newest is "
                f"{newest.name}): continue it with run(..., resume=True), use another folder, "
                "or delete them"
            )
        self.take(self.paths())

    def require_writable(self) -> None:
        """Create the folder and try to write a file there, before there is anything to lose.

        Raises:
            OSError: The folder or the file cannot be written.
        """
        # Named like an unfinished checkpoint, so that it is deleted after a kill.
        trial = self.folder / f".trial-{os.getpid()}.npz.tmp"
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            trial.write_bytes(b"")
            trial.unlink(missing_ok=True)
        except OSError as error:
            raise OSError(
                f"checkpoint={str(self.folder)!r}: got {type(error).__name__}: {error}; expected a "
                "folder that can be created and written: choose another, or change its permissions"
            ) from error

    def _require_own(self) -> None:
        """Create the folder, and check that no other training wrote to it in the meantime."""
        self.folder.mkdir(parents=True, exist_ok=True)
        strangers = [] if self._own is None else sorted(set(self.paths()) - self._own)
        if strangers:
            raise CheckpointError(
                f"{self.folder} has {strangers[-1].name}, which another training has written since "
                "this one looked: use a folder for each, or resume() to continue the other"
            )

    def __repr__(self) -> str:
        return f"<Checkpoints {str(self.folder)!r}, {len(self.paths())} files>"


def write_file(path: Path, content: Any) -> None:
    """Write ``content``: dicts with strings as keys, lists, numbers, strings, None, and arrays.

    The new file replaces an old one as a whole: see :func:`write_arrays`.

    Raises:
        TypeError: ``content`` has a value of another type.
        OSError: The file cannot be written; an old one is unchanged.
    """
    arrays: dict[str, Any] = {}
    header = {"format": FORMAT, "version": VERSION, "content": _without_arrays(content, "", arrays)}
    arrays[META] = np.array(json.dumps(header))
    write_arrays(path, arrays)


def write_arrays(path: Path, arrays: dict[str, Any]) -> None:
    """Write arrays to a .npz file, which replaces an old one only after all of it is on the disk.

    Raises:
        OSError: The file cannot be written; an old one is unchanged.
    """
    temporary = path.with_name(f".{path.name}.tmp")
    try:
        with temporary.open("wb") as file:
            with zipfile.ZipFile(file, "w") as members:
                # Not by numpy.savez(), which takes no array of the name "file".
                for name, array in arrays.items():
                    with members.open(f"{name}.npy", "w", force_zip64=True) as member:
                        np.lib.format.write_array(member, array, allow_pickle=False)  # type: ignore[no-untyped-call]
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    except BaseException:
        with contextlib.suppress(OSError):
            temporary.unlink()
        raise
    _sync_folder(path.parent)


def read_arrays(path: Path) -> dict[str, Any]:
    """Return the arrays of a .npz file.

    Raises:
        OSError: The file cannot be opened.
        Exception: Whatever a damaged or hostile file makes NumPy raise.
    """
    with path.open("rb") as file, np.load(file, allow_pickle=False) as members:
        return {name: members[name] for name in members.files}


def read_file(path: Path) -> Any:
    """Return the content of a file, floats to the last bit.

    Raises:
        CheckpointError: The file is missing, damaged, or not a checkpoint of this version.
    """
    try:
        arrays = read_arrays(path)
        header = json.loads(str(arrays[META]))
        kind, version, content = header["format"], header["version"], header["content"]
        if kind == FORMAT and version == VERSION:
            content = _with_arrays(content, arrays)
    except FileNotFoundError:
        raise CheckpointError(f"{path}: no such file") from None
    except KeyError as error:
        raise CheckpointError(
            f"{path}: cannot be read as a checkpoint: {error} is missing in the file"
        ) from error
    except Exception as error:  # whatever a damaged or hostile file makes NumPy raise
        raise CheckpointError(
            f"{path}: cannot be read as a checkpoint ({type(error).__name__}: {error}); it is "
            "damaged, or not a checkpoint. Resume from another file of the folder: resume(path)"
        ) from error
    if kind != FORMAT or version != VERSION:
        raise CheckpointError(
            f"{path}: got {kind!r} version {version!r}, expected {FORMAT!r} version {VERSION}; "
            "read it with the release of synkhronos that wrote it"
        )
    return content


def _without_arrays(value: Any, place: str, arrays: dict[str, Any]) -> Any:
    """Return ``value`` for JSON; move its arrays to ``arrays``, named after their places."""
    if isinstance(value, dict):
        for key in value:
            if not isinstance(key, str):
                # JSON would turn the key into a string, and lookups would fail.
                raise TypeError(f"{place}: got the key {key!r}; a checkpoint keeps strings as keys")
        return {k: _without_arrays(v, _joined(place, k), arrays) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [_without_arrays(v, _joined(place, i), arrays) for i, v in enumerate(value)]
    if isinstance(value, np.ndarray):
        if value.dtype.hasobject:
            raise TypeError(f"{place}: an array of objects cannot be kept in a checkpoint")
        while place in arrays:  # "a.b" is b within a, or a key with a dot
            place += "'"
        arrays[place] = value
        return {_ARRAY: place}
    if isinstance(value, np.generic):
        return value.item()
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    raise TypeError(
        f"{place}: got a {type(value).__name__}; a checkpoint keeps numbers, strings, None, "
        "arrays, and lists and dicts of them"
    )


def _with_arrays(value: Any, arrays: dict[str, Any]) -> Any:
    if isinstance(value, dict):
        if set(value) == {_ARRAY}:
            return arrays[value[_ARRAY]]
        return {key: _with_arrays(item, arrays) for key, item in value.items()}
    if isinstance(value, list):
        return [_with_arrays(item, arrays) for item in value]
    return value


def _joined(place: str, key: Any) -> str:
    return f"{place}.{key}" if place else str(key)


def _sync_folder(folder: Path) -> None:
    """Write the folder's new entry to the disk, too."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
