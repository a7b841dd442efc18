"""The ways for ranks to talk to each other, measured in turns by the same processes.

::

    ../run.py                        what you call: one job for each number of ranks
       |   |   \\
       |   |     targets             what is aimed at, and how a result is shown
       |   |
       |   +-- fresh  faults         what needs processes of its own: imports, deaths
       |          |   /
       |         job                 starts the ranks (mpiexec or by itself), hears and bounds them
       |          :  (a Unix socket)
    ../rank.py    :                  what each rank runs
       |     \\    :
       |      line                   the ranks' way to talk that is not being measured
     rounds                          turns of all ranks at once, checking results
       |
    contenders  contender  cases     one class for each way; arrays, and what NumPy says is right
    metrics  mpi                     what is measured; which MPI there is

To add a contender, write a class in `ours` or `peers` and list it in `contenders`. To add a
collective, add it to `metrics` and `cases`, and give the contenders a method of its name. To add a
target, add a line to `targets`. The rest is `synk_benchmarks`, which this file makes importable.
"""

import os
import sys

_HARNESS = os.path.realpath(os.path.join(os.path.realpath(__file__), *[".."] * 5, "benchmarks"))
if _HARNESS not in sys.path:
    sys.path.append(_HARNESS)
