"""The ways to have an array in several processes, and what is measured about them.

::

    ../run.py                              what you call
       |    \\
       |     targets                       what is aimed at, and how a result is shown
       |
    memory  transport  fresh  leftovers    metrics: functions from a Bench to rows
       |        |        |      |
       |        |        |   sandbox       a private /dev/shm, and the victims that die in it
       |        |        |
       |        |     newcomer             what runs in fresh interpreters
     bench  ----+                          how much is measured, and rows of it
       |
    contenders  contender                  one small class for each way, and what they share

To add a contender, write a class in `contenders` and list it there. To add a metric, write a
function that returns rows and list it in ``METRICS`` of run.py. To add a target, add a line to
`targets`. The rest is `synk_benchmarks`, which this file makes importable.
"""

import os
import sys

_HARNESS = os.path.realpath(os.path.join(os.path.realpath(__file__), *[".."] * 5, "benchmarks"))
if _HARNESS not in sys.path:
    sys.path.append(_HARNESS)
