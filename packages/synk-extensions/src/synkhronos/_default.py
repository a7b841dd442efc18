"""The default runtime, which `fork()` opens and `close()` closes: the only state of the package."""

from __future__ import annotations

import contextlib
import difflib
import functools
import inspect
import os
import threading
from typing import Any, Callable, Dict, Optional, TypeVar, cast

from synk_core import AlreadyForked, InputValueError, NotForked, Runtime

Call = TypeVar("Call", bound=Callable[..., Any])

_lock = threading.Lock()
_runtime: Optional[Runtime] = None
_owner = 0
_recorded = 0


def refuses_other_names(function: Call) -> Call:
    """Let `function` suggest a similar keyword when it gets an unknown one."""
    known = [*inspect.signature(function).parameters]

    @functools.wraps(function)
    def checked(*args: Any, **kwargs: Any) -> Any:
        for name in kwargs:
            if name not in known:
                near = difflib.get_close_matches(name, known, 1, 0.4)
                raise TypeError(
                    f"{function.__qualname__}() got an unexpected keyword argument {name!r}"
                    + (f"; did you mean {near[0]}=?" if near else f", expected one of {known}")
                )
        return function(*args, **kwargs)

    return cast(Call, checked)


def open_default(**settings: Any) -> Runtime:
    """Open the default runtime; raise AlreadyForked if it is open."""
    global _runtime, _owner
    with _lock:
        if is_open():
            if os.getpid() != _owner:
                raise AlreadyForked(
                    "fork() was called already, in the process that this one was forked from; "
                    "ranks of its own need a fresh process, as multiprocessing's 'spawn' gives"
                )
            raise AlreadyForked(
                f"fork() was called already ({_runtime!r}); call close() first to fork again"
            )
        _runtime, _owner = Runtime(**settings), os.getpid()
        return _runtime


def default() -> Runtime:
    """Return the default runtime, open or closed; raise NotForked if there never was any."""
    if _runtime is None:
        raise NotForked("synkhronos has not forked yet; call synkhronos.fork() first")
    return _runtime


def is_open() -> bool:
    """Return whether there is a default runtime that is not closed."""
    return _runtime is not None and not _runtime.closed


def close_default() -> None:
    """Close the default runtime if there is one. Idempotent."""
    if _runtime is not None:
        _runtime.close()


def reporter(verbose: bool) -> Callable[[str], None]:
    """Return the function that reports progress: on standard output, or not at all."""

    def say(line: str) -> None:
        with contextlib.suppress(Exception):  # closed, its reader gone, or a program's own stream
            print(line, flush=True)  # noqa: T201 - the documented programs show these lines

    return say if verbose else lambda _line: None


def from_environment(given: Dict[str, Any]) -> Dict[str, Any]:
    """Return the settings of a runtime that `fork()` was not given, as the environment has them.

    The file of SYNKHRONOS_TIMELINE is numbered for each `fork()` after the first.
    """
    global _recorded  # noqa: PLW0603 - this file is where the default lives
    names = ("N_PARALLEL", "BACKEND", "PROOF", "TIMELINE")
    processes, backend, proof, path = (
        os.environ.get(f"SYNKHRONOS_{name}", "").strip() for name in names
    )
    found: Dict[str, Any] = {"backend": backend or None}
    if processes and given["n_parallel"] is None and given["devices"] is None:
        try:
            found["n_parallel"] = int(processes)
        except ValueError:
            raise InputValueError(
                "environment variable SYNKHRONOS_N_PARALLEL: "
                f"got {processes!r}, expected a whole number"
            ) from None
    proof = proof.lower() or "raise"
    found["proof"] = False if proof in ("0", "off", "false") else proof
    if path:
        _recorded += 1
        stem, suffix = os.path.splitext(path)
        found["timeline"] = path if _recorded == 1 else f"{stem}.{_recorded}{suffix}"
    return {name: value for name, value in found.items() if given.get(name) is None}
