"""A folder of checkpoints: the last few, and the best."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

from . import _checkpoint_file
from ._checkpoint_file import CheckpointError

_NAME = re.compile(r"step-(\d+)\.npz")
_UNFINISHED = ".*.npz.tmp"


class Checkpoints:
    """When checkpoints are written, and which are kept: an argument of :class:`Trainer`.

    Files are named after the number of steps taken, ``step-000001200.npz``, and ``best.npz`` is the
    one of the best epoch so far, by the Trainer's ``monitor``.

    Args:
        folder: Made if it is not there.
        every_epochs: Write one after every so many epochs; 0 for none. One is written in any case
            when a run ends or is interrupted.
        every_steps: Write one after every so many steps, too, in the middle of epochs.
        keep: How many of the newest to keep; None for all. ``best.npz`` is kept in any case.
        best: Keep ``best.npz``.

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
        self._own: set[Path] | None = None  # None: not looked yet

    @property
    def best_path(self) -> Path:
        """Where the best one is."""
        return self.folder / "best.npz"

    def paths(self) -> list[Path]:
        """The numbered files in the folder, oldest first."""
        if not self.folder.is_dir():
            return []
        found = [(_NAME.fullmatch(path.name), path) for path in self.folder.iterdir()]
        return [path for _, path in sorted((int(m[1]), path) for m, path in found if m)]

    def newest(self) -> Path | None:
        """The file to continue from, or None: the best one where there is no other."""
        paths = self.paths() or [path for path in [self.best_path] if path.is_file()]
        return paths[-1] if paths else None

    def write(self, step: int, content: Any) -> Path:
        """Write a checkpoint, then delete those that are no longer kept.

        Those of later steps go, too: training has gone back before them, and takes another course.

        Raises:
            CheckpointError: There are files that another training has written meanwhile.
        """
        self._require_own()
        path = self.folder / f"step-{step:09d}.npz"
        _checkpoint_file.write(path, content)
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
        _checkpoint_file.write(self.best_path, content)

    def take(self) -> None:
        """Take the files that there are for those of this training."""
        self._own = set(self.paths())

    def require_empty(self) -> None:
        """
        Raises:
            CheckpointError: There are checkpoints, which a new training would mix with.
        """
        newest = self.newest()
        if newest is not None:
            raise CheckpointError(
                f"{self.folder} has checkpoints of an earlier training (the newest is "
                f"{newest.name}): continue it with run(..., resume=True), or take another folder, "
                "or delete them"
            )
        self.take()

    def require_writable(self) -> None:
        """Make the folder, and try to write a file there, before there is anything to lose.

        Raises:
            OSError: It cannot be done.
        """
        # Named as an unfinished checkpoint is: what is left of it after a kill is deleted.
        trial = self.folder / f".trial-{os.getpid()}.npz.tmp"
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            trial.write_bytes(b"")
            trial.unlink(missing_ok=True)
        except OSError as error:
            raise OSError(
                f"checkpoint={str(self.folder)!r}: got {type(error).__name__}: {error}; expected a "
                "folder that can be written, or made: choose another, or change its permissions"
            ) from error

    def _require_own(self) -> None:
        """Have the folder, and nothing in it that another training wrote meanwhile."""
        self.folder.mkdir(parents=True, exist_ok=True)
        strangers = [] if self._own is None else sorted(set(self.paths()) - self._own)
        if strangers:
            raise CheckpointError(
                f"{self.folder} has {strangers[-1].name}, which another training has written since "
                "this one looked: take a folder for each, or resume() to continue the other"
            )

    def __repr__(self) -> str:
        return f"<Checkpoints {str(self.folder)!r}, {len(self.paths())} files>"
