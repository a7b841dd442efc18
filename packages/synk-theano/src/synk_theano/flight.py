"""`synk_core.flight`, under the name by which it has been known."""

from __future__ import annotations

import sys

from synk_core import flight

sys.modules[__name__] = flight
