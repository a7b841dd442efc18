"""The environment of a worker process: all settings before its first import."""

from __future__ import annotations

import ctypes
import importlib
import os
import sys
from functools import reduce
from typing import Any, Dict, List, Optional, Sequence, Tuple

import threadpoolctl

from synk_comm import processes
from synk_core import engine
from synk_core._wire.launcher import belongs_to_launcher
from synk_core._wire.world import World
from synk_core.exceptions import StartError

THREAD_VARIABLES = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")
"""Names of variables that libraries read when they are loaded."""

_MALLOC_SETTINGS = ("MALLOC_TRIM_THRESHOLD_", "MALLOC_MMAP_THRESHOLD_", "GLIBC_TUNABLES")
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3
_LARGEST_MMAP_THRESHOLD = 32 << 20
"""Bytes at most (see mallopt(3)); larger blocks always go back to the kernel."""

_KEPT_BYTES = 256 << 20


def current_folder() -> str:
    """Return the current folder; raise StartError if it has been removed."""
    folder = processes.current_folder()
    if not folder:
        raise StartError(
            "the current folder, in which workers start too, has been removed; change into one "
            "that exists: os.chdir()"
        )
    return folder


def follow(path: Sequence[str], folder: str, world: Optional[World]) -> None:
    """Take over the master's import path and current folder, if there is one ("")."""
    sys.path[:] = path
    importlib.invalidate_caches()  # there may be new modules
    try:
        if folder:
            os.chdir(folder)
    except OSError as why:
        on, cure = "", "change into one that exists: os.chdir()"
        if world is not None and len(world.hosts) > 1:
            on = f" on host {world.members[world.rank].host}"
            cure = "every host needs it, with the modules that the program imports"
        raise StartError(f"the master's current folder is not there{on} ({why}); {cure}") from why


def worker_environment(size: int, on_device: bool = False) -> Dict[str, str]:
    """Return the environment for any worker of `size` ranks; the user's own thread counts win. A
    worker `on_device` will initialize its own, not that of the user's flags for this process."""
    environment = {k: v for k, v in os.environ.items() if not belongs_to_launcher(k)}
    environment.update(engine.worker_variables(on_device))
    if not engine.library.config.cxx:
        # This process's engine has warned the user; workers need not repeat it.
        old = environment.get("PYTHONWARNINGS", "")
        filters = [old, f"ignore::UserWarning:{engine.NAME}.configdefaults"]
        environment["PYTHONWARNINGS"] = ",".join(filter(None, filters))
    environment[processes.NO_RANKS] = "a worker"
    for name in THREAD_VARIABLES:
        environment.setdefault(name, str(processes.threads_per_rank(size)))
    return environment


def compiler_note() -> Tuple[str, ...]:
    """Return lines to report if there is no compiler."""
    if not engine.slow_without_compiler():
        return ()
    line = (
        "Synkhronos: there is no C++ compiler, so functions are computed in Python, many times "
        "slower; install one (apt install g++); `synkhronos doctor` shows what else is missing"
    )
    return (line,)


def apply_options(options: Dict[str, Any]) -> None:
    """Set the options that `engine.options` returned in the master."""
    for name, value in options.items():
        *section, option = name.split(".")
        setattr(reduce(getattr, section, engine.library.config), option, value)


def keep_freed_memory() -> None:
    """Make the C library keep freed memory for new arrays.

    A function allocates its intermediate results anew in each call. glibc returns blocks of some
    megabytes to the kernel each time, which then clears each page anew: that took a tenth of the
    time of a few matrix products. The user's own settings win.
    """
    if any(name in os.environ for name in _MALLOC_SETTINGS):
        return
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError):  # another C library
        return
    mallopt(_M_MMAP_THRESHOLD, _LARGEST_MMAP_THRESHOLD)
    mallopt(_M_TRIM_THRESHOLD, _KEPT_BYTES)


class ThreadLimit:
    """Limits the master's thread pools to its share of the cores, while there are workers.

    A pool can be limited once its library is loaded, which may be at any compilation: `apply` is
    cheap if no module was loaded since: `seen` is their number when it was applied last. The user's
    settings in the environment win.
    """

    def __init__(self, size: int, threads: int = 0) -> None:
        self._limit = threads or processes.threads_per_rank(size)
        self._wanted = size > 1 and not any(name in os.environ for name in THREAD_VARIABLES)
        self._limits: List[Any] = []
        self.seen = -1

    def apply(self) -> None:
        """Limit the pools of the loaded libraries."""
        if len(sys.modules) == self.seen:
            return
        # A new library comes with a new module; searching for libraries takes milliseconds.
        self.seen = len(sys.modules)
        if self._wanted:
            self._limits.append(threadpoolctl.threadpool_limits(self._limit))

    def restore(self) -> None:
        """Restore the earlier limits."""
        while self._limits:
            self._limits.pop().restore_original_limits()
