"""Tracebacks for users: their own lines and those of their functions, without this library's.

Python started with ``-X dev`` shows everything.
"""

from __future__ import annotations

import sys
from functools import wraps
from types import TracebackType
from typing import Any, Callable, Optional, TypeVar, cast

PACKAGES = ("synk_core", "synk_theano", "synk_pytensor", "synkhronos")
"""Those of the library that users call, and those that these call for the graph engine."""

_OURS = frozenset({*PACKAGES, "synk_comm", "synk_shm"})

F = TypeVar("F", bound=Callable[..., Any])


def brief_traceback(function: F) -> F:
    """Decorate a function that users call: its errors show their line, and then this."""

    @wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        __tracebackhide__ = True  # of pytest and IPython
        try:
            return function(*args, **kwargs)
        except BaseException as error:  # noqa: BLE001 - it is raised again
            raise shortened(error)  # noqa: B904 - the same error

    return cast(F, call)


def shortened(error: BaseException) -> BaseException:
    """Return the same error, without frames of this library in its traceback and its causes'."""
    if sys.flags.dev_mode:
        return error
    seen = set()
    one: Optional[BaseException] = error
    while one is not None and id(one) not in seen:
        seen.add(id(one))
        one.__traceback__ = without_ours(one.__traceback__)
        one = one.__cause__ or (None if one.__suppress_context__ else one.__context__)
    return error


def package_of(frame: Any) -> str:
    """Return the name of the package whose code a frame runs."""
    return str(frame.f_globals.get("__name__", "")).partition(".")[0]


def without_ours(trace: Optional[TracebackType]) -> Optional[TracebackType]:
    """Return a traceback without the frames of this library."""
    kept = []
    while trace is not None:
        if package_of(trace.tb_frame) not in _OURS:
            kept.append(trace)
        trace = trace.tb_next
    short: Optional[TracebackType] = None
    for one in reversed(kept):
        line: Optional[int] = one.tb_lineno  # none where an interrupt came between two lines
        first = one.tb_frame.f_code.co_firstlineno
        short = TracebackType(short, one.tb_frame, one.tb_lasti, first if line is None else line)
    return short
