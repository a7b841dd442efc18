"""The parts of ../run.py.

::

    run.py ─ plan ──> which processes, in which order
             │                                tables: what is aimed at, what came of it
             │                                cache: Theano's compiled modules
             └─> python -m gpubench.job KIND
                   plain        one GPU, plain Theano
                   ours         a runtime of N ranks: steps, distribution, timeline
                   collectives  all_reduce beside a bare NCCL loop (bare)
                   starting     fork() to the first result

`plan`, `job`, `tables` and `cache` need the standard library alone, and `synk_benchmarks`, which
this file makes importable. What a job measures it writes to a file at once, a line of JSON for
each row: a run that is cut off keeps what it has.
"""

import os
import sys

_HARNESS = os.path.realpath(os.path.join(os.path.realpath(__file__), *[".."] * 5, "benchmarks"))
if _HARNESS not in sys.path:
    sys.path.append(_HARNESS)
