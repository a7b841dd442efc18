"""G1, G7, G10, G11: pygpu, where it is and where it is not, and the names of its contexts."""

from __future__ import annotations

import logging
import sys
from typing import Any

from synk_theano_compat._patches.rewrite import rewrite, wrap


def watch_pygpu() -> str:
    """G1: make CUDA's libraries available before pygpu opens a CUDA device or counts them."""
    pygpu: Any = sys.modules["pygpu"]

    def prepared(plain: Any, *arguments: Any, **options: Any) -> Any:
        # The first argument of both functions, by position or by its name there.
        device = arguments[0] if arguments else options.get("dev", options.get("kind", ""))
        name = device.decode() if isinstance(device, bytes) else str(device)
        if name.startswith("cuda"):
            from synk_theano_compat._cuda import libraries

            libraries.prepare()
        return plain(*arguments, **options)

    for name in ("init", "count_devices"):
        wrap(pygpu.gpuarray, name)(prepared)
        if hasattr(pygpu, name):
            setattr(pygpu, name, getattr(pygpu.gpuarray, name))
    return "pygpu.init, pygpu.gpuarray.count_devices"


def one_line_warning() -> str:
    """G7: log one line if a flag names a GPU but pygpu is missing, without "NoneType: None"."""
    logging.getLogger("theano.gpuarray").addFilter(_shorten)
    return "theano.gpuarray"


def _shorten(record: logging.LogRecord) -> bool:
    if str(record.msg).startswith("pygpu was configured but could not be imported"):
        record.msg = (
            "Theano's flags name a GPU, but pygpu cannot be imported (or is older than 0.7): "
            "computing on the CPU; `python -m synk_theano_compat --cuda` shows what is there"
        )
        if record.exc_info and record.exc_info[0] is None:
            record.exc_info = None
    return True


def several_names() -> str:
    """G10: give a device several context names, as Theano's documentation allows."""
    package: Any = sys.modules["theano.gpuarray"]
    types: Any = sys.modules["theano.gpuarray.type"]
    if package.pygpu is None:
        return "nothing to do"

    def register(name: Any, device: str) -> None:
        # Theano does so for the first name of a device alone.
        if name not in types.list_contexts():
            types.reg_context(name, package.init_dev.devmap[device])

    @wrap(package, "init_dev")
    def init_dev(plain: Any, dev: str, name: Any = None, preallocate: Any = None) -> None:
        plain(dev, name, preallocate)
        register(name, dev)

    for pair in filter(None, package.config.contexts.split(";")):
        name, _, device = pair.partition("->")
        register(name.strip(), device.strip())
    return "theano.gpuarray.init_dev"


def no_default_context() -> str:
    """G11: optimize functions where contexts have names and none is the default.

    Theano looks for the context among the function's inputs alone; without one it logs a traceback,
    and skips the whole optimization for GPUs.
    """
    optimizer: Any = sys.modules["theano.gpuarray.opt"].GraphToGPU
    old = "    target = infer_context_name(*fgraph.inputs)\n"
    new = (
        "    try:\n"
        "        made = [output for node in topo for output in node.outputs]\n"
        "        target = infer_context_name(*fgraph.inputs, *made)\n"
        "    except ValueError:  # nothing lies on a device\n"
        "        return None\n"
    )
    rewrite(optimizer.apply, old, new, 1)
    return "theano.gpuarray.opt.GraphToGPU.apply"
