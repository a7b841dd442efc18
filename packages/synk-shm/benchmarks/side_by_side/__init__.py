"""Ways to have an array in several processes, and metrics of them.

To add a contender, write a class in `contenders` and list it there; to add a metric, write a
function that returns rows and list it in ``METRICS`` of run.py. This file makes `synk_benchmarks`
importable.
"""

import os
import sys

sys.path.append(os.path.realpath(os.path.join(__file__, *[".."] * 5, "benchmarks")))
