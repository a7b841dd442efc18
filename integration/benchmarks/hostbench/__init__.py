"""Hosts that are simulated on one machine, and orders between them; `synk_benchmarks` is found."""

import os
import sys

sys.path.append(os.path.realpath(os.path.join(__file__, *[".."] * 4, "benchmarks")))
