"""Hosts that are simulated on one machine (`network`), and orders between them (`orders`).

This file makes `synk_benchmarks` importable.
"""

import os
import sys

sys.path.append(os.path.realpath(os.path.join(__file__, *[".."] * 4, "benchmarks")))
