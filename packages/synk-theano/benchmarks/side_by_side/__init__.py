"""What calls, inputs, scaling and distribution cost, beside the plain ways.

::

    ../run.py            what you call
    ├─ calls             what a call costs beside plain Theano and two barriers
    ├─ inputs            how quickly rows get to where they are computed
    ├─ scaling           a function with work to share, on one core and on all
    ├─ distribution      bytes and seconds until the workers have a function
    │   └─ loader        a process that gets the same function by plain pickle
    └─ targets           what is aimed at, and how a result is shown

`functions` and `networks` hold what is computed, `partner` the usual way to use a second process,
`plan` how much is measured. The rest is `synk_benchmarks`, which this file makes importable.
"""

import os
import sys

_HARNESS = os.path.realpath(os.path.join(os.path.realpath(__file__), *[".."] * 5, "benchmarks"))
if _HARNESS not in sys.path:
    sys.path.append(_HARNESS)
