"""Checkpoints on disk: a folder of the last few and the best, each a .npz of arrays.

One array is a JSON text that describes the others. No pickles are written or read, so a file from
elsewhere can cause no more than an error.
"""

from __future__ import annotations

import contextlib
import functools
import json
import numbers
import os
import re
import tempfile
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from synk_core.files import make_folder, whole_file
from synkhronos.exceptions import SynkError

FORMAT = "synkhronos training checkpoint"
VERSION = 1

META = "meta"  # the JSON text's name among the arrays
_ARRAY = "__array__"  # stands in the JSON text for an array
_NAME = re.compile(r"step-(\d+)\.npz")


class CheckpointError(SynkError, ValueError):
    """A checkpoint cannot be read, does not fit this training, or would mix with another training.

    The attempt has changed nothing.
    """


@contextlib.contextmanager
def refusing(problem: str, cure: str = "") -> Iterator[None]:
    """Raise a CheckpointError in place of any error, which a damaged or hostile file may cause."""
    try:
        yield
    except CheckpointError:
        raise
    except Exception as error:
        raise CheckpointError(f"{problem} ({type(error).__name__}: {error}){cure}") from error


class Checkpoints:
    """Choose when to write checkpoints and which to keep: an argument of :class:`Trainer`.

    File names contain the number of steps taken, ``step-000001200.npz``; ``best.npz``, the
    attribute ``best_path``, is the checkpoint of the best epoch so far, by the Trainer's
    ``monitor``.

    Args:
        folder: Folder for the files; created if it does not exist.
        every_epochs: Epochs between two checkpoints; 0 for none. A run that ends or is interrupted
            always writes one.
        every_steps: Steps between two further checkpoints, which may fall within epochs; None or 0
            for none.
        keep: Number of newest checkpoints to keep; None for all. ``best.npz`` does not count.
        best: Write ``best.npz``.

    Raises:
        ValueError: ``keep`` is less than 1.
    """

    def __init__(
        self,
        folder: str | os.PathLike[str],
        every_epochs: int = 1,
        every_steps: int | None = None,
        keep: int | None = 3,
        best: bool = True,
    ) -> None:
        if keep is not None and keep < 1:
            raise ValueError(f"keep is {keep}; expected at least 1, or None")
        self.folder = Path(folder)
        self.best_path = self.folder / "best.npz"
        self.every_epochs, self.every_steps = every_epochs, every_steps
        self.keep, self.best = keep, best

    def paths(self) -> list[Path]:
        """Return the numbered files in the folder, oldest first."""
        folder = self.folder.iterdir() if self.folder.is_dir() else ()
        found = [(_NAME.fullmatch(path.name), path) for path in folder if path.is_file()]
        return [path for _, path in sorted((int(name[1]), path) for name, path in found if name)]

    def newest(self) -> Path | None:
        """Return the file to continue from, or None: the best one if there is no other."""
        paths = self.paths() or [path for path in [self.best_path] if path.is_file()]
        return paths[-1] if paths else None

    def write(self, step: int, content: Any) -> Path:
        """Write a checkpoint, then delete those beyond ``keep``.

        Those of later steps are deleted, too: they belong to a run that was taken back.
        """
        path = self.folder / f"step-{step:09d}.npz"
        write_file(path, content)
        paths = self.paths()
        present = paths.index(path) + 1
        kept = paths[:present] if self.keep is None else paths[:present][-self.keep :]
        for other in set(paths) - set(kept):
            other.unlink(missing_ok=True)
        for name in (".step-*.npz.*tmp", ".best.npz.*tmp"):  # of a run that was killed
            for unfinished in self.folder.glob(name):
                with contextlib.suppress(OSError):  # it may have become a folder
                    unfinished.unlink()
        return path

    def require_empty(self) -> None:
        """Raise CheckpointError unless the folder has no checkpoint."""
        if newest := self.newest():
            raise CheckpointError(
                f"{self.folder} has checkpoints of an earlier training (the newest is "
                f"{newest.name}): continue it with run(..., resume=True), use another folder, "
                "or delete them"
            )

    def require_writable(self) -> None:
        """Create the folder and try to write a file there, before there is anything to lose."""
        make_folder(self.folder)
        with tempfile.TemporaryFile(dir=self.folder):
            pass


def write_file(path: Path, content: dict[str, Any]) -> None:
    """Write dicts with string keys, lists, numbers, strings, None and arrays; make the folder."""
    arrays: dict[str, Any] = {}

    def for_json(value: Any) -> Any:
        if isinstance(value, np.generic):
            return value.item()
        if isinstance(value, np.ndarray) and not value.dtype.hasobject:
            name = f"array_{len(arrays)}"
            arrays[name] = value
            return {_ARRAY: name}
        raise TypeError(
            f"got {value!r:.60}; a checkpoint keeps numbers, strings, None, arrays, and lists and "
            "dicts of them"
        )

    header = {"format": FORMAT, "version": VERSION, "content": content}
    text = json.dumps(header, default=for_json)
    make_folder(path.parent)
    write_arrays(path, {**arrays, META: np.array(text)}, follow=False)


def write_arrays(path: Path, arrays: dict[str, Any], follow: bool = True) -> None:
    """Write arrays to a .npz file, which replaces an old one only after all of it is on the disk.

    ``follow`` is that of :func:`synk_core.files.whole_file`.
    """
    with whole_file(path, follow) as file, zipfile.ZipFile(file, "w") as members:
        # Not by numpy.savez(), which takes no array of the name "file".
        for name, array in arrays.items():
            with members.open(f"{name}.npy", "w", force_zip64=True) as member:
                np.lib.format.write_array(member, array, (1, 0), allow_pickle=False)  # type: ignore[no-untyped-call]


class ArrayFile(zipfile.ZipFile):
    """The arrays of a .npz file, of which nothing is read before its dtype and shape are known.

    A damaged or hostile file may make Python and NumPy raise any exception here.
    """

    def __init__(self, path: Path) -> None:
        if path.exists() and not path.is_file():
            raise ValueError("it is not a file")
        super().__init__(path)
        self._size = self._left = path.stat().st_size
        self.names = [name[:-4] for name in self.namelist() if name.endswith(".npy")]

    def like(self, name: str) -> Any:
        """Return an array of zeros of the same dtype and shape, which takes no memory."""
        with self._opened(name) as member:
            version = np.lib.format.read_magic(member)  # type: ignore[no-untyped-call]
            if version != (1, 0):  # others may have headers of any length
                raise ValueError(f"{name} has version {version} of the format, not 1.0")
            shape, _, dtype = np.lib.format.read_array_header_1_0(member)  # type: ignore[no-untyped-call]
        if dtype.hasobject or dtype.itemsize > self._size:
            raise ValueError(f"{name} is of {dtype!r:.80}; it would need allow_pickle, or no file")
        return np.broadcast_to(np.zeros((), dtype), shape)

    def array(self, name: str, known: bool = False) -> Any:
        """Return an array, all bytes of which are in the file unless its size is ``known``."""
        self._left -= 0 if known else self.like(name).nbytes
        if self._left < 0:
            raise ValueError(f"{name} is larger than the file")
        with self._opened(name) as member:
            array = np.lib.format.read_array(member, allow_pickle=False)  # type: ignore[no-untyped-call]
            if member.read(1):  # the checksum is compared at the end
                raise ValueError(f"{name} has more than an array")
        return array

    def _opened(self, name: str) -> Any:
        info = self.getinfo(f"{name}.npy")
        if info.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
            raise ValueError(f"{name} is compressed in another way than NumPy does")
        return self.open(info)


def read_file(path: Path) -> Any:
    """Return the content of a file, floats to the last bit; raise CheckpointError if it is bad."""
    problem = f"{path}: cannot be read as a checkpoint"
    cure = "; it is damaged, or not a checkpoint. Resume from another file of the folder"
    with refusing(problem, f"{cure}: resume(path)"), ArrayFile(path) as arrays:
        text = str(arrays.array(META))
        header = json.loads(text)
        kind, version = header["format"], header["version"]
        if (kind, version) != (FORMAT, VERSION):
            raise CheckpointError(
                f"{path}: got {kind!r:.80} version {version!r:.80}, expected {FORMAT!r} version "
                f"{VERSION}; read it with the release of synkhronos that wrote it"
            )
        read = functools.cache(arrays.array)

        def with_arrays(value: dict[str, Any]) -> Any:
            return read(value[_ARRAY]) if _ARRAY in value else value

        return json.loads(text, object_hook=with_arrays)["content"]


def number_in(
    content: Any, name: str, kind: Any = int, least: float = 0, most: float = 1 << 62
) -> Any:
    """Return a number of a checkpoint; raise ValueError if it is something else or out of range."""
    value = content[name]
    is_number = isinstance(value, numbers.Integral if kind is int else numbers.Real)
    if not is_number or isinstance(value, bool) or not least <= value <= most:
        raise ValueError(f"{name} is {value!r:.80}; expected {kind.__name__}s, {least} to {most}")
    return kind(value)
