"""P1: set the Theano flags that make it work here, unless the user has set them.

Right after the execution of Theano's ``configparser``, *its* reader says which flags are set, and
its dictionary gets ours. The environment stays: child processes see only the user's settings.
"""

from __future__ import annotations

import contextlib
import logging
import os
from pathlib import Path
from typing import Any

from synk_theano_compat._toolchain import blas, cache
from synk_theano_compat._toolchain.compiler import find_compiler

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
"""The flags that the status lists."""

chosen: dict[str, str] = {}
"""The flags that were added in this process."""

users: dict[str, str] = {}
"""The places in which the user has set some of ``SHOWN``: Theano does not keep them."""


def set_defaults() -> str:
    """Add the flags that the user has not set, and return which.

    ``blas.ldflags``: with NumPy 1.22 and later, Theano's own search for a BLAS fails at import.
    ``base_compiledir``: a private temporary folder, if the home cannot be written.
    ``device`` with ``force_device``: the processor, without looking for GPUs.
    ``dnn.conv.algo_*``: on a GPU, cuDNN's fastest algorithms, measured at the first call of each
    shape. (``time_once`` keeps the first shape's memory for all: a larger batch then fails.)
    """
    from theano import configparser

    defaults: dict[str, str] = {}
    if _user_value(configparser, "device") is None:
        defaults["device"] = "cpu"
        if _user_value(configparser, "force_device") is None:
            defaults["force_device"] = "True"
    if _user_value(configparser, "blas.ldflags") is None:
        compiler = find_compiler(_user_value(configparser, "cxx"))
        choice = blas.choose(compiler)
        if compiler is None:
            # No C code runs, as Theano warns: that NumPy's C API stands in for BLAS is untrue.
            untrue = "NumPy C-API based implementation"
            logging.getLogger("theano.tensor.blas").addFilter(lambda r: untrue not in str(r.msg))
        defaults["blas.ldflags"] = choice.ldflags
    if all(_user_value(configparser, name) is None for name in ("base_compiledir", "compiledir")):
        if (folder := _compiledir_without_home()) is not None:
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

    ``set_by`` is ``THEANO_FLAGS``, ``file`` (``.theanorc``), ``synk_theano_compat``, or ``Theano``
    for its default.
    """
    from theano import config

    result = {}
    for name in (*SHOWN, *(name for name in chosen if name not in SHOWN)):
        value: Any = config
        for part in name.split("."):
            value = getattr(value, part)
        set_by = "synk_theano_compat" if name in chosen else users.get(name, "Theano")
        result[name] = {"value": str(value), "set_by": set_by}
    return result


def _user_value(configparser: Any, name: str) -> str | None:
    """Return the user's value of a flag, from the environment or a file; None if there is none."""
    with contextlib.suppress(KeyError):
        return str(configparser.fetch_val_for_key(name))
    return None


def _compiledir_without_home() -> str | None:
    """Return a folder to compile in if Theano's own cannot be written; None if it can be."""
    usual = Path(os.path.expanduser("~/.theano"))
    # Not Path.exists(), which raises in a folder that this user may not enter.
    nearest = next(place for place in (usual, *usual.parents) if os.path.exists(place))
    if os.access(nearest, os.W_OK | os.X_OK):
        return None
    for folder in cache.temporary_roots("theano"):
        known = folder.exists()  # only the first process logs it
        if not cache.is_private(folder, create=True):
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
