"""P2, P3, P4, P14: compile each C module once, and only where that can work and is safe."""

from __future__ import annotations

import functools
import hashlib
import os
import sys
import tempfile
from typing import Any, Callable

from .rewrite import rewrite


def cache_no_props() -> str:
    """P2: keep ops with ``__props__ = ()`` in the disk cache.

    An empty entry in a module's version means "unversioned": every process compiles 42 ops again
    (Softmax, Alloc, BatchedDot, ...), under the global compile lock.
    """
    from theano.gof.cc import CLinker

    rewrite(
        CLinker.cmodule_key_,
        "if hasattr(node.op, '__props__'):",
        "if getattr(node.op, '__props__', ()):",
    )
    return "CLinker.cmodule_key_"


def stable_version() -> str:
    """P3: make the cache version of ops written in C files the same in every process.

    Theano takes ``hash()`` of the source text, which Python randomises per process.
    """
    from theano.gof.op import COp

    def c_code_cache_version(self: Any) -> tuple[Any, ...]:
        digest = hashlib.sha256("\0".join(self.func_codes).encode()).digest()
        version: tuple[Any, ...] = (int.from_bytes(digest[:8], "big"),)
        if hasattr(self, "params_type"):
            version += (self.params_type.c_code_cache_version(),)
        return version

    COp.c_code_cache_version = c_code_cache_version
    return "COp.c_code_cache_version"


def no_scan_extension() -> str:
    """P4: run scan's loop in Python where its C extension cannot be compiled.

    It includes a header that Python 3.11 removed: each use of scan would fail to compile it, and
    leave a half-built folder in the cache. Theano uses the Python loop when the import fails.
    """
    if sys.version_info < (3, 11):
        return "not needed"
    sys.modules.setdefault("theano.scan_module.scan_perform_ext", None)  # type: ignore[arg-type]
    return "scan uses its Python loop"


def private_probes() -> str:
    """P14: run Theano's test programs in a folder of mode 0700, where nobody can replace them."""
    from theano.gof import cmodule

    try_compile: Callable[..., Any] = cmodule.Compiler._try_compile_tmp.__func__

    @functools.wraps(try_compile)
    def try_privately(
        cls: Any, src_code: str, tmp_prefix: str = "", *args: Any, **kwargs: Any
    ) -> Any:
        with tempfile.TemporaryDirectory(prefix="theano-") as folder:
            # The prefix of mkstemp(): an absolute one leads to another folder.
            return try_compile(cls, src_code, os.path.join(folder, tmp_prefix), *args, **kwargs)

    cmodule.Compiler._try_compile_tmp = classmethod(try_privately)
    return "Compiler._try_compile_tmp"
