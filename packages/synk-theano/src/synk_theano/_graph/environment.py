"""The environment of a worker process: everything that has to be set before it imports anything."""

from __future__ import annotations

import ctypes
import os
import sys
from typing import Any, Dict, List, Tuple

import threadpoolctl

from synk_theano._cores import available_cores
from synk_theano.exceptions import StartError

THREAD_VARIABLES = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")
"""Read by the libraries when they are loaded."""

_SHARED_OPTIONS = ("floatX", "cast_policy", "exception_verbosity", "warn_float64")
"""Theano options that programs set after importing it, and that matter when graphs are run."""


_MALLOC_SETTINGS = ("MALLOC_TRIM_THRESHOLD_", "MALLOC_MMAP_THRESHOLD_", "GLIBC_TUNABLES")
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3
_LARGEST_MMAP_THRESHOLD = 32 << 20
"""More is refused (see mallopt(3)); what is larger is given back in any case."""

_KEPT_BYTES = 256 << 20


_NO_DEVICE = "device=cpu,force_device=True,init_gpu_device=,contexts="
"""Theano's flags with which it takes no device into use when it is imported."""


def threads_per_rank(size: int) -> int:
    """Threads for each of `size` ranks, so that together they use each core once."""
    return max(1, available_cores() // size)


def import_path() -> Tuple[str, ...]:
    """This process's ``sys.path``, with the current folder spelt out."""
    return tuple(entry or current_folder() for entry in sys.path)


def current_folder() -> str:
    """
    Raises:
        StartError: it has been removed.
    """
    try:
        return os.getcwd()
    except FileNotFoundError:
        raise StartError(
            "the current folder, in which workers start too, has been removed; change into one "
            "that exists: os.chdir()"
        ) from None


def worker_environment(size: int, on_device: bool = False) -> Dict[str, str]:
    """The environment for any worker of a group of `size` ranks.

    The user's own settings of thread counts win.

    Args:
        on_device: the worker will take a device of its own into use, not the one that the user's
            flags name for this process.
    """
    import theano

    environment = dict(os.environ)
    # Theano sets it for processes that were forked from one that uses a GPU; these are not.
    environment.pop("THEANO_GPU_IS_ALREADY_ACTIVE", None)
    flags = [environment.get("THEANO_FLAGS", "")]
    if on_device or _lacks_its_device():
        flags.append(_NO_DEVICE)
    if not theano.config.cxx:
        # Theano has told the user, in two ways; once is enough.
        flags.append("cxx=")
        told = [environment.get("PYTHONWARNINGS", ""), "ignore::UserWarning:theano.configdefaults"]
        environment["PYTHONWARNINGS"] = ",".join(filter(None, told))
    environment["THEANO_FLAGS"] = ",".join(filter(None, flags))
    environment["PYTHONPATH"] = os.pathsep.join(import_path())
    for name in THREAD_VARIABLES:
        environment.setdefault(name, str(threads_per_rank(size)))
    return environment


def _lacks_its_device() -> bool:
    """Whether flags name a GPU that Theano has told the user it cannot use; once is enough."""
    import theano

    named = str(theano.config.device).startswith(("cuda", "opencl"))
    return named and getattr(getattr(theano, "gpuarray", None), "pygpu", None) is None


def compiler_note() -> Tuple[str, ...]:
    """What to tell the user who has no compiler."""
    import theano

    if theano.config.cxx or "cxx=" in os.environ.get("THEANO_FLAGS", ""):
        return ()
    line = (
        "Synkhronos: there is no C++ compiler, so functions are computed in Python, many times "
        "slower; install one (apt install g++); `synkhronos doctor` says what else is missing"
    )
    return (line,)


def theano_options() -> Dict[str, Any]:
    """Options of this process's Theano that the workers have to share."""
    import theano

    return {name: getattr(theano.config, name) for name in _SHARED_OPTIONS}


def apply_theano_options(options: Dict[str, Any]) -> None:
    """Set what `theano_options` of the master gave."""
    import theano

    for name, value in options.items():
        setattr(theano.config, name, value)


def keep_freed_memory() -> None:
    """Have the C library keep what arrays free, for the next ones.

    A function allocates its intermediate results anew in each call. Beyond some megabytes glibc
    gives such memory back to the kernel each time, which then clears each page anew: that took a
    tenth of the time of a few matrix products. Settings of the user's own win.
    """
    if any(name in os.environ for name in _MALLOC_SETTINGS):
        return
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError):  # another C library, with ways of its own
        return
    mallopt(_M_MMAP_THRESHOLD, _LARGEST_MMAP_THRESHOLD)
    mallopt(_M_TRIM_THRESHOLD, _KEPT_BYTES)


class ThreadLimit:
    """Keeps the master's own thread pools to its share of the cores, while there are workers.

    Pools are limited as their libraries get loaded, which may be at any compilation: `apply` is
    cheap when nothing was loaded since. The user's settings in the environment win.
    """

    def __init__(self, size: int) -> None:
        self._limit = threads_per_rank(size)
        self._wanted = size > 1 and not any(name in os.environ for name in THREAD_VARIABLES)
        self._limits: List[Any] = []
        self._seen = -1

    def apply(self) -> None:
        """Limit what is loaded now."""
        if not self._wanted or len(sys.modules) == self._seen:
            return
        # A new library comes with a new module: looking for it costs milliseconds.
        self._seen = len(sys.modules)
        self._limits.append(threadpoolctl.threadpool_limits(self._limit))

    def restore(self) -> None:
        """Set the pools as they were."""
        while self._limits:
            self._limits.pop().restore_original_limits()
