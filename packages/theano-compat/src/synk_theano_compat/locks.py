"""Theano's compile lock and module cache, adapted to several processes that load together.

One process compiles, then signals the others, which only load::

    master:   f = theano.function(...)                        compiles, takes the lock
    workers:  worker_cache()         once, after importing theano
              refresh_cache()        before each load: find what the master has compiled since
              pickle.loads(...)      loads; takes no lock unless it has to compile after all

:func:`fast_lock` and :func:`released_lock` are applied in every process by the import hook; the
other two are for workers.
"""

from __future__ import annotations

import atexit
import logging
import os
import time
from contextlib import contextmanager
from typing import Any, Iterator

__all__ = ["fast_lock", "refresh_cache", "released_lock", "worker_cache"]

POLL_S = 0.02
"""Seconds between two looks at the lock, at least."""

FIRST_MESSAGE_S = 5.0
"""Seconds until Theano first logs that it waits for the lock."""

NEXT_MESSAGE_S = 60.0
"""Seconds from one such message to the next."""


def fast_lock() -> str:
    """Poll the compile lock every 20 to 40 ms instead of 5 to 10 s; return that in words.

    Also give each process its own sequence of waits: Theano seeds all alike, so that waiting
    processes keep colliding. A user's own ``compile.wait`` stays.
    """
    import numpy as np
    from theano import config
    from theano.gof import compilelock

    compilelock.random = np.random.RandomState(
        np.frombuffer(os.urandom(16), dtype=np.uint32)  # not np.random's own, which is the user's
    )
    config.compile.wait  # noqa: B018 - `is_default` is set when the flag is read
    if not type(config.compile).wait.is_default:
        return f"compile.wait={config.compile.wait}, set by the user"
    lock = compilelock.lock
    messages = _LockMessages()
    logging.getLogger("theano.gof.compilelock").addFilter(messages)

    def fast(
        tmp_dir: str,
        timeout: Any = compilelock.notset,
        min_wait: float | None = None,
        max_wait: float | None = None,
        verbosity: int = 1,
    ) -> None:
        min_wait = POLL_S if min_wait is None else min_wait
        messages.begin()
        # 2: log at each look who holds the lock; the filter lets few of these messages pass.
        lock(tmp_dir, timeout, min_wait, max_wait, 2 if verbosity == 1 else verbosity)

    compilelock.lock = fast
    return f"polled every {POLL_S * 1e3:.0f} ms"


def released_lock() -> str:
    """Release the compile lock when something fails while it is held; return that in words.

    Otherwise Theano keeps it until the process ends (`lock_ctx` has no ``finally``), and all others
    wait for four minutes, again and again. Also remove a lock whose file could not be written, as
    on a full disk: it would block the process that created it.
    """
    from theano.gof import compilelock

    refresh = compilelock.refresh_lock

    def refresh_lock(lock_file: str) -> Any:
        try:
            return refresh(lock_file)
        except BaseException:
            compilelock.Unlocker(os.path.dirname(lock_file)).unlock(force=True)
            raise

    @contextmanager
    def lock_ctx(lock_dir: Any = None, keep_lock: bool = False, **kwargs: Any) -> Iterator[None]:
        compilelock.get_lock(lock_dir=lock_dir, **kwargs)
        try:
            yield
        except BaseException:
            compilelock.release_lock()
            raise
        if not keep_lock:
            compilelock.release_lock()

    compilelock.refresh_lock = refresh_lock
    compilelock.lock_ctx = lock_ctx
    return "released when something fails"


class _LockMessages(logging.Filter):
    """Limits Theano's messages about a wait for the lock to one pair per minute.

    Theano logs from its second look on: now after 20 ms.
    """

    def __init__(self) -> None:
        super().__init__()
        self._next = 0.0

    def begin(self) -> None:
        self._next = time.monotonic() + FIRST_MESSAGE_S

    def filter(self, record: logging.LogRecord) -> bool:
        message = str(record.msg)
        if not message.startswith(("Waiting for existing lock", "To manually release")):
            return True
        now = time.monotonic()
        if now < self._next:
            return False
        if message.startswith("To manually"):
            self._next = now + NEXT_MESSAGE_S
        return True


def worker_cache() -> None:
    """Make this process a reader of the module cache: loading takes no lock and removes nothing.

    Call it in a worker after ``import theano``, before its first function is built. Theano takes
    the lock to write each new key of a known module to disk; here the key stays in memory. A module
    that is not in the cache is still compiled, under the lock. Theano's cleanup at start and exit
    is left to the other processes.
    """
    from theano import config
    from theano.gof import cmodule

    class ReadingCache(cmodule.ModuleCache):
        """A module cache that writes nothing when it loads a module."""

        def refresh(
            self, age_thresh_use: float | None = None, *_deleting: Any, **_cleaning: Any
        ) -> Any:
            return super().refresh(age_thresh_use, delete_if_problem=False, cleanup=False)

        def _get_from_hash(self, module_hash: str, key: Any, **_keep_lock: Any) -> Any:
            key_data = self.module_hash_to_key_data.get(module_hash)
            if key_data is None:
                return None
            module = self._get_from_key(None, key_data)
            key_data.add_key(key, save_pkl=False)
            self._update_mappings(key, key_data, module.__file__, check_in_keys=True)
            return module

    if cmodule._module_cache is None:
        cmodule.get_module_cache(config.compiledir, init_args={"do_refresh": False})
    cache = cmodule._module_cache
    atexit.unregister(cache._on_atexit)
    cache.__class__ = ReadingCache
    cache.refresh()


def refresh_cache() -> None:
    """Find the modules that other processes have compiled since the last call. Takes no lock.

    Lists the folder, and reads one small file for each new module.
    """
    from theano import config
    from theano.gof import cmodule

    cmodule.get_module_cache(config.compiledir).refresh(cleanup=False)
