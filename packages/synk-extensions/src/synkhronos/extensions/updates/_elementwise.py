"""The larger and the smaller of two, on every device.

Theano's ``T.maximum`` and ``T.minimum`` are C code that calls ``nan("")``, which OpenCL does not
have; the process ends when such a kernel is compiled.
"""

from __future__ import annotations

from typing import Any

from synk_core.engine import T


def larger(x: Any, y: Any) -> Any:
    """Return the larger of ``x`` and ``y``, element by element; ``y`` where either is nan."""
    return T.switch(T.gt(x, y), x, y)


def smaller(x: Any, y: Any) -> Any:
    """Return the smaller of ``x`` and ``y``, element by element; ``y`` where either is nan."""
    return T.switch(T.lt(x, y), x, y)
