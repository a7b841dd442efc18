"""Where release 1.0 had `Data`: for programs that import it from here."""

from __future__ import annotations

from synk_theano import Data

__all__ = ["Data"]
