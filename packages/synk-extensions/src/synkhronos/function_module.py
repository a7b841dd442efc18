"""Where release 1.0 had `Function`: for programs that import it from here."""

from __future__ import annotations

from synk_theano import Function

__all__ = ["Function"]
