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

sys.path.append(os.path.realpath(os.path.join(__file__, *[".."] * 5, "benchmarks")))
