"""G1, G7: pygpu, where it is and where it is not."""

from __future__ import annotations

import functools
import logging
import sys
from typing import Any, Callable


def watch_pygpu() -> str:
    """G1: make CUDA's libraries available before pygpu opens a CUDA device or counts them."""
    pygpu: Any = sys.modules["pygpu"]
    for name in ("init", "count_devices"):
        prepared = _prepared(getattr(pygpu.gpuarray, name))
        setattr(pygpu.gpuarray, name, prepared)
        if hasattr(pygpu, name):
            setattr(pygpu, name, prepared)
    return "pygpu.init, pygpu.gpuarray.count_devices"


def _prepared(function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function)
    def prepared(*arguments: Any, **options: Any) -> Any:
        # The first argument of both functions, by position or by its name there.
        device = arguments[0] if arguments else options.get("dev", options.get("kind", ""))
        name = device.decode() if isinstance(device, bytes) else str(device)
        if name.startswith("cuda"):
            from synk_theano_compat._cuda import libraries

            libraries.prepare()
        return function(*arguments, **options)

    return prepared


def one_line_warning() -> str:
    """G7: log one line if a flag names a GPU but pygpu is missing, without "NoneType: None"."""
    logging.getLogger("theano.gpuarray").addFilter(_shorten)
    return "theano.gpuarray"


def _shorten(record: logging.LogRecord) -> bool:
    if str(record.msg).startswith("pygpu was configured but could not be imported"):
        record.msg = (
            "Theano's flags name a GPU, but pygpu cannot be imported (or is older than 0.7): "
            "computing on the CPU; `synkhronos doctor` shows what is missing"
        )
        if record.exc_info and record.exc_info[0] is None:
            record.exc_info = None
    return True
