"""Hosts that are simulated on one machine (`network`), and orders between them (`orders`).

This file makes `synk_benchmarks` importable.
"""

import os
import sys

_HARNESS = os.path.realpath(os.path.join(os.path.realpath(__file__), *[".."] * 4, "benchmarks"))
if _HARNESS not in sys.path:
    sys.path.append(_HARNESS)
