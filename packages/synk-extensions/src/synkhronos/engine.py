"""Theano or PyTensor: for programs that run with whichever of the two this environment has.

`engine` is its package: ``engine.function``, ``engine.shared``, ``engine.config``. `T` is its
module of tensors; `NAME` is "theano" or "pytensor", and `TITLE` that in text.
"""

from __future__ import annotations

from synk_core.engine import NAME, TITLE, T
from synk_core.engine import library as engine

__all__ = ["NAME", "TITLE", "T", "engine"]
