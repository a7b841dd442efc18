"""The parts of ../hosts.py.

::

    hosts.py ─ network ──> simulated hosts and their links; switch: what carries their frames
       │  \\
       │   tables, model   what is aimed at, what came of it; what it costs on more hosts
       │
       └─> mpiexec python -m hostbench.job SETTINGS
               cases       what is measured: synkhronos's way
               bare        mpi4py's way, by the same processes

`network`, `tables` and `model` need the standard library alone, and `synk_benchmarks`, which this
file makes importable. A job writes each row to a file at once, as a line of JSON: a run that is
cut off keeps what it has.
"""

import os
import sys

_HARNESS = os.path.realpath(os.path.join(os.path.realpath(__file__), *[".."] * 4, "benchmarks"))
if _HARNESS not in sys.path:
    sys.path.append(_HARNESS)
