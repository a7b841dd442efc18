"""`synk_core.exceptions`, under the name by which it has been known."""

from __future__ import annotations

import sys

from synk_core import exceptions

sys.modules[__name__] = exceptions
