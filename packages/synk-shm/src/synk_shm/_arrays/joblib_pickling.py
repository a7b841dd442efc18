"""Send shared arrays through joblib and loky as handles, as through multiprocessing.

joblib gives its own reducers to each pool and executor that it makes: they copy small arrays, and
write large ones to files that workers map read-only. There is no public way to put another one
before them, so `register_joblib` replaces the function that makes them, in the two modules that
call it.
"""

from __future__ import annotations

import functools
import importlib
from typing import Any, Callable

import numpy as np

from synk_shm._arrays.pickling import reduce_array
from synk_shm._arrays.segment import Array, segment

_MAKER = "get_memmapping_reducers"


def _reduce(otherwise: Callable[[Array], Any], array: Array) -> Any:
    """Send a shared array as a handle, and any other one as another reducer does."""
    return otherwise(array) if segment(array) is None else reduce_array(array)


def _make_reducers(make: Callable[..., Any], *args: Any, **keywords: Any) -> Any:
    """Return joblib's reducers of both directions, with this package's before them."""
    both = make(*args, **keywords)
    for reducers in both:
        reducers[np.ndarray] = functools.partial(_reduce, reducers[np.ndarray])
    return both


def register_joblib() -> None:
    """Have joblib and its loky pass shared arrays by handle, for the rest of this program.

    Call it once, before the first ``Parallel``. What is passed to a worker, or comes back from one,
    is then the same memory, writeable if it was, whatever its size. Other arrays go as before.
    Without it, joblib copies shared arrays, or gives the workers read-only files of them.

    Raises:
        ImportError: there is no joblib, or one of another make.
    """
    try:
        modules = [importlib.import_module(f"joblib.{name}") for name in ("executor", "pool")]
        reduction = importlib.import_module("joblib.externals.loky.backend.reduction")
        makers = [getattr(module, _MAKER) for module in modules]
        register = reduction.register
    except AttributeError as error:
        raise ImportError(f"this joblib makes its reducers in another way: {error}") from error
    register(np.ndarray, functools.partial(_reduce, np.ndarray.__reduce__))
    for module, maker in zip(modules, makers):
        if getattr(maker, "func", None) is not _make_reducers:
            setattr(module, _MAKER, functools.partial(_make_reducers, maker))
