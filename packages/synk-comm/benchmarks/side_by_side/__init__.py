"""Ways to do collectives, and the job in which their ranks take turns.

::

    ../run.py              the command
       |
      job                  starts the ranks; measures in each of them
       |
    ours  peers            the contenders: one method for each collective
       |
    contender  cases       what a contender is; arrays, right results, sizes

To add a contender, write a class and list it in ``CONTENDERS`` of `peers`. The rest is
`synk_benchmarks`, which this file makes importable.
"""

import os
import sys

sys.path.append(os.path.realpath(os.path.join(__file__, *[".."] * 5, "benchmarks")))
