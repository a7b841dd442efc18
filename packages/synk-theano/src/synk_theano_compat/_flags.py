"""P1: the Theano flags that make it work here, for whatever the user has not set.

Theano reads ``THEANO_FLAGS`` and the files of ``THEANORC`` in its module ``configparser``. Directly
after that module was executed we ask *its* reader which flags are set, so that there is no second
opinion about the syntax, and add ours to the dictionary it made. The environment is not touched:
child processes see what the user has set, nothing else.
"""

from __future__ import annotations

import logging
import os
import shutil
import sys
from pathlib import Path
from typing import Any

from synk_theano_compat import _blas

FOR_CUDNN = {
    "dnn.conv.algo_fwd": "time_on_shape_change",
    "dnn.conv.algo_bwd_data": "time_on_shape_change",
    "dnn.conv.algo_bwd_filter": "time_on_shape_change",
}

SHOWN = (
    *("device", "force_device", "floatX", "cxx", "blas.ldflags", "optimizer", "allow_gc"),
    *("dnn.enabled", *FOR_CUDNN, "dnn.conv.precision"),
    *("gpuarray.preallocate", "gpuarray.sched", "gpuarray.single_stream", "gpuarray.cache_path"),
)
"""The flags that are listed to the user, whoever has set them."""

chosen: dict[str, str] = {}
"""The flags that were added in this process."""

users: dict[str, str] = {}
"""Which of ``SHOWN`` the user has set, and where: Theano forgets it when it has read them."""


def set_defaults() -> str:
    """Add the flags the user has not set, and say which.

    ``blas.ldflags``: Theano asks NumPy for its BLAS in a way that fails, at import, since 1.22.
    ``base_compiledir``: where the home cannot be written, a private folder in the temporary one.
    ``device`` with ``force_device``: the processor, with no look at GPUs.
    ``dnn.conv.algo_*``: on a GPU, cuDNN's fastest algorithms, measured at the first call of each
    shape, where Theano takes ones that need little memory. Other devices do not look at them.
    (``time_once`` keeps the first shape's memory for all: a larger batch then fails.)
    """
    from theano import configparser

    defaults: dict[str, str] = {}
    if _user_value(configparser, "device") is None:
        defaults["device"] = "cpu"
        if _user_value(configparser, "force_device") is None:
            defaults["force_device"] = "True"
    if _user_value(configparser, "blas.ldflags") is None:
        compiler = find_compiler(_user_value(configparser, "cxx"))
        choice = _blas.choose(compiler)
        if compiler is None:
            _hide_blas_warning()
        defaults["blas.ldflags"] = choice.ldflags
    if all(_user_value(configparser, name) is None for name in ("base_compiledir", "compiledir")):
        if (folder := _instead_of_home()) is not None:
            defaults["base_compiledir"] = folder
    for name, value in FOR_CUDNN.items():
        if _user_value(configparser, name) is None:
            defaults[name] = value
    for name in SHOWN:
        if name in configparser.THEANO_FLAGS_DICT:
            users[name] = "THEANO_FLAGS"
        elif _user_value(configparser, name) is not None:
            users[name] = "file"
    configparser.THEANO_FLAGS_DICT.update(defaults)
    chosen.update(defaults)
    return ",".join(f"{name}={value}" for name, value in defaults.items()) or "all set by the user"


def in_force() -> dict[str, dict[str, str]]:
    """Return the flags that matter here: ``{name: {"value": ..., "set_by": ...}}``.

    Set by ``THEANO_FLAGS``, by a ``file`` (``.theanorc``), by ``synk_theano_compat``, or
    ``Theano``'s default.
    """
    from theano import config

    result = {}
    for name in (*SHOWN, *(name for name in chosen if name not in SHOWN)):
        value: Any = config
        for part in name.split("."):
            value = getattr(value, part)
        if name in chosen:
            set_by = "synk_theano_compat"
        else:
            set_by = users.get(name, "Theano")
        result[name] = {"value": str(value), "set_by": set_by}
    return result


def _user_value(configparser: Any, name: str) -> str | None:
    """Return what the user has set for the flag, in the environment or a file; else None."""
    try:
        value: str = configparser.fetch_val_for_key(name)
    except KeyError:
        return None
    return value


def find_compiler(flag: str | None) -> str | None:
    """Return the path of the compiler that Theano will use, or None if it will use none."""
    if flag is not None:
        return shutil.which(flag.strip('"')) if flag else None
    names = ("clang++",) if sys.platform == "darwin" else ("g++",)
    return next((path for path in map(shutil.which, names) if path), None)


def _instead_of_home() -> str | None:
    """A folder to compile in, where Theano's own cannot be made or written; None if it can be."""
    usual = Path(os.path.expanduser("~/.theano"))
    nearest = next(place for place in (usual, *usual.parents) if place.exists())
    if os.access(nearest, os.W_OK | os.X_OK):
        return None
    for folder in _blas.temporary_roots("theano"):
        known = folder.exists()  # so that it is said once, and by none of many workers
        if not _blas.is_private(folder, create=True):
            continue
        if not known:
            logging.getLogger("theano").warning(
                "%s cannot be written; Theano compiles in %s, unless base_compiledir= of "
                "THEANO_FLAGS names another folder",
                nearest,
                folder,
            )
        return str(folder)
    return None


def _hide_blas_warning() -> None:
    # Without a compiler no C code runs at all, of which Theano warns; that NumPy's C API stands in
    # for BLAS is then neither true nor of any use. With a compiler that message is worth reading.
    def keep(record: logging.LogRecord) -> bool:
        return "NumPy C-API based implementation" not in str(record.msg)

    logging.getLogger("theano.tensor.blas").addFilter(keep)
