"""The command ``synkhronos``.

A package of its own, because ``import synkhronos`` imports Theano, and ``synkhronos doctor`` must
run on machines where that fails. Nothing here imports Theano, NumPy or a package that does; code
that needs them runs in a Python of its own, so that nothing can break the command itself.

README.md has the table of its rooms.
"""

from __future__ import annotations

from ._app import main

__all__ = ["main"]
