"""The processes of ../run.py.

::

    run.py ──> python -m gpubench.job KIND
                 plain        one GPU, plain Theano
                 ours         a runtime of N ranks: steps, distribution
                 collectives  all_reduce beside a bare NCCL loop (bare)

`job` needs the standard library alone, and `synk_benchmarks`, which this file makes importable.
"""

import os
import sys

_HARNESS = os.path.realpath(os.path.join(os.path.realpath(__file__), *[".."] * 5, "benchmarks"))
if _HARNESS not in sys.path:
    sys.path.append(_HARNESS)
