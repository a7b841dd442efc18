"""Calls, inputs and functions with work to share, beside the plain ways.

This file makes `synk_benchmarks` importable.
"""

import os
import sys

sys.path.append(os.path.realpath(os.path.join(__file__, *[".."] * 5, "benchmarks")))
