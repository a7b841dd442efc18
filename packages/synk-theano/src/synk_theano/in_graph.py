"""`synk_core.in_graph`, under the name by which it has been known."""

from __future__ import annotations

import sys

from synk_core import in_graph

sys.modules[__name__] = in_graph
