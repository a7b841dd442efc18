"""What calls, inputs and functions with work to share cost, beside the plain ways.

::

    ../run.py            the command
    └─ measures          calls, inputs, scaling

`functions` holds what is computed, `partner` the usual ways to use more cores. The rest is
`synk_benchmarks`, which this file makes importable.
"""

import os
import sys

_HARNESS = os.path.realpath(os.path.join(os.path.realpath(__file__), *[".."] * 5, "benchmarks"))
if _HARNESS not in sys.path:
    sys.path.append(_HARNESS)
