"""`synk_core.mpi`, under the name by which it has been known."""

from __future__ import annotations

import sys

from synk_core import mpi

sys.modules[__name__] = mpi
