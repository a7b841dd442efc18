"""What calls, inputs and functions with work to share cost, beside the plain ways.

::

    ../run.py            the command
    └─ measures          calls, inputs, scaling

`functions` holds what is computed, `partner` the usual ways to use more cores. The rest is
`synk_benchmarks`, which this file makes importable.
"""

import os
import sys

sys.path.append(os.path.realpath(os.path.join(__file__, *[".."] * 5, "benchmarks")))
