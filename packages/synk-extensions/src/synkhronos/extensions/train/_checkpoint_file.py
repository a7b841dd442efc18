"""One checkpoint in one file: a .npz of arrays, one of which is a JSON text about the others.

No pickles are written or read, so a file from elsewhere can at worst be refused. Everything lies in
one file because one file can be replaced atomically: whoever looks finds the old one or the new
one, also after a power cut.
"""

from __future__ import annotations

import contextlib
import json
import os
import zipfile
import zlib
from pathlib import Path
from typing import Any

import numpy as np

from synkhronos.exceptions import SynkError

FORMAT = "synkhronos training checkpoint"
VERSION = 1

_META = "meta"  # the JSON text's name among the arrays
_ARRAY = "__array__"  # stands in the JSON text for an array


class CheckpointError(SynkError, ValueError):
    """A checkpoint cannot be read, does not fit this training, or would mix with another's.

    Nothing has been changed by the attempt.
    """


def write(path: Path, content: Any) -> None:
    """Write ``content``: dicts whose keys are strings, lists, numbers, strings, None, and arrays.

    The new file takes its place only when it lies on the disk as a whole.

    Raises:
        TypeError: Something else is in ``content``.
        OSError: The file cannot be written; one that was there before still is.
    """
    arrays: dict[str, Any] = {}
    told = {"format": FORMAT, "version": VERSION, "content": _without_arrays(content, "", arrays)}
    arrays[_META] = np.array(json.dumps(told))
    temporary = path.with_name(f".{path.name}.tmp")
    try:
        with temporary.open("wb") as file:
            np.savez(file, **arrays)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    except BaseException:
        with contextlib.suppress(OSError):
            temporary.unlink()
        raise
    _sync_folder(path.parent)


def read(path: Path) -> Any:
    """Return what was written, floats to the last bit.

    Raises:
        CheckpointError: The file is not there, is damaged, or is no checkpoint of this version.
    """
    try:
        with path.open("rb") as file, np.load(file, allow_pickle=False) as members:
            arrays = {name: members[name] for name in members.files}
        told = json.loads(str(arrays[_META]))
        kind, version, content = told["format"], told["version"], told["content"]
        if kind == FORMAT and version == VERSION:
            content = _with_arrays(content, arrays)
    except FileNotFoundError:
        raise CheckpointError(f"{path}: there is no such file") from None
    except KeyError as error:
        raise CheckpointError(
            f"{path}: cannot be read as a checkpoint: {error} is missing in the file"
        ) from error
    except (
        OSError,
        ValueError,
        TypeError,
        AttributeError,
        EOFError,
        NotImplementedError,
        MemoryError,
        RecursionError,
        OverflowError,
        zipfile.BadZipFile,
        zlib.error,
    ) as error:
        raise CheckpointError(
            f"{path}: cannot be read as a checkpoint ({type(error).__name__}: {error}); it is "
            "damaged or something else. Resume from another file of the folder: resume(path)"
        ) from error
    if kind != FORMAT or version != VERSION:
        raise CheckpointError(
            f"{path}: got {kind!r} version {version!r}, expected {FORMAT!r} version {VERSION}; "
            "read it with the release of synkhronos that wrote it"
        )
    return content


def _without_arrays(value: Any, place: str, arrays: dict[str, Any]) -> Any:
    """``value`` for JSON, with the arrays put into ``arrays`` under the names of their places."""
    if isinstance(value, dict):
        for key in value:
            if not isinstance(key, str):
                # JSON would make a string of it, under which nobody would find it again.
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
    """Have the folder's new entry on the disk, too."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
