"""The processes of ../run.py: ``python -m gpubench.job plain``, ``ours`` or ``collectives``.

`job` needs the standard library alone, and `synk_benchmarks`, which this file makes importable.
"""

import os
import sys

sys.path.append(os.path.realpath(os.path.join(__file__, *[".."] * 5, "benchmarks")))
