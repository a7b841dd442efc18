"""Checks of arguments that several parts of the API have in common."""

from __future__ import annotations

import os
import stat
from pathlib import Path
from typing import Any, NamedTuple, Optional, Sequence, Union

import numpy as np

from synk_core._text import shown
from synk_core.exceptions import InputTypeError, InputValueError
from synk_core.files import place_of


class Options(NamedTuple):
    """The options of a call; see `Function.__call__`."""

    output_subset: Optional[Sequence[int]] = None
    batch: Any = None
    batch_s: Any = None
    num_slices: int = 1


DEFAULT = Options()


def checked_flag(value: Any, what: str) -> bool:
    """Return a flag, which may also be an int or None; raise if it is something else."""
    if value is None or isinstance(value, (bool, np.bool_, int, np.integer)):
        return bool(value)
    raise InputTypeError(f"{what}: got {shown(value)}, expected True or False")


def checked_seconds(value: Any, what: str) -> float:
    """Return `value` as a float; raise if it is no number above 0."""
    if isinstance(value, (int, float, np.integer, np.floating)) and value > 0:
        return float(value)
    raise InputValueError(f"{what}: got {shown(value)}, expected a number of seconds above 0")


def checked_path(path: Union[str, os.PathLike[str]]) -> Path:
    """Return the file's absolute path; raise if no file can be written there."""
    try:
        path = Path(path).expanduser().absolute()
        place, found = place_of(path)
    except OSError as error:
        raise InputValueError(f"timeline(): cannot write {path}: {error}") from None
    except (TypeError, ValueError, RuntimeError):
        raise InputTypeError(
            f"timeline(): got {shown(path)} of type {type(path).__name__} as path, expected the "
            f"name of a file to write, as in 'trace.json'"
        ) from None
    # A file is replaced by a new one; devices and the like are written to.
    is_stream = found is not None and not stat.S_ISREG(found.st_mode)
    needed = place if is_stream else os.path.dirname(place)
    if not os.access(needed, os.W_OK):
        raise InputValueError(
            f"timeline(): cannot write {path}: {needed} does not exist or is not writable; make it "
            f"first, or choose another one"
        )
    return path
