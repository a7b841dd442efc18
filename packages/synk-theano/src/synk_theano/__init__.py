"""Theano for synk-core: data-parallel Theano functions with exact results.

All public names are synk-core's, which finds its engine by the installed package; see `_engine`.
"""

from __future__ import annotations

from typing import Any

import synk_core
import synk_theano_compat
from synk_core import __all__, __dir__  # noqa: F401 - as it has them

# Before Theano is imported: it makes Theano 1.0.5 work on today's Python and NumPy.
synk_theano_compat.install()

__version__ = "0.1.0"


def __getattr__(name: str) -> Any:
    return getattr(synk_core, name)
