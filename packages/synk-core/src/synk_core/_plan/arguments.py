"""Checks of arguments that several parts of the API have in common."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, Union

import numpy as np

from synk_core._text import shown
from synk_core.exceptions import InputTypeError, InputValueError


def checked_flag(value: Any, what: str) -> bool:
    """Return a flag, which may also be an int or None.

    Raises:
        InputTypeError: `value` is neither True nor False.
    """
    if value is None or isinstance(value, (bool, np.bool_, int, np.integer)):
        return bool(value)
    raise InputTypeError(f"{what}: got {shown(value)}, expected True or False")


def checked_seconds(value: Any, what: str) -> float:
    """Return `value` as a float.

    Raises:
        InputValueError: it is no number above 0.
    """
    if isinstance(value, (int, float, np.integer, np.floating)) and value > 0:
        return float(value)
    raise InputValueError(f"{what}: got {shown(value)}, expected a number of seconds above 0")


def checked_path(path: Union[str, os.PathLike[str]]) -> Path:
    """Return the file's absolute path.

    Raises:
        InputTypeError, InputValueError: no file can be written there.
    """
    try:
        path = Path(path).expanduser().absolute()
        is_folder = path.is_dir()
    except (TypeError, ValueError, RuntimeError):
        raise InputTypeError(
            f"timeline(): got {shown(path)} of type {type(path).__name__} as path, expected the "
            f"name of a file to write, as in 'trace.json'"
        ) from None
    if is_folder:
        raise InputValueError(f"timeline(): {path} is a folder, expected a file's name")
    if not path.parent.is_dir() or not os.access(path.parent, os.W_OK):
        raise InputValueError(
            f"timeline(): cannot write {path}: the folder {path.parent} does not exist or is "
            f"not writable; make it first, or choose another one"
        )
    return path
