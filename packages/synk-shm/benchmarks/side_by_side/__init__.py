"""Ways to have an array in several processes, and metrics of them.

::

    ../run.py               the command
       |
    metrics                 functions from a Bench to rows
       |
     child                  a process that attaches and answers
       |
    contenders  contender   a class for each way, and their base

To add a contender, write a class in `contenders` and list it there. To add a metric, write a
function that returns rows and list it in ``METRICS`` of run.py. The rest is `synk_benchmarks`,
which this file makes importable.
"""

import os
import sys

sys.path.append(os.path.realpath(os.path.join(__file__, *[".."] * 5, "benchmarks")))
