"""P14: what Theano compiles to try the compiler is where nobody else can exchange it.

It writes such a program, what the linker makes of it, and runs that, all in the folder for
temporary files: whoever may write there could put another program in its place in time.
"""

from __future__ import annotations

import functools
import tempfile
import types
from contextvars import ContextVar
from typing import Any, Callable, Optional

_folder: ContextVar[Optional[str]] = ContextVar("folder", default=None)


class _Tempfile(types.ModuleType):
    """The module ``tempfile``, whose files go to a folder of our own where there is one."""

    def __getattr__(self, name: str) -> Any:
        return getattr(tempfile, name)

    @staticmethod
    def mkstemp(*args: Any, **kwargs: Any) -> tuple[int, str]:
        if (folder := _folder.get()) is not None:
            kwargs["dir"] = folder
        made: tuple[int, str] = tempfile.mkstemp(*args, **kwargs)
        return made


def private() -> str:
    """Give each program that is tried a folder of its own, of mode 0700, while it is tried."""
    from theano.gof import cmodule

    tried: Callable[..., Any] = cmodule.Compiler._try_compile_tmp.__func__

    @functools.wraps(tried)
    def tried_privately(cls: Any, *args: Any, **kwargs: Any) -> Any:
        with tempfile.TemporaryDirectory(prefix="theano-") as folder:
            before = _folder.set(folder)
            try:
                return tried(cls, *args, **kwargs)
            finally:
                _folder.reset(before)

    cmodule.Compiler._try_compile_tmp = classmethod(tried_privately)
    cmodule.tempfile = _Tempfile("tempfile", tempfile.__doc__)
    return "Compiler._try_compile_tmp"
