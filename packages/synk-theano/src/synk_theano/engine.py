"""`synk_core.engine`, under the name by which it has been known."""

from __future__ import annotations

import sys

from synk_core import engine

sys.modules[__name__] = engine
