"""Operations that misbehave if their rows say so, and how most functions are compiled."""

from __future__ import annotations

import sys
import time

import cloudpickle

from synk_testing.engine import T, as_op

# Workers do not find the folder of the tests.
cloudpickle.register_pickle_by_value(sys.modules[__name__])

FAST = {"mode": "FAST_COMPILE"}


@as_op([T.dvector], [T.dvector])
def picky(values):
    if values.size and values.max() > 100:
        raise ValueError("not this")
    return values


@as_op([T.dvector], [T.dvector])
def nap(values):
    time.sleep(float(values.sum()))
    return values
