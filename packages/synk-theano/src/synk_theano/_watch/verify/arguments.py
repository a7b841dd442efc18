"""What `verify()` is told besides the function's inputs."""

from __future__ import annotations

import math
from typing import Any, Optional, Tuple

import numpy as np

from synk_theano._plan.rows import is_int
from synk_theano._text import shown
from synk_theano.exceptions import InputValueError

MOST = 100
"""Numbers of slices that are tried: each is a run."""


def checked_slices(num_slices: Any) -> Tuple[int, ...]:
    """The numbers of slices to try.

    Raises:
        InputValueError: it is neither an int nor a short list of ints of at least 1.
    """
    several = [num_slices] if is_int(num_slices) else num_slices
    if (
        not isinstance(several, (list, tuple, range))
        or len(several) > MOST
        or not all(is_int(n) and n > 0 for n in several)
    ):
        raise InputValueError(
            f"num_slices: got {shown(num_slices)}, expected an int of at least 1, or a list of at "
            f"most {MOST} of these"
        )
    return tuple(int(n) for n in several)


def checked_limit(limit: Any) -> Optional[float]:
    """The epsilons that are taken for rounding.

    Raises:
        InputValueError: it is neither None nor a number.
    """
    if limit is None:
        return None
    if isinstance(limit, (int, float, np.integer, np.floating)) and not math.isnan(limit):
        if limit >= 0:
            return float(limit)
    raise InputValueError(f"limit: got {shown(limit)}, expected a number of epsilons, or None")
