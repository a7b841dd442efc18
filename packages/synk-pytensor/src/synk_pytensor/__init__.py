"""PyTensor for synk-core: data-parallel PyTensor functions with exact results.

All public names are synk-core's, which finds its engine by the installed package; see `_engine`.
"""

from __future__ import annotations

from typing import Any

import synk_core
from synk_core import __all__, __dir__  # noqa: F401 - as it has them

__version__ = "0.1.0"


def __getattr__(name: str) -> Any:
    return getattr(synk_core, name)
