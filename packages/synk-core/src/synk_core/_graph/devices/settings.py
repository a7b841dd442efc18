"""Check the settings of devices: which functions are replayed, and the precision of float32.

Tensor cores multiply float32 quickly if factors keep 10 bits of their fraction (TF32, from Ampere
on); sums are float32 all the same. cuDNN may use them for convolutions unless it is told not to:
that depends on the algorithm. cuBLAS, which multiplies matrices, does not unless it is told to.
"""

from __future__ import annotations

import os
from typing import Any, Union

from synk_core._text import shown
from synk_core.device import TF32_OVERRIDE
from synk_core.exceptions import InputValueError

USE_GRAPHS = "SYNKHRONOS_CUDA_GRAPHS"
"""Environment variable with a policy, for programs that leave it to the default; "0" is "never"."""

POLICIES = ("auto", "always", "never")
"""Replay functions if that is quicker, whenever it is possible, never."""


def checked_policy(graphs: Union[str, bool]) -> str:
    """Return which functions are to be replayed: one of `POLICIES`.

    Args:
        graphs: False is "never"; "auto" is what the environment says.

    Raises:
        InputValueError: it is no policy, or the environment names none.
    """
    if graphs is False:
        return "never"
    if not isinstance(graphs, str) or graphs not in POLICIES:
        raise InputValueError(f"graphs: got {shown(graphs)}, expected 'auto', 'always' or False")
    given = os.environ.get(USE_GRAPHS, "").strip()
    if graphs != "auto" or not given:
        return graphs
    policy = "never" if given == "0" else given
    if policy not in POLICIES:
        raise InputValueError(f"{USE_GRAPHS}: got {shown(given)}, expected 'auto', 'always' or 0")
    return policy


USE_PRECISION = "SYNKHRONOS_PRECISION"
"""Environment variable with a precision, for programs that leave it to the default."""

PRECISIONS = ("default", "float32", "tf32")
"""TF32 where the libraries use it by themselves, nowhere, wherever they can."""


def checked_precision(precision: Any) -> str:
    """Return the precision to use: one of `PRECISIONS`.

    Args:
        precision: "default" is what the environment says, in our variable or NVIDIA's.

    Raises:
        InputValueError: it is none, the environment names none, or the two exclude each other.
    """
    if not isinstance(precision, str) or precision not in PRECISIONS:
        raise InputValueError(
            f"precision: got {shown(precision)}, expected 'default', 'float32' or 'tf32'"
        )
    given = os.environ.get(USE_PRECISION, "").strip()
    if given and given not in PRECISIONS:
        raise InputValueError(
            f"{USE_PRECISION}: got {shown(given)}, expected default, float32 or tf32"
        )
    chosen = given if precision == "default" and given else precision
    if os.environ.get(TF32_OVERRIDE) == "0":
        if chosen == "tf32":
            raise InputValueError(
                f"precision: got 'tf32', but {TF32_OVERRIDE}=0 in the environment excludes TF32; "
                f"unset it before the program starts. fork(precision='float32') sets it, too"
            )
        return "float32"
    return chosen
