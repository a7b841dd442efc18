"""Ways to do collectives, and the job in which their ranks take turns.

To add a contender, write a class and list it in ``CONTENDERS`` of `peers`. This file makes
`synk_benchmarks` importable.
"""

import os
import sys

sys.path.append(os.path.realpath(os.path.join(__file__, *[".."] * 5, "benchmarks")))
